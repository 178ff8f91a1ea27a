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

import us3l
from us3l.data.images import ImageSet
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy.latency import latencies
from us3l.evaluation.frozen_features import evaluate_fast
from us3l.evaluation.prepare import prepare
from us3l.evaluation.unlabelled import rankme
from us3l.run import Run
from us3l.run.searches import SearchRecord
from us3l.searching.judging import SCORES, Judge
from us3l.searching.pricing import Prices
from us3l.searching.search_space import Space
from us3l.slimmable import Slimmable
from us3l.system.devices import keep_freed_memory
from us3l.system.files import write_json
from us3l.width import Width

RESAMPLES = 2000
TURNS = 15  # of each network that is timed


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
    """kNN and linear probe of one sub-network; all are calibrated on the same training images."""
    net.set_statistics(width, None)
    (row,) = evaluate_fast(prepare(net, train, test, [width])).rows
    net.set_statistics(width, None)
    return {metric: score.top1 for metric, score in row.scores.items()}


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
            if str(width) in kept:
                continue
            features = judge.features(width)
            figures = {str(name): score(features, judge.full) for name, score in SCORES.items()}
            figures |= {"rankme": rankme(features), "macs": prices(width)["macs"], "params": prices(width)["params"]}
            kept[str(width)] = figures | accuracies(net, width, train, test)
            write_json(self.kept, kept)
        rows = [kept[str(width)] for width in widths]
        print(f"{len(rows)} sub-networks of {self.run}, {self.images} unlabelled images; linear probe and kNN learned")
        print(f"from {len(train)} and tested on {len(test)} images of {self.data}; depth: {self.depth}")
        print("| figure | tau with the linear probe | 95 % interval | tau with kNN | 95 % interval |")
        print("| --- | --- | --- | --- | --- |")
        for name in (*SCORES, "rankme", "macs", "params"):
            cells = []
            for kind in ("linear", "knn"):
                value, low, high = tau([row[name] for row in rows], [row[kind] for row in rows])
                cells.append(f"{value:+.2f} | {low:+.2f} to {high:+.2f}")
            print(f"| {name} | {' | '.join(cells)} |")


@dataclass(frozen=True)
class Compare(Measured):
    """Searches at the costs of some plain widths: is what they find more accurate than these?

    The searches are kept in the run's folder, and see training images only.
    """

    against: tuple[float, ...] = (0.5, 0.7, 0.9)
    """Plain widths, whose costs are the budgets."""
    seeds: int = 3
    """Of the search."""
    latency: bool = False
    """Budgets are the measured latencies of the plain widths, instead of their MACs."""
    depth: bool = False
    """Leave out blocks too."""
    candidates: int = 150
    """Sub-networks that each search scores."""

    def work(self) -> None:
        net, preprocessing, train, test = self.open()
        prices, kept, gains = Prices(net, preprocessing.size, {}), self.read(), []
        kind = "latency_ms" if self.latency else "macs"
        print(f"| plain width | budget, {kind} | its linear probe | seed | found | its cost | its probe | gain | s |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for plain in map(net.canonical, self.against):
            own = self.measured(net, plain, train, test, kept)
            budget = self.milliseconds(net, [plain])[plain] if self.latency else prices(plain)["macs"]
            for seed in range(self.seeds):
                record = self.search(f"{kind}-of-{plain:g}{'-depth' * self.depth}-{seed}", {kind: budget}, seed)
                found, cost = self.measured(net, record.best, train, test, kept), f"{prices(record.best)['macs']:.4g}"
                if self.latency:
                    timed = self.milliseconds(net, [plain, record.best])
                    cost = f"{timed[record.best]:.3f} beside {timed[plain]:.3f}"
                gains.append(found["linear"] - own["linear"])
                row: list[Any] = [f"{plain:g}x", f"{budget:.4g}", f"{own['linear']:.2f}", seed, record.best, cost]
                row += [f"{found['linear']:.2f}", f"{gains[-1]:+.2f}", f"{record.seconds:.0f}"]
                print(f"| {' | '.join(map(str, row))} |", flush=True)
        print(f"mean gain {np.mean(gains):+.2f} points, standard deviation {np.std(gains):.2f}, {len(gains)} searches")

    def search(self, name: str, budgets: dict[str, Any], seed: int) -> SearchRecord:
        """What was found before, or now."""
        settings: dict[str, Any] = {"depth": self.depth, "candidates": self.candidates, "seed": seed, "name": name}
        return Run(self.run).searches.get(name) or us3l.search(self.run, self.data, **budgets, **settings)

    def measured(
        self, net: Slimmable, width: Width, train: ImageSet, test: ImageSet, kept: dict[str, Any]
    ) -> dict[str, float]:
        """Accuracies, from the file if they are there."""
        if str(width) not in kept:
            kept[str(width)] = accuracies(net, width, train, test)
            write_json(self.kept, kept)
        return kept[str(width)]

    def milliseconds(self, net: Slimmable, widths: Sequence[Width]) -> dict[Width, float]:
        """The lowest of three medians on this machine for one image, taking turns."""
        size = Preprocessing.of(net).size
        us3l.calibrate(net, torch.randn(8, 3, size, size), [width for width in widths if not net.calibrated(width)])
        rows = [row for _ in range(3) for row in latencies(net, size, list(widths), ("torch",), (1,), 1, TURNS)]
        return {width: min(row.p50_ms for row in rows if row.width == width) for width in widths}


@dataclass(frozen=True)
class Depth(Compare):
    """Pairs of a width and a depth against plain widths: accuracy and latency of each."""

    shares: tuple[float, ...] = (1.0, 0.75, 0.5)
    """Of each stage's blocks that are kept, at least one."""
    against: tuple[float, ...] = (1.0, 0.85, 0.7, 0.5, 0.25)
    """Widths."""

    def work(self) -> None:
        net, preprocessing, train, test = self.open()
        kept, prices, blocks = self.read(), Prices(net, preprocessing.size, {}), net.family.blocks or ()
        widths: dict[Width, tuple[float, float]] = {}
        for wide in self.against:
            for deep in self.shares:
                depths = [max(1, round(deep * count)) for count in blocks]
                widths.setdefault(net.canonical(Width(wide, depths)), (wide, deep))
        found = {width: self.measured(net, width, train, test, kept) for width in widths}
        timed = self.milliseconds(net, list(widths))
        front: list[Width] = []
        for width in sorted(widths, key=lambda width: timed[width]):
            if not front or found[width]["linear"] > found[front[-1]]["linear"]:
                front.append(width)
        print("| width | share of blocks | sub-network | latency, ms | MACs | linear probe | kNN | front |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for width, (wide, deep) in widths.items():
            macs, values = prices(width)["macs"], found[width]
            print(
                f"| {wide:g} | {deep:g} | {width} | {timed[width]:.3f} | {macs / 1e6:.2f} M | {values['linear']:.2f} | "
                f"{values['knn']:.2f} | {'yes' if width in front else ''} |"
            )


def main() -> None:
    command: Any = tyro.cli(
        Annotated[Tau, tyro.conf.subcommand("tau")]
        | Annotated[Compare, tyro.conf.subcommand("compare")]
        | Annotated[Depth, tyro.conf.subcommand("depth")]
    )
    keep_freed_memory()
    started = time.monotonic()
    command.work()
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
