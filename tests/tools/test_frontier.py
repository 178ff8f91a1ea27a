"""The table of the built-in network beside its rivals."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.frontier import litert_worker
from benchmarks.frontier.rivals import LiteRT
from benchmarks.frontier.table import table

SCORED = {"photos": 80.0, "photos linear": 81.0, "pets": 60.0, "pets linear": 61.0}


def test_the_best_sub_network_under_each_cost_is_shown() -> None:
    ours = [
        {"network": "0.25x@128", "mmacs": 11.7, **SCORED},
        {"network": "0.5x@128", "mmacs": 31.0, **SCORED, "pets": 70.0},
    ]
    rivals = [{"network": "small", "mmacs": 14, **SCORED}, {"network": "large", "mmacs": 77, **SCORED}]
    lines = table({"ours": ours, "rivals": rivals, "milliseconds": {"large": 2.0, "0.5x@128": 1.5}}).splitlines()
    assert len(lines) == 6
    assert lines[3].count("(0.25x@128)") == 4
    assert "70.0 (0.5x@128)" in lines[5]
    assert lines[4].startswith("| large | 77 | 2.0 | 80.0 |")


class Pretended:
    """A network of LiteRT's interface whose average pool is the mean colour."""

    def get_input_details(self) -> list[dict]:
        return [{"index": 0, "shape": np.array([1, 4, 4, 3])}]

    def get_tensor_details(self) -> list[dict]:
        return [{"index": 5, "name": "Logits/AvgPool", "quantization": (0.5, 10)}]

    def set_tensor(self, index: int, value: np.ndarray) -> None:
        assert index == 0
        self.image = value

    def invoke(self) -> None:
        self.pool = self.image.mean(axis=(1, 2)).astype(np.uint8)

    def get_tensor(self, index: int) -> np.ndarray:
        assert index == 5
        return self.pool.reshape(1, 1, 1, -1)


def test_features_of_a_rival_are_numbers_again() -> None:
    images = np.stack([np.full((4, 4, 3), 20, np.uint8), np.full((4, 4, 3), 12, np.uint8)])
    assert litert_worker.features(Pretended(), images).tolist() == [[5.0] * 3, [1.0] * 3]
    assert 0 < litert_worker.quickest(Pretended(), 3) < 1


def test_a_worker_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with LiteRT(Path(sys.executable), tmp_path / "missing.tflite") as rival, pytest.raises(RuntimeError, match="ended"):
        rival.seconds()
