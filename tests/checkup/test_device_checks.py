import math

import pytest
import torch

from us3l.checkup import device_checks
from us3l.checkup.device_checks import PlannedCheck, losses_of, planned_checks, relative, training_difference

CPU = torch.device("cpu")


def test_losses_that_are_off_are_noticed(monkeypatch):
    """In 32 bits a CPU passes; a device whose second step is off by a hundredth does not."""
    found = {precision: losses_of(CPU, precision) for precision in ("64-true", "32-true")}
    assert len(found["32-true"]) == 2 * 3  # steps, and networks: the full one and two others
    monkeypatch.setattr(device_checks, "losses_of", lambda _, precision: found[precision])
    assert 0 < training_difference(CPU, "32-true") < 1e-3
    assert PlannedCheck("step", 1e-3, lambda: training_difference(CPU, "32-true")).run().passed
    found["32-true"][-1] += 0.01 * found["64-true"].abs().max()
    failed = PlannedCheck("step", 1e-3, lambda: training_difference(CPU, "32-true")).run()
    assert not failed.passed
    assert failed.difference == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("value", [0.1, math.nan, math.inf])
def test_a_difference_that_is_too_large_or_not_a_number_fails(value):
    assert not PlannedCheck("step", 1e-3, lambda: value).run().passed


def test_whatever_goes_wrong_is_a_check_that_failed():
    def broken() -> float:
        raise RuntimeError("CUDA error: no kernel image is available\nfor execution on the device")

    found = PlannedCheck("step", 1e-3, broken).run()
    assert (found.passed, found.detail) == (False, "RuntimeError: CUDA error: no kernel image is available")


def test_what_is_checked():
    assert [check.name for check in planned_checks(CPU, "32-true")] == ["training step", "evaluation"]
    assert [check.name for check in planned_checks(torch.device("cuda"), "bf16-mixed")] == [
        "training step",
        "training step in bf16-mixed",
        "evaluation",
    ]


def test_differences_are_relative_to_the_largest_value():
    assert relative(torch.tensor([10.0, 0.1]), torch.tensor([10.0, 0.2])) == pytest.approx(0.01)


def test_products_are_not_shortened_meanwhile():
    before = torch.backends.cudnn.allow_tf32
    with device_checks.exact():
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
