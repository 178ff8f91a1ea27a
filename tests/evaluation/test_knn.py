import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from us3l.evaluation.knn import knn, knn_accuracy
from us3l.evaluation.scoring import percent_correct
from us3l.system.errors import UserError


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(images), torch.from_numpy(labels)
    # Not normalised, and shifted so that cosines are of both signs.
    images = images - images.mean(0)
    return images[:1000], labels[:1000], images[1000:], labels[1000:]


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (200, 0.07), (20, 1.0), (1000, 0.3)])
def test_equals_scikit_learn(digits, k, temperature):
    train, train_labels, test, test_labels = digits
    reference = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / temperature))
    reference.fit(train.numpy(), train_labels.numpy())
    scores = knn(train, train_labels, test, k, temperature)
    np.testing.assert_array_equal(scores.argmax(1).numpy(), reference.predict(test.numpy()))
    np.testing.assert_allclose(scores.numpy(), reference.predict_proba(test.numpy()), atol=1e-10)
    accuracy = 100 * reference.score(test.numpy(), test_labels.numpy())
    assert knn_accuracy(*digits, k=k, temperature=temperature) == pytest.approx(accuracy, abs=1e-10)


def test_k_is_cut_to_the_training_images(digits):
    train, labels, test, _ = digits
    assert torch.equal(knn(train[:7], labels[:7], test, k=20), knn(train[:7], labels[:7], test, k=7))


@pytest.mark.parametrize("chunk", [1, 13, 797, 10_000])
def test_chunk_size_does_not_matter(digits, chunk):
    train, labels, test, _ = digits
    torch.testing.assert_close(knn(train, labels, test, chunk=chunk), knn(train, labels, test), rtol=0, atol=1e-12)


def test_precision(digits):
    train, labels, test, _ = digits
    exact = knn(train, labels, test)
    single = knn(train.float(), labels, test.float())
    assert (exact.dtype, single.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=1e-4)
    half = knn(train.bfloat16(), labels, test.bfloat16())
    assert half.dtype == torch.float32
    assert (half.argmax(1) == exact.argmax(1)).double().mean() > 0.98


def test_scale_of_features_and_cold_temperature(digits):
    train, labels, test, _ = digits
    torch.testing.assert_close(knn(1e3 * train, labels, 1e-3 * test), knn(train, labels, test))
    cold = knn(train.float(), labels, test.float(), temperature=1e-4)
    assert cold.isfinite().all()
    # As cold as this only the nearest one counts.
    assert torch.equal(cold.argmax(1), knn(train.float(), labels, test.float(), k=1).argmax(1))


def test_deterministic(digits):
    train, labels, test, _ = digits
    assert torch.equal(knn(train, labels, test), knn(train, labels, test))


def test_one_class_and_absent_classes(digits):
    train, labels, test, _ = digits
    assert torch.allclose(knn(train, torch.zeros_like(labels), test), torch.ones(len(test), 1, dtype=torch.float64))
    scores = knn(train, labels, test, num_classes=12)
    assert scores.shape == (len(test), 12)
    assert (scores[:, 10:] == 0).all()
    # A test class never seen in training is simply missed.
    assert knn_accuracy(train, labels, test, torch.full((len(test),), 99)) == 0


def test_collapsed_features_do_not_fail(digits):
    train, labels, test, _ = digits
    assert knn(torch.zeros_like(train), labels, torch.zeros_like(test)).isfinite().all()


def test_inputs_are_left_alone(digits):
    before = [tensor.clone() for tensor in digits]
    knn_accuracy(*digits)
    assert all(map(torch.equal, before, digits))


def bad_inputs():
    features, labels = torch.eye(3), torch.arange(3)
    yield "NaN", (features * float("nan"), labels, features)
    yield "1 of 3 images", (features, labels, torch.tensor([[1.0, 0, 0], [0, float("inf"), 0], [0, 0, 1]]))
    yield "needs a label", (features, labels[:2], features)
    yield "needs a label", (features[:0], labels[:0], features)
    yield "is the data labelled", (features, labels - 1, features)
    yield "is the data labelled", (features, labels.float(), features)
    yield "images x 3", (features, labels, torch.ones(2, 4))
    yield "images x dimensions", (torch.ones(3, 2, 2), labels, features)
    yield "k >= 1", (features, labels, features, 0)
    yield "temperature > 0", (features, labels, features, 1, 0.0)
    yield "label 2 is outside the 2 classes", (features, labels, features, 1, 0.1, 2)


@pytest.mark.parametrize(("message", "arguments"), list(bad_inputs()))
def test_bad_input_is_said_in_one_line(message, arguments):
    with pytest.raises(UserError, match=message) as error:
        knn(*arguments)
    assert "\n" not in str(error.value)


def test_percent_correct_needs_a_label_each():
    for images, labels in [(2, 3), (0, 0)]:
        with pytest.raises(UserError, match="one label for every test image"):
            percent_correct(torch.ones(images, 2), torch.zeros(labels, dtype=torch.int64))
