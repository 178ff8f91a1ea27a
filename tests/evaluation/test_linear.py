import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

from us3l.evaluation.linear import DEFAULT_L2, GRADIENT_TOLERANCE, L2, choose_l2, linear_accuracy, linear_probe
from us3l.system.errors import UserError


@pytest.fixture(scope="module")
def digits():
    """Raw pixels: some are constant, some nearly."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(images).float(), torch.from_numpy(labels)
    return images[:1000], labels[:1000], images[1000:], labels[1000:]


def objective(weight, bias, standardised, labels, l2):
    cross_entropy = F.cross_entropy(F.linear(standardised, weight, bias), labels, reduction="sum")
    return (cross_entropy + l2 / 2 * weight.square().sum()) / len(labels)


def standardised(features):
    """Another route to the standardised features, with the scaler that undoes the folding."""
    scaler = StandardScaler().fit(features.double().numpy())
    return torch.from_numpy(scaler.transform(features.double().numpy())), torch.from_numpy(scaler.scale_)


@pytest.mark.parametrize("l2", [100.0, 10.0, 1.0])
def test_equals_scikit_learn(digits, l2):
    train, labels, test, test_labels = digits
    scaled, scale = standardised(train)
    reference = LogisticRegression(C=1 / l2, tol=1e-8, max_iter=5000).fit(scaled.numpy(), labels.numpy())
    probe = linear_probe(train, labels, l2=l2)
    assert 0 < probe.iterations < 200
    assert probe.gradient <= GRADIENT_TOLERANCE

    ours = objective(probe.weight * scale, linear_bias(probe, train), scaled, labels, l2)
    theirs = objective(torch.from_numpy(reference.coef_), torch.from_numpy(reference.intercept_), scaled, labels, l2)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    scaled_test = StandardScaler().fit(train.double().numpy()).transform(test.double().numpy())
    np.testing.assert_array_equal(probe.scores(test).argmax(1).numpy(), reference.predict(scaled_test))
    accuracy = 100 * reference.score(scaled_test, test_labels.numpy())
    assert linear_accuracy(*digits, l2=l2) == pytest.approx(accuracy, abs=1e-9)


def linear_bias(probe, train):
    return probe.bias + probe.weight @ train.double().mean(0)


def test_gradient_vanishes_at_the_solution(digits):
    train, labels, _, _ = digits
    scaled, scale = standardised(train)
    probe = linear_probe(train, labels, l2=3.0)
    weight, bias = (probe.weight * scale).requires_grad_(), linear_bias(probe, train).requires_grad_()
    gradients = torch.autograd.grad(objective(weight, bias, scaled, labels, 3.0), (weight, bias))
    assert max(gradient.abs().max().item() for gradient in gradients) < 1e-4


def test_standardisation_is_folded_in(digits):
    """Any shift and scale of each feature leaves the predictions as they are."""
    train, labels, test, _ = (tensor.double() if tensor.is_floating_point() else tensor for tensor in digits)
    generator = torch.Generator().manual_seed(0)
    scale = 10 ** (4 * torch.rand(64, generator=generator, dtype=torch.float64) - 2)
    shift = 5 * torch.randn(64, generator=generator, dtype=torch.float64)
    plain = linear_probe(train, labels).scores(test)
    moved = linear_probe(train * scale + shift, labels).scores(test * scale + shift)
    torch.testing.assert_close(moved, plain, rtol=0, atol=1e-3)


def test_constant_features_have_no_say(digits):
    train, labels, test, _ = digits
    # 0.1 has no exact mean in floating point; the last column varies by rounding alone.
    noise = 1000 * (1 + 1e-7 * torch.arange(len(train)).remainder(2))
    padded = torch.cat([train, torch.full((len(train), 1), 0.1), torch.zeros(len(train), 1), noise[:, None]], 1)
    probe = linear_probe(padded, labels)
    assert (probe.weight[:, 64:] == 0).all()
    torch.testing.assert_close(probe.scores(F.pad(test, (0, 3), value=7.0)), linear_probe(train, labels).scores(test))


def test_l2_is_chosen_on_training_images_held_out():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 2
    signal = 2.0 * labels[:, None] - 1
    # Much noise beside the signal: only a strong penalty generalises.
    noisy = torch.cat([signal, signal, signal], 1) + 2 * torch.randn(300, 3, generator=generator)
    noisy = torch.cat([noisy, torch.randn(300, 400, generator=generator)], 1)
    # The signal is a small difference of large features: only a weak one lets it through.
    large = torch.randn(300, 1, generator=generator)
    hidden = torch.cat([large, large + 0.02 * signal], 1)
    assert choose_l2(noisy, labels) >= 100
    assert choose_l2(hidden, labels) == min(L2)
    assert choose_l2(noisy, labels) == choose_l2(noisy.clone(), labels)


def test_l2_where_nothing_can_be_held_out(digits):
    train, labels, _, _ = digits
    first = torch.stack([(labels == label).nonzero()[0, 0] for label in range(10)])
    assert choose_l2(train[first], labels[first]) == DEFAULT_L2


def test_separable_data_stays_finite():
    features = torch.cat([torch.full((50, 1), -1.0), torch.full((50, 1), 1.0)])
    labels = torch.arange(2).repeat_interleave(50)
    probe = linear_probe(features, labels, l2=1e-3)
    assert probe.weight.abs().max() < 100
    assert linear_accuracy(features, labels, features, labels, l2=1e-3) == 100


@pytest.mark.filterwarnings("error")
def test_degenerate_sets(digits):
    train, labels, test, _ = digits
    alone = linear_probe(train, torch.zeros_like(labels))
    assert (alone.scores(test) == 0).all()
    assert linear_probe(train, torch.full_like(labels, 3), 10).scores(test).argmax(1).eq(3).all()
    few = linear_probe(train[:5], labels[:5], 100)  # more classes than images, more dimensions than images
    assert few.weight.shape == (100, 64)
    assert torch.equal(few.scores(train[:5]).argmax(1), labels[:5])
    assert linear_probe(train[:1], labels[:1], 10).scores(train[:1]).argmax(1).equal(labels[:1])
    # A collapsed network: nothing but the most frequent class is left.
    collapsed = linear_probe(torch.ones(9, 4), torch.tensor([0, 1, 1, 1, 1, 1, 2, 2, 2]))
    assert collapsed.scores(torch.ones(1, 4)).argmax(1).item() == 1
    # A test class never seen in training is simply missed.
    assert linear_accuracy(train, labels, test, torch.full((len(test),), 99)) == 0


def test_deterministic_in_any_gradient_mode(digits):
    train, labels, _, _ = digits
    first = linear_probe(train, labels)
    with torch.inference_mode():
        second = linear_probe(train.clone(), labels.clone())
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


def test_warns_when_it_stops_early(digits, monkeypatch):
    monkeypatch.setattr("us3l.evaluation.linear.MAX_ITERATIONS", 3)
    with pytest.warns(UserWarning, match="after 3 iterations"):
        linear_probe(*digits[:2])


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("NaN", {"train_features": torch.full((3, 3), float("nan"))}),
        ("needs a label", {"train_labels": torch.arange(2)}),
        ("is the data labelled", {"train_labels": -torch.ones(3, dtype=torch.int64)}),
        ("outside the 2 classes", {"num_classes": 2}),
        ("l2 > 0", {"l2": 0.0}),
        ("l2 > 0", {"l2": float("nan")}),
    ],
)
def test_bad_input_is_said_in_one_line(message, change):
    with pytest.raises(UserError, match=message) as error:
        linear_probe(**{"train_features": torch.eye(3), "train_labels": torch.arange(3)} | change)
    assert "\n" not in str(error.value)


def test_scores_check_their_features(digits):
    probe = linear_probe(*digits[:2])
    with pytest.raises(UserError, match="images x 64"):
        probe.scores(torch.ones(2, 3))
    with pytest.raises(UserError, match="1 of 2 images have NaN"):
        probe.scores(torch.stack([torch.zeros(64), torch.full((64,), float("nan"))]))
