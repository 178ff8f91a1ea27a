"""Retrieval across widths of one slimmable network, beside two networks that were trained separately.

    python -m benchmarks.retrieval RUN --apart OTHER --data DATA --train-images 8000 --test-images 3000

RUN is a slimmable network, OTHER another one of the same size. Training images are the gallery, test images the
queries, and cells are recall@1 / kNN accuracy in percent. "One network" is RUN at 1x and at a narrow width; of "two
networks" the wide one is OTHER at 1x, and the narrow one RUN:

- "as they are": the networks' own features; the shorter ones are filled up with zeros, as nothing else is to be done;
- "shared": in the space that `us3l embed --space shared` has; for separate networks by the same regression.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import us3l
from us3l.data.images import Images
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import open_images
from us3l.evaluation.features import Features, embed_all
from us3l.evaluation.mapping import IMAGES, fit_map, half_whitened
from us3l.evaluation.neighbours import knn
from us3l.evaluation.results import percent_correct
from us3l.evaluation.retrieval import recall_at_1

Parts = Mapping[str, Features]
"""What networks made of the images to fit on, of the gallery and of the queries."""


class Pair(NamedTuple):
    """The images of a part by the wide and by the narrow network, in one space."""

    wide: Tensor
    narrow: Tensor


def embedded(runs: list[tuple[us3l.Slimmable, float]], parts: Mapping[str, Images]) -> Parts:
    preprocessing = Preprocessing.of(runs[0][0])
    networks = [net.at(width) for net, width in runs]
    return {name: embed_all(networks, images, preprocessing) for name, images in parts.items()}


def as_they_are(parts: Parts) -> dict[str, Pair]:
    def filled(features: Features) -> Pair:
        wide, narrow = features.values
        return Pair(wide, F.pad(narrow, (0, wide.shape[1] - narrow.shape[1])))

    return {name: filled(features) for name, features in parts.items()}


def shared(parts: Parts) -> dict[str, Pair]:
    wide, narrow = parts["fit"].values
    space = half_whitened(wide)
    mapped = fit_map(narrow, space.scores(wide))
    return {name: Pair(space.scores(one.values[0]), mapped.scores(one.values[1])) for name, one in parts.items()}


def row(title: str, parts: Parts, space: Callable[[Parts], dict[str, Pair]]) -> str:
    """Of a table: wide in wide, narrow in narrow, narrow in wide."""
    pairs, labels = space(parts), {name: features.labels for name, features in parts.items()}
    classes, cells = int(labels["gallery"].max()) + 1, []
    for query, gallery in (("wide", "wide"), ("narrow", "narrow"), ("narrow", "wide")):
        asked = F.normalize(getattr(pairs["queries"], query), dim=1)
        known = F.normalize(getattr(pairs["gallery"], gallery), dim=1)
        recall = recall_at_1(asked, known, labels["queries"], labels["gallery"])
        votes = knn(known, labels["gallery"], asked, num_classes=classes)
        cells.append(f"{recall:.1f} / {percent_correct(votes, labels['queries']):.1f}")
    return f"| {title} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--apart", type=Path, metavar="OTHER")
    parser.add_argument("--data", required=True)
    parser.add_argument("--fit", help="images to fit the space on (default: DATA)")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--train-images", type=int)
    parser.add_argument("--test-images", type=int)
    arguments = parser.parse_args()
    net = us3l.load(arguments.run)
    side = Preprocessing.of(net).resize
    parts: dict[str, Images] = {
        "fit": open_images(arguments.fit or arguments.data, "train", side, limit=IMAGES),
        "gallery": open_images(arguments.data, "train", side, limit=arguments.train_images),
        "queries": open_images(arguments.data, "test", side, limit=arguments.test_images),
    }
    print("| | 1x in 1x | narrow in narrow | narrow in 1x |\n| --- | ---: | ---: | ---: |")
    kinds = {"one network": [(net, 1.0), (net, arguments.width)]}
    if arguments.apart:
        kinds["two networks"] = [(us3l.load(arguments.apart), 1.0), (net, arguments.width)]
    for name, networks in kinds.items():
        found = embedded(networks, parts)
        print(row(f"{name}, as they are", found, as_they_are), flush=True)
        print(row(f"{name}, shared space", found, shared), flush=True)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
