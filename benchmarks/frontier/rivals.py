"""Networks that others trained for one size each, which one may download."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

WORKER = Path(__file__).with_name("litert_worker.py")


@dataclass(frozen=True)
class Rival:
    """A network in a LiteRT file."""

    title: str
    file: str
    size: int
    macs: float
    """Millions of multiply-accumulates per image, as its authors state them."""


RIVALS = (
    Rival("MobileNetV1 0.25@128", "mobilenet_v1_0.25_128_quant.tflite", 128, 14),
    Rival("MobileNetV1 0.5@160", "mobilenet_v1_0.5_160_quant.tflite", 160, 77),
    Rival("MobileNetV1 0.75@192", "mobilenet_v1_0.75_192_quant.tflite", 192, 239),
)


class LiteRT:
    """A rival that runs in a process of its own, by a Python that has ai-edge-litert.

    Args:
        python: That interpreter.
        path: The rival's file.
    """

    def __init__(self, python: Path, path: Path) -> None:
        self.process = subprocess.Popen(
            [str(python), str(WORKER), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, *words: str) -> str:
        """Send a command; return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the LiteRT process ended while it was asked to {words[0]}")
        return answer.strip()

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the average pool's output of uint8 images (N x H x W x 3)."""
        with tempfile.TemporaryDirectory() as folder:
            given, result = Path(folder) / "images.npy", Path(folder) / "features.npy"
            np.save(given, images)
            self.ask("features", str(given), str(result))
            return np.load(result)

    def seconds(self, count: int = 20) -> float:
        """Return the seconds of the quickest of some runs on one image."""
        return float(self.ask("time", str(count)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
