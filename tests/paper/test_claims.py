"""The queue of the claims keeps the protocol in docs/lab/protocol.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from us3l.paper import claims
from us3l.paper.cells import job_of
from us3l.paper.claims import CONTENDERS, ClaimQueue, Trial, queue_of
from us3l.paper.plans import plan_table
from us3l.paper.scales import scale_of
from us3l.paper.workspace import RunFigure, Workspace, key_of
from us3l.system.errors import UserError


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, scale_of("small"))


def measure(place: Workspace, trial: Trial, accuracy: float) -> None:
    for cell in trial.cells:
        place.elsewhere[key_of(cell, job_of(cell, place.scale, 0).name)] = RunFigure(accuracy)


def tuned(place: Workspace, accuracy: Callable[[Trial], float]) -> tuple[ClaimQueue, int]:
    """The queue when all trials are measured, and how many rounds that took."""
    for rounds in range(10):
        queue = queue_of(place)
        missing = [trial for tuning in queue.tunings.values() for trial in tuning.trials if not trial.score(place)]
        if not missing:
            return queue, rounds
        for trial in missing:
            measure(place, trial, accuracy(trial))
    raise AssertionError("tuning does not end")


def test_every_method_has_seven_trials_and_the_best_goes_on(place):
    queue, rounds = tuned(place, lambda trial: 20 - abs(trial.settings.get("lr", 0.2) - 0.4))
    assert rounds == 3
    for contender, tuning in queue.tunings.items():
        assert [trial.number for trial in tuning.trials] == [1, 2, 3, 4, 5, 6, 7], contender
        assert len({job_of(trial.cells[0], place.scale, 0).name for trial in tuning.trials}) == 7
        assert tuning.best == {"lr": 0.4}  # of equals the first
    assert queue.best is not None
    first = claims.four_methods(claims.SHORT)[0].cells(queue.best)[0]
    assert job_of(first, place.scale, 1).recipe.optimiser.lr == 0.4


def test_networks_alone_have_settings_for_wide_and_for_narrow_ones(place):
    def accuracy(trial: Trial) -> float:
        rate = trial.settings.get("lr", claims.LR)
        return 20 - rate if 1 in trial.contender.judged_at else 20 + rate

    queue, _ = tuned(place, accuracy)
    assert queue.best is not None
    cells = claims.alone_row(claims.SHORT).cells(queue.best)
    rates = [job_of(cell, place.scale, 1).recipe.optimiser.lr for cell in cells]
    assert rates == [0.0707107, 0.0707107, 0.565685, 0.565685]


def test_test_images_are_for_final_runs_alone(place):
    first = queue_of(place)
    assert {cell.split for cell in first.cells} == {"validation"}
    assert {job.recipe.seed for job in first.jobs} == {0}
    queue, _ = tuned(place, lambda _: 20.0)
    jobs, cells = queue.jobs, queue.cells
    assert all(job.recipe.validation and job.recipe.max_steps for job in jobs)
    for job in jobs:
        splits = {cell.split for cell in place.cells(job, cells)}
        assert "test" in splits if job.recipe.seed else splits == {"validation"}
    assert [bool(job.recipe.seed) for job in jobs] == sorted(bool(job.recipe.seed) for job in jobs)  # tuning first


def test_runs_are_counted_in_steps():
    for steps in (claims.SHORT, claims.MIDDLE, claims.LONG, claims.LONGEST):
        settings = claims.length(steps)
        assert settings["max_steps"] == steps <= settings["epochs"] * claims.EPOCH_STEPS < steps + claims.EPOCH_STEPS


def test_default_settings_are_those_of_the_first_trial(place):
    for contender in CONTENDERS:
        recipe = job_of(Trial(contender, 1, {}).cells[0], place.scale, 0).recipe
        assert (recipe.optimiser.lr, recipe.optimiser.weight_decay) == (claims.LR, claims.WEIGHT_DECAY)


def test_the_claims_have_rows_of_their_own(tmp_path):
    assert len(plan_table("claims", "small", out=tmp_path, absent_too=True).jobs) == 15
    for settings in ({"scale": "mini"}, {"scale": "small", "rows": [1]}, {"scale": "small", "seeds": 3}):
        with pytest.raises(UserError, match="of their own"):
            plan_table("claims", out=tmp_path, **settings)
