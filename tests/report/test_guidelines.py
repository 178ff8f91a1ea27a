import math

import pytest
import torch

from us3l.report.guidelines import rotated, rotation_figure


def test_the_rotation_is_that_of_equations_9_and_10(tmp_path):
    degrees, temperature = 40.0, 0.5
    z, gradients = rotated(degrees)
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=z.dtype)
    still = torch.eye(2, dtype=z.dtype) - turn
    before, after = gradients["MSE"]
    torch.testing.assert_close(after - before, z @ still.T)
    weights = (z @ z.T / temperature).softmax(dim=1)
    before, after = gradients["InfoNCE"]
    torch.testing.assert_close(after - before, (z - weights @ z) @ still.T)

    def mean_change(loss: str) -> float:
        before, after = gradients[loss]
        return (after - before).norm(dim=1).mean().item()

    assert mean_change("InfoNCE") < 0.7 * mean_change("MSE") == pytest.approx(1.4 * math.sin(angle / 2))
    rotation_figure(tmp_path / "rotation.png", degrees)
    assert (tmp_path / "rotation.png").stat().st_size > 10_000
