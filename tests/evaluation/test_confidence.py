import pytest
import torch

from us3l.evaluation.confidence import confidence, fit_temperature
from us3l.evaluation.linear import choose_l2, choose_penalty


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
    good, bad = (confidence((factor * logits).softmax(1), labels) for factor in (1.0, 4.0))
    assert good.calibration_error < 3 < 10 < bad.calibration_error
    assert good.accuracy[1.0] == bad.accuracy[1.0]  # a factor changes no answer


def test_who_abstains_is_right_more_often():
    logits, labels = drawn()
    found = confidence(logits.softmax(1), labels, (1.0, 0.5, 0.1))
    assert found.accuracy[1.0] == pytest.approx(100 * (logits.argmax(1) == labels).double().mean().item())
    assert found.accuracy[1.0] < found.accuracy[0.5] < found.accuracy[0.1]
    sure = logits.softmax(1).max(1).values
    assert (sure >= found.threshold[0.5]).double().mean().item() == pytest.approx(0.5, abs=1e-3)


def test_of_a_few_images_the_surest_one_is_answered():
    found = confidence(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), (1.0, 0.1))
    assert found.accuracy == {1.0: 50.0, 0.1: 100.0}


def test_the_penalty_brings_its_temperature_from_labels_that_were_held_out():
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    features = torch.randn(300, 6, generator=draw) + torch.eye(3, 6)[labels]
    l2, temperature = choose_penalty(features, labels)
    assert l2 == choose_l2(features, labels)
    assert 0.2 < temperature < 5
    assert choose_penalty(features[:3], labels[:3])[1] is None  # no class has an image to spare
