"""Every loss has a row, and what its row says of it is true of its function."""

from inspect import signature
from typing import get_args

import pytest
import torch

from us3l.objective import losses
from us3l.objective.loss_table import (
    BASE_LOSSES,
    DISTILL_LOSSES,
    TEACHER_LOSSES,
    BaseLoss,
    DistillLoss,
    TeacherLoss,
)
from us3l.objective.spec import Objective

ROWS = {
    f"{kind} {name}": loss
    for kind, table in (("base", BASE_LOSSES), ("distillation", DISTILL_LOSSES), ("teacher", TEACHER_LOSSES))
    for name, loss in table.items()
}


def test_every_loss_has_a_row():
    assert set(get_args(BaseLoss)) == set(BASE_LOSSES)
    assert set(get_args(DistillLoss)) == {"none", *DISTILL_LOSSES}
    assert set(get_args(TeacherLoss)) == set(TEACHER_LOSSES)


def sees_other_samples(loss) -> bool:
    """Whether the pull on the first output changes when other samples, or earlier ones, change."""
    generator = torch.Generator().manual_seed(0)

    def random_units(count):
        return losses.unit(torch.randn(count, 6, generator=generator))

    values = {"temperature": 0.5, "teacher_temperature": 0.5, "relation_temperature": 0.5}
    function = getattr(losses, loss.function)
    first, target = random_units(1), random_units(1)
    pulls = []
    for _ in range(2):
        z, t = torch.cat([first, random_units(4)]).requires_grad_(), torch.cat([target, random_units(4)])
        settings = {
            name: random_units(9) if name == "queue" else values[name]
            for name in [*signature(function).parameters][2:]
            if name != "peers"
        }
        pulls.append(torch.autograd.grad(function(z, t, **settings), z)[0][0])
    return not torch.allclose(*pulls)


@pytest.mark.parametrize("name", [name for name, loss in ROWS.items() if loss.projected])
def test_an_absolute_loss_is_one_that_compares_an_output_with_its_own_target_only(name):
    assert ROWS[name].absolute == (not sees_other_samples(ROWS[name]))


@pytest.mark.parametrize("name", ROWS)
def test_a_temperature_is_a_parameter_of_the_function(name):
    parameters = signature(getattr(losses, ROWS[name].function)).parameters
    assert (ROWS[name].temperature in parameters) == any("temperature" in parameter for parameter in parameters)
    assert ROWS[name].queue == ("queue" in parameters)


def test_guidelines_one_and_two_are_met_by_losses_that_see_other_samples():
    for base in ("mse", "infonce"):
        for distillation in ("mse", "infonce", "nt-xent"):
            met = Objective(base_loss=base, distill_loss=distillation).guidelines
            assert met[1] == sees_other_samples(BASE_LOSSES[base])
            assert met[2] == sees_other_samples(DISTILL_LOSSES[distillation])
