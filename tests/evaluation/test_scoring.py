import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import recall_score, top_k_accuracy_score

from us3l.evaluation.linear import choose_l2, choose_penalty
from us3l.evaluation.scoring import confidence, fit_temperature, fit_threshold, mean_score, score, wilson


@pytest.fixture
def judged():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 8
    scores = torch.randn(200, 8, generator=generator) + 2 * torch.nn.functional.one_hot(labels, 8)
    return scores, labels


def test_scores_equal_scikit_learns(judged):
    scores, labels = judged
    found = score(scores, labels)
    assert found.top5 == pytest.approx(100 * top_k_accuracy_score(labels, scores, k=5))
    assert found.top1 == pytest.approx(100 * top_k_accuracy_score(labels, scores, k=1))
    assert found.per_class == pytest.approx(100 * recall_score(labels, scores.argmax(1), average=None))
    assert found.deviation is None


@pytest.mark.parametrize(("correct", "count"), [(0, 7), (7, 7), (50, 100), (3, 1000), (9_000, 10_000)])
def test_the_interval_is_wilsons(correct, count):
    expected = binomtest(correct, count).proportion_ci(0.95, "wilson")
    assert wilson(100 * correct / count, count) == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-4)


def test_few_classes_and_classes_without_test_images():
    found = score(torch.eye(3), torch.tensor([0, 1, 1]), 3)
    assert (found.top5, found.per_class) == (None, (100.0, 50.0, None))


def test_mean_over_seeds(judged):
    scores, labels = judged
    one, other = score(scores, labels), score(scores.roll(1, 0), labels)
    both = mean_score([one, other], 200)
    assert both.top1 == (one.top1 + other.top1) / 2
    assert both.deviation == pytest.approx(abs(one.top1 - other.top1) / 2**0.5)
    assert both.seeds == 2
    assert both.low < both.top1 < both.high
    assert mean_score([one], 200) is one


def test_top5_counts_only_classes_that_were_guessed():
    votes = torch.zeros(10, 10)
    votes[:, 7], votes[:, 8] = 0.6, 0.4  # the neighbours are of two classes
    found = score(votes, torch.arange(10))  # three of the others are among the five largest, by chance
    assert (found.top1, found.top5) == (10.0, 20.0)
    assert score(torch.zeros(2, 10), torch.tensor([0, 1])).top5 >= 50


def drawn(count=4000, classes=5, seed=0):
    """Logits, and labels that are drawn by their softmax: they are calibrated."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=draw)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_temperature_undoes_a_factor(factor):
    logits, labels = drawn()
    assert fit_temperature(factor * logits, labels) == pytest.approx(factor, rel=0.08)


def test_calibrated_probabilities_have_a_small_error():
    logits, labels = drawn()
    good, bad = (confidence(*answers(factor * logits, labels)) for factor in (1.0, 4.0))
    assert good.calibration_error < 3 < 10 < bad.calibration_error
    assert good.accuracy[1.0] == bad.accuracy[1.0]  # a factor changes no answer


def test_who_abstains_is_right_more_often():
    logits, labels = drawn()
    found = confidence(*answers(logits, labels), coverages=(1.0, 0.5, 0.1))
    assert found.accuracy[1.0] == pytest.approx(100 * (logits.argmax(1) == labels).double().mean().item())
    assert found.accuracy[1.0] < found.accuracy[0.5] < found.accuracy[0.1]
    sure = logits.softmax(1).max(1).values
    assert (sure >= found.threshold[0.5]).double().mean().item() == pytest.approx(0.5, abs=1e-3)


def test_of_a_few_images_the_surest_one_is_answered():
    found = confidence(torch.tensor([0.9, 0.6]), torch.tensor([True, False]), (1.0, 0.1))
    assert found.accuracy == {1.0: 50.0, 0.1: 100.0}


def test_the_penalty_brings_its_temperature_from_labels_that_were_held_out():
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    features = torch.randn(300, 6, generator=draw) + torch.eye(3, 6)[labels]
    l2, temperature, threshold = choose_penalty(features, labels)
    assert l2 == choose_l2(features, labels)
    assert 0.2 < temperature < 5
    assert 0 < threshold <= 1
    assert choose_penalty(features[:3], labels[:3])[1:] == (None, None)  # no class has an image to spare


def answers(logits, labels):
    """Return how sure the classifier is of each image, and whether it is right."""
    sure, guess = logits.softmax(1).max(1)
    return sure, guess == labels


def test_from_the_threshold_on_the_share_is_right_and_below_it_is_not():
    logits, labels = drawn()
    sure, right = answers(logits, labels)
    threshold = fit_threshold(sure, right, 0.9)
    assert right[sure >= threshold].double().mean() >= 0.9
    lower = sure[sure < threshold].max()
    assert right[sure >= lower].double().mean() < 0.9
    assert fit_threshold(sure, torch.zeros_like(right)) == 1
    assert fit_threshold(torch.tensor([0.9, 0.7, 0.7]), torch.tensor([True, True, False]), 0.9) == pytest.approx(0.9)
