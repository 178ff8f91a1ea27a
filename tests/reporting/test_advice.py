"""When can I stop? On made curves."""

import math
import re
from pathlib import Path

import pytest

from us3l.commands.screen import as_typed
from us3l.reporting.advice import advise, longer_run
from us3l.run.training_log import Gauges, StepRecord


def records(curve, looks=10, steps=1000, spread=0.9):
    """Gauges of two widths: LiDAR at 0.25x follows the curve, a function of the share of the run; others are steady."""
    found = [StepRecord(steps // 2, 1, 0.1, [1.0], [1.0]), StepRecord(steps - 1, 1, 0.02, [1.0], [1.0])]
    for look in range(1, looks + 1):
        narrow = {"spread": spread, "rankme": 20.0, "lidar": curve(look / looks), "agreement": 40.0}
        gauges = {"1": {"spread": 0.9, "rankme": 80.0, "lidar": 60.0}, "0.25": narrow}
        found.append(Gauges(steps * look // looks - 1, look, gauges))
    return found


def steady(_share):
    return 10


def jumping(share):
    return 10 + 2 * (-1) ** round(10 * share)


def flat(share):
    return 10 + math.exp(-8 * share)


def rising(share):
    return 5 + 5 * share


@pytest.mark.parametrize(
    ("curve", "looks", "verdict", "longer", "words"),
    [
        (flat, 6, "settled", True, "no gauge of any width changed .* cosine, .* only a longer run"),
        (flat, 10, "settled", True, "you can stop here"),
        (rising, 6, "changing", True, "^Train longer: .* LiDAR at 0.25x rose by 21 %"),
        (rising, 10, "changing", True, "^Train longer: .* LiDAR at 0.25x rose by 19 %"),
        (lambda share: 10 - 3 * share, 10, "changing", True, "^It has not settled: .* fell by"),
        (lambda share: 10 if share < 0.7 else 20 * (1.05 - share), 10, "collapsing", False, "LiDAR at 0.25x fell by"),
        (jumping, 10, "noisy", False, "LiDAR at 0.25x jumps"),
        (lambda share: jumping(share) + 30 * share, 10, "changing", True, "rose by"),  # by more than the noise
        (steady, 1, "short", False, "1 looks"),
        (steady, 5, "short", False, "5 looks"),
    ],
)
def test_what_a_finished_run_is_told(curve, looks, verdict, longer, words):
    advice = advise(records(curve, looks), finished=True)
    assert (advice.verdict, advice.longer) == (verdict, longer)
    assert re.search(words, advice.text)


def test_a_collapse_at_the_end():
    advice = advise(records(steady, spread=0.05), finished=True)
    assert (advice.verdict, advice.longer) == ("collapsing", False)
    assert "collapsed at 0.25x" in advice.text


@pytest.mark.parametrize(
    ("curve", "verdict", "words"),
    [(rising, "changing", "^Not yet: so far"), (steady, "settled", "20% of its highest.* let the run end")],
)
def test_a_run_that_has_not_ended(curve, verdict, words):
    advice = advise(records(curve), finished=False)
    assert (advice.verdict, advice.longer) == (verdict, False)
    assert re.search(words, advice.text)


def test_runs_of_earlier_versions_get_no_advice():
    old = [Gauges(9, 1, {"1": {"spread": 0.9, "knn": 50.0}})]
    assert advise(old, finished=True) is advise([], finished=True) is None


def test_the_command_for_a_longer_run():
    call = longer_run(Path("my runs/a"), Path("my runs/a/config.yaml"), 15)
    assert as_typed(call) == "us3l pretrain --config 'my runs/a/config.yaml' --epochs 30 --out 'my runs/a-longer'"
    assert "max_steps=200" in longer_run(Path("a"), Path("a/config.yaml"), 15, 100)
