"""Runs a LiteRT network for another process, which may lack the package: `python litert_worker.py MODEL`.

It needs only numpy and ai-edge-litert. Each line that it reads is a command, each line that it writes the answer:

    features IMAGES.npy FEATURES.npy    uint8 images (N x H x W x 3) in, the average pool's output (N x C) out
    time COUNT                          run the network on one image so many times; the seconds of the quickest
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

POOL = "AvgPool"


def open_network(path: str, keep_all: bool) -> Any:
    """Return the network on one thread; its inner tensors can be read only if all are kept, which costs time."""
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-not-found, unused-ignore]

    network = Interpreter(path, num_threads=1, experimental_preserve_all_tensors=keep_all)
    network.allocate_tensors()
    return network


def pooled(network: Any) -> dict[str, Any]:
    """Return the description of the average pool's output."""
    return next(each for each in network.get_tensor_details() if each["name"].endswith(POOL))


def features(network: Any, images: np.ndarray) -> np.ndarray:
    """Return the average pool's output of each image, as numbers."""
    given, pool = network.get_input_details()[0], pooled(network)
    scale, zero = pool["quantization"]
    rows = []
    for image in images:
        network.set_tensor(given["index"], image[None])
        network.invoke()
        rows.append((network.get_tensor(pool["index"]).reshape(-1).astype(np.float32) - zero) * scale)
    return np.stack(rows)


def quickest(network: Any, count: int) -> float:
    """Return the seconds of the quickest of some runs on one image."""
    given = network.get_input_details()[0]
    network.set_tensor(given["index"], np.random.default_rng(0).integers(0, 256, given["shape"]).astype(np.uint8))
    best = float("inf")
    for _ in range(count):
        started = time.perf_counter()
        network.invoke()
        best = min(best, time.perf_counter() - started)
    return best


def main(path: str) -> None:
    readable, fast = open_network(path, keep_all=True), open_network(path, keep_all=False)
    for line in sys.stdin:
        command, *values = line.rstrip("\n").split("\t")
        if command == "features":
            images = np.load(values[0])
            np.save(values[1], features(readable, images))
            print(len(images), flush=True)
        elif command == "time":
            print(quickest(fast, int(values[0])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
