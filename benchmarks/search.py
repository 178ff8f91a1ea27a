"""Does a search without labels find better networks? See `--help` of each part.

`tau`: Kendall's tau of the label-free scores, and of MACs, with the accuracy of random sub-networks.
`compare`: what searches find, against plain widths, at equal MACs or equal measured latency.
`depth`: pairs of a width and a depth, against widths alone.

All accuracies are those of images that no search saw. What was measured is kept in a file, so that a part that was
stopped goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import numpy as np
import torch
import tyro

from us3l.data.images import ImageSet
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.evaluation.frozen import evaluate_frozen
from us3l.evaluation.unlabelled import rankme
from us3l.files import write_json
from us3l.run import Run
from us3l.searching.judging import SCORES, Judge
from us3l.searching.pricing import Prices
from us3l.searching.space import Space
from us3l.slimmable import Slimmable
from us3l.width import Width, encode

RESAMPLES = 2000


@dataclass(frozen=True)
class Measured:
    """A run's network, labelled images to judge by, and what was measured already, in a file."""

    run: Path
    data: str
    kept: Path
    train_images: int = 5000
    test_images: int = 5000

    def __post_init__(self) -> None:
        torch.set_num_threads(1)

    def open(self) -> tuple[Slimmable, Preprocessing, ImageSet, ImageSet]:
        net = Run(self.run).network
        preprocessing = Preprocessing.of(net)
        train = load(self.data, "train", preprocessing.resize, self.train_images)
        return net, preprocessing, train, load(self.data, "test", preprocessing.resize, self.test_images)

    def read(self) -> dict[str, Any]:
        return json.loads(self.kept.read_text()) if self.kept.exists() else {}


def accuracies(net: Slimmable, width: Width, train: ImageSet, test: ImageSet) -> dict[str, float]:
    """kNN and linear probe of one sub-network, which is calibrated on the training images."""
    (found,) = evaluate_frozen(net, train, test, [width], floor=False).results
    net.set_statistics(width, None)
    assert found.knn is not None
    assert found.linear is not None
    return {"knn": found.knn, "linear": found.linear}


def tau(figure: Sequence[float], accuracy: Sequence[float]) -> tuple[float, float, float]:
    """Kendall's tau, and the ends of its 95 % interval by resampling the networks."""
    x, y = np.array(figure), np.array(accuracy)
    agree = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    generator, found = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        weight = np.bincount(generator.integers(len(x), size=len(x)), minlength=len(x))
        pairs = weight @ (1 - np.eye(len(x))) @ weight
        found.append(weight @ agree @ weight / pairs)
    low, high = np.percentile(found, (2.5, 97.5))
    return float(agree.sum() / (len(x) * (len(x) - 1))), float(low), float(high)


@dataclass(frozen=True)
class Tau(Measured):
    """Random sub-networks: which figure that needs no labels ranks them as their accuracy does?"""

    count: int = 40
    """Sub-networks."""
    images: int = 768
    """Unlabelled images for the scores: of the training images, the first ones."""
    depth: bool = False
    """Leave out blocks too."""

    def work(self) -> None:
        net, preprocessing, train, test = self.open()
        space, random, kept = Space.of(net, self.depth), Random(0), self.read()
        pixels = preprocessing.apply(train.images[: self.images])
        prices = Prices(net, preprocessing.size, {})
        judge = Judge(net, pixels)
        widths: list[Width] = []
        while len(widths) < self.count:
            width = net.canonical(space.subnet(space.drawn(random)))
            widths += [] if width in widths else [width]
        for width in widths:
            if encode(width) in kept:
                continue
            features = judge.features(width)
            figures = {str(name): score(features, judge.full) for name, score in SCORES.items()}
            figures |= {"rankme": rankme(features), "macs": prices(width)["macs"], "params": prices(width)["params"]}
            kept[encode(width)] = figures | accuracies(net, width, train, test)
            write_json(self.kept, kept)
        rows = [kept[encode(width)] for width in widths]
        print(f"{len(rows)} sub-networks of {self.run}, {self.images} unlabelled images; linear probe and kNN learned")
        print(f"from {len(train)} and tested on {len(test)} images of {self.data}; depth: {self.depth}")
        print("| figure | tau with the linear probe | 95 % interval | tau with kNN | 95 % interval |")
        print("| --- | --- | --- | --- | --- |")
        for name in ("neighbours", "cka", "rankme", "macs", "params"):
            cells = []
            for kind in ("linear", "knn"):
                value, low, high = tau([row[name] for row in rows], [row[kind] for row in rows])
                cells.append(f"{value:+.2f} | {low:+.2f} to {high:+.2f}")
            print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    command: Any = tyro.cli(Annotated[Tau, tyro.conf.subcommand("tau")])
    started = time.monotonic()
    command.work()
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
