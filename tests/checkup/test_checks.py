import math

import pytest
import torch

from us3l.checkup import checks
from us3l.checkup.checks import PlannedCheck, losses_of, plans, relative, training_difference

CPU = torch.device("cpu")


def test_losses_that_are_off_are_noticed(monkeypatch):
    """In 32 bits a CPU passes; a device whose second step is off by a hundredth does not."""
    found = {precision: losses_of(CPU, precision) for precision in ("64-true", "32-true")}
    assert len(found["32-true"]) == 2 * 3  # steps, and networks: the full one and two others
    monkeypatch.setattr(checks, "losses_of", lambda _, precision: found[precision])
    assert 0 < training_difference(CPU, "32-true") < 1e-3
    assert PlannedCheck("step", 1e-3, lambda: training_difference(CPU, "32-true")).carry_out().passed
    found["32-true"][-1] += 0.01 * found["64-true"].abs().max()
    failed = PlannedCheck("step", 1e-3, lambda: training_difference(CPU, "32-true")).carry_out()
    assert not failed.passed
    assert failed.difference == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("value", [0.1, math.nan, math.inf])
def test_a_difference_that_is_too_large_or_not_a_number_fails(value):
    assert not PlannedCheck("step", 1e-3, lambda: value).carry_out().passed


def test_whatever_goes_wrong_is_a_check_that_failed():
    def broken() -> float:
        raise RuntimeError("CUDA error: no kernel image is available\nfor execution on the device")

    found = PlannedCheck("step", 1e-3, broken).carry_out()
    assert (found.passed, found.detail) == (False, "RuntimeError: CUDA error: no kernel image is available")


def test_what_is_checked():
    assert [plan.name for plan in plans(CPU, "32-true")] == ["training step", "evaluation"]
    assert [plan.name for plan in plans(torch.device("cuda"), "bf16-mixed")] == [
        "training step",
        "training step in bf16-mixed",
        "evaluation",
        "no waits within a step",
    ]


def test_waits_are_left_to_cuda_to_find(monkeypatch):
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    checks.wait_free_step(CPU)
    assert modes == ["error", "default"]


def test_differences_are_relative_to_the_largest_value():
    assert relative(torch.tensor([10.0, 0.1]), torch.tensor([10.0, 0.2])) == pytest.approx(0.01)


def test_products_are_not_shortened_meanwhile():
    before = torch.backends.cudnn.allow_tf32
    with checks.exact():
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
