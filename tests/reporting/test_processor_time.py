"""What benchmarks/processor_time.py says of one training and of nine."""

from dataclasses import replace

import pytest

from benchmarks.processor_time import Evaluated, Trained, averaged, nine_minutes, reaches
from us3l.evaluation.prepare import NINE_WIDTHS
from us3l.training.recipes import Recipe
from us3l.training.run_config import RunConfig


def ours(minutes: float, accuracy: float) -> Trained:
    return Trained(None, 1, minutes, {0.5: accuracy})


def test_when_one_training_is_as_good():
    runs = [ours(1, 10.0), ours(10, 20.0), ours(100, 30.0)]
    assert reaches(runs, 0.5, 5.0) == 1
    assert reaches(runs, 0.5, 15.0) == pytest.approx(10**0.5)
    assert reaches(runs, 0.5, 20.0) == pytest.approx(10)
    assert reaches(runs, 0.5, 31.0) is None


def test_nine_networks_one_after_another():
    seconds = dict.fromkeys(NINE_WIDTHS, 2.0) | {1.0: 4.0, None: 9.0}
    assert nine_minutes(seconds, 30) == 0.5 * (8 * 2 + 4)


def test_seeds_are_averaged_and_times_are_those_of_steps():
    def run(alone: float | None, epochs: int, steps: int, accuracy: float) -> Evaluated:
        network = replace(Recipe().network, individual=alone)
        config = RunConfig(recipe=replace(Recipe(), network=network, epochs=epochs))
        return Evaluated(config, steps, {0.5: accuracy})

    runs = [run(0.5, 3, 60, 10.0), run(0.5, 3, 60, 20.0), run(None, 3, 60, 30.0), run(None, 1, 20, 4.0)]
    alone, long, short = averaged(runs, {0.5: 1.0, None: 3.0})
    assert (alone.alone, alone.minutes, alone.linear, alone.seeds) == (0.5, 1.0, {0.5: 15.0}, 2)
    assert (long.alone, long.epochs, long.minutes, long.linear) == (None, 3, 3.0, {0.5: 30.0})
    assert (short.epochs, short.minutes, short.seeds) == (1, 1.0, 1)
