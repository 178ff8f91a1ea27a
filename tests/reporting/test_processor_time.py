"""What benchmarks/processor_time.py says of one training and of nine."""

import pytest

from benchmarks.processor_time import Trained, nine_minutes, reaches


def ours(minutes: float, accuracy: float) -> Trained:
    return Trained(None, 1, minutes, {0.5: accuracy})


def test_when_one_training_is_as_good():
    runs = [ours(1, 10.0), ours(10, 20.0), ours(100, 30.0)]
    assert reaches(runs, 0.5, 5.0) == 1
    assert reaches(runs, 0.5, 15.0) == pytest.approx(10**0.5)
    assert reaches(runs, 0.5, 20.0) == pytest.approx(10)
    assert reaches(runs, 0.5, 31.0) is None


def test_nine_networks_one_after_another():
    alone = [Trained(width, 1, 10 * width, {width: 1.0}) for width in (0.25, 1.0)]
    assert nine_minutes(alone) == pytest.approx(10 * (1 + 0.9 + 0.8 + 0.7 + 0.6 + 0.5 + 0.4 + 0.3 + 0.25))
