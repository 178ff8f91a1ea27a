"""When can I stop? On made curves."""

import math
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


@pytest.mark.parametrize("looks", [6, 8, 10])
def test_flat_curves(looks):
    advice = advise(records(lambda share: 10 + math.exp(-8 * share), looks), finished=True)
    assert (advice.verdict, advice.longer) == ("settled", True)
    assert advice.text.startswith("The gauges have settled: from the third quarter to the last, no gauge of any width")
    assert "you can stop here" in advice.text
    assert "cosine" in advice.text
    assert "only a longer run can show" in advice.text


@pytest.mark.parametrize(("looks", "percent"), [(6, 21), (8, 20), (10, 19)])
def test_a_rising_curve(looks, percent):
    advice = advise(records(lambda share: 5 + 5 * share, looks), finished=True)
    assert (advice.verdict, advice.longer) == ("changing", True)
    rise = f"LiDAR at 0.25x rose by {percent} %"
    assert advice.text == f"Train longer: from the third quarter to the last, {rise}."


def test_a_curve_that_falls_a_little():
    advice = advise(records(lambda share: 10 - 3 * share), finished=True)
    assert advice.verdict == "changing"
    assert advice.text.startswith("It has not settled: ")
    assert "fell by" in advice.text


def test_a_collapsing_curve():
    advice = advise(records(lambda share: 10 if share < 0.7 else 20 * (1.05 - share)), finished=True)
    assert (advice.verdict, advice.longer) == ("collapsing", False)
    assert "LiDAR at 0.25x fell by" in advice.text
    gone = advise(records(steady, spread=0.05), finished=True)
    assert (gone.verdict, gone.longer) == ("collapsing", False)
    assert "collapsed at 0.25x" in gone.text


def test_a_noisy_curve():
    advice = advise(records(jumping), finished=True)
    assert advice.verdict == "noisy"
    assert "LiDAR at 0.25x jumps" in advice.text
    # A rise that is larger than the noise is seen in spite of it.
    assert advise(records(lambda share: jumping(share) + 30 * share), finished=True).verdict == "changing"


@pytest.mark.parametrize("looks", [1, 3, 5])
def test_too_short(looks):
    advice = advise(records(steady, looks), finished=True)
    assert advice.verdict == "short"
    assert f"there are {looks} looks" in advice.text


def test_a_run_that_has_not_ended():
    rising = advise(records(lambda share: 5 + 5 * share), finished=False)
    assert (rising.text.split(",")[0], rising.longer) == ("Not yet: so far", False)
    settled = advise(records(steady), finished=False)
    assert (settled.verdict, settled.longer) == ("settled", False)
    assert "20% of its highest" in settled.text
    assert "let the run end" in settled.text


def test_runs_of_earlier_versions_get_no_advice():
    old = [Gauges(9, 1, {"1": {"spread": 0.9, "knn": 50.0}})]
    assert advise(old, finished=True) is advise([], finished=True) is None


def test_the_command_for_a_longer_run():
    call = longer_run(Path("my runs/a"), Path("my runs/a/config.yaml"), 15)
    assert as_typed(call) == "us3l pretrain --config 'my runs/a/config.yaml' --epochs 30 --out 'my runs/a-longer'"
    assert "max_steps=200" in longer_run(Path("a"), Path("a/config.yaml"), 15, 100)
