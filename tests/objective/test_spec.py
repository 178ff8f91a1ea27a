"""Short runs are scaled-down long runs: the teacher's memory is a share of the steps."""

import math
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

from us3l.objective.spec import PAPER_STEPS, Objective, memory, momentum
from us3l.system.errors import UserError
from us3l.training.loop import teacher_phrase
from us3l.training.recipes import RECIPES, Network, named, twin
from us3l.training.run_config import RunConfig, changed
from us3l.training.trainer import Trainer

SCALED = Objective(teacher_momentum=None)


def test_the_papers_run_has_the_papers_momentum_and_shorter_ones_its_power():
    assert PAPER_STEPS == 38_800
    assert 1 - SCALED.teacher_rate(0, 38_800) == pytest.approx(0.99, abs=1e-12)
    for steps in (1, 230, 2_145, 100_000):
        assert 1 - SCALED.teacher_rate(0, steps) == pytest.approx(0.99 ** (38_800 / steps), rel=1e-9, abs=1e-12)
    assert memory(momentum(0.1, 50), 50) == pytest.approx(0.1)


def test_a_momentum_by_hand_wins_and_is_exact():
    assert Objective(teacher_momentum=0.9, teacher_memory=0.5).teacher_rate(3, 10) == 1 - 0.9
    rising = Objective(teacher_schedule="cosine")
    assert rising.teacher_rate(5, 20) == (1 - 0.99) * (1 + math.cos(math.pi * (5 / 20))) / 2
    mine = changed(RunConfig(recipe=named("mini")), teacher_momentum=0.9).recipe.objective
    assert mine.teacher_rate(0, 230) == 1 - 0.9


def test_a_teacher_on_a_schedule_averages_over_the_papers_share_at_every_moment():
    long, short = 29_100, 291
    paper = Objective(teacher_schedule="cosine")
    ours = replace(paper, teacher_momentum=None, teacher_memory=memory(0.99, long))
    for progress in (0.0, 0.25, 0.5, 0.9):
        kept = 1 - paper.teacher_rate(int(progress * long), long)
        assert 1 - ours.teacher_rate(int(progress * short), short) == pytest.approx(kept ** (long / short), rel=0.02)


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith(("cifar", "imagenet"))])
def test_twins_follow_from_the_papers_recipes(name):
    paper, ours = named(name), named(twin(name)).objective
    assert paper.objective.teacher_momentum == 0.99
    images = 1_281_167 if name.startswith("imagenet") else 50_000
    steps = paper.epochs * (images // 512)
    assert ours.teacher_momentum is None
    assert 1 - ours.teacher_rate(0, steps) == pytest.approx(0.99, abs=1e-12)


def test_a_step_moves_the_teacher_by_the_share_of_the_run(tiny_digits):
    objective = replace(SCALED, hidden=16, predictor=16, dim=8, teacher_memory=0.5)
    recipe = replace(
        named("digits"), network=Network(base=8), objective=objective, batch_size=16, max_steps=4, epochs=9
    )
    recipe = replace(recipe, views=replace(recipe.views, size=8))
    trainer = Trainer(recipe, tiny_digits, Fabric(accelerator="cpu"))
    trainer.train_step()
    before = trainer.learner.teacher[0].conv1.weight.clone()
    student = trainer.learner.net.full.conv1.weight.detach().clone()
    trainer.train_step()
    kept = math.exp(-1 / (0.5 * 4))
    torch.testing.assert_close(trainer.learner.teacher[0].conv1.weight, kept * before + (1 - kept) * student)


def test_a_run_says_its_momentum():
    assert teacher_phrase(SCALED, 2_145) == "; teacher momentum 0.8338"
    assert teacher_phrase(Objective(teacher_schedule="cosine"), 10) == "; teacher momentum 0.99, rising to 1"
    assert teacher_phrase(Objective(momentum_base=False, momentum_sub=False), 10) == ""


@pytest.mark.parametrize("values", [{"teacher_momentum": 1.1}, {"teacher_memory": 0.0}])
def test_nonsense_is_refused(values):
    with pytest.raises(UserError, match=next(iter(values))):
        Objective(**values)
