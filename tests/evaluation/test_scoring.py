import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import recall_score, top_k_accuracy_score

from us3l.evaluation.scoring import mean_score, score, wilson


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
