"""Retrieval across widths of one slimmable network, beside two networks that were trained separately.

    python -m benchmarks.retrieval RUN --apart OTHER --data DATA --out FEATURES.safetensors

RUN is a slimmable network, OTHER another one of the same size. Training images are the gallery, test images the
queries, and cells are recall@1 / kNN accuracy in percent. Three tables:

- every width of RUN in every other, in the space that `us3l embed --space shared` has;
- 1x and the narrowest width, of "one network" RUN, and of "two networks", where 1x is OTHER. "As they are" are the
  networks' own features, the shorter ones filled up with zeros, as nothing else is to be done. "Predicted" is what a
  linear map of 1x makes of the narrow features, half whitened; "shared space" is that of the first table;
- differences of narrow queries in a gallery of 1x from the same queries in a narrow gallery, which is in its own
  features (as `us3l embed` gives them by default) or in the same space as the other. With 95 % intervals: queries are
  drawn again 2,000 times, and each query is compared with itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import us3l
from us3l.data.images import Images
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import open_images
from us3l.evaluation.features import embed_all
from us3l.evaluation.knn import knn
from us3l.evaluation.mapping import IMAGES, common_space, embedding, fit_map, half_whitened
from us3l.evaluation.prepare import calibrate_missing

PARTS = ("fit", "gallery", "queries")
DRAWS = 2000
METRICS = ("recall@1", "kNN")
ONE = "one network"
Parts = Mapping[str, Tensor]
"""What a network made of the images to fit on, of the gallery and of the queries; "labels/PART" of the same."""
Hits = tuple[Tensor, Tensor]
"""For each query whether its nearest image is of its class, and whether the neighbours' vote is: 0 or 100."""


def embedded(networks: Mapping[str, torch.nn.Module], images: Mapping[str, Images], like: us3l.Slimmable) -> Parts:
    """Tensors by "NETWORK/PART" and "labels/PART"."""
    found: dict[str, Tensor] = {}
    for part, some in images.items():
        features = embed_all(list(networks.values()), some, Preprocessing.of(like))
        found |= {f"{name}/{part}": values for name, values in zip(networks, features.values, strict=True)}
        found[f"labels/{part}"] = features.labels
    return found


def hits(queries: Tensor, gallery: Tensor, labels: Parts) -> Hits:
    """How queries do in a gallery."""
    asked, known = F.normalize(queries, dim=1), F.normalize(gallery, dim=1)
    known_labels, asked_labels = labels["labels/gallery"], labels["labels/queries"]
    nearest = torch.cat([(some @ known.T).argmax(1) for some in asked.split(1024)])
    votes = knn(known, known_labels, asked, num_classes=int(known_labels.max()) + 1)
    pair = (known_labels[nearest], votes.argmax(1))
    first, second = (100 * (found == asked_labels).double() for found in pair)
    return first, second


def cell(found: Hits) -> str:
    return " / ".join(f"{values.mean().item():.1f}" for values in found)


def shared(features: Parts, wide: str, narrow: str, others: Sequence[str] = ()) -> dict[str, Tensor]:
    """All parts in the space that `us3l.evaluation.mapping.fit_space` makes."""
    parts = {name: [features[f"{name}/{part}"] for part in PARTS] for name in (wide, narrow, *others)}
    wide_map, narrow_map = common_space(parts[wide][0], parts[narrow][0])
    placed = {
        wide: [embedding(wide_map, *pair) for pair in zip(parts[wide], parts[narrow], strict=True)],
        narrow: [narrow_map.scores(values) for values in parts[narrow]],
    }
    for name in others:
        to_wide = fit_map(parts[name][0], placed[wide][0])
        placed[name] = [to_wide.scores(values) for values in parts[name]]
    return {f"{name}/{part}": values for name in placed for part, values in zip(PARTS, placed[name], strict=True)}


def predicted(features: Parts, wide: str, narrow: str) -> dict[str, Tensor]:
    """The narrow network's features, half whitened, and what a linear map of the wide one's makes of them."""
    own = half_whitened(features[f"{narrow}/fit"])
    found = {f"{narrow}/{part}": own.scores(features[f"{narrow}/{part}"]) for part in PARTS}
    guess = fit_map(features[f"{wide}/fit"], found[f"{narrow}/fit"])
    return found | {f"{wide}/{part}": guess.scores(features[f"{wide}/{part}"]) for part in PARTS}


def filled(features: Parts, wide: str, narrow: str) -> dict[str, Tensor]:
    """Features as they are, the narrow ones filled up with zeros."""
    found = {f"{wide}/{part}": features[f"{wide}/{part}"] for part in PARTS}
    for part in PARTS:
        values = features[f"{narrow}/{part}"]
        found[f"{narrow}/{part}"] = F.pad(values, (0, found[f"{wide}/{part}"].shape[1] - values.shape[1]))
    return found


def interval(differences: Tensor) -> str:
    """The mean, and between what it lies when queries are drawn again."""
    values, draw = differences.numpy(), np.random.default_rng(0)
    means = [values[draw.integers(0, len(values), len(values))].mean() for _ in range(DRAWS)]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{values.mean():+.1f} ({low:+.1f} to {high:+.1f})"


def show_matrix(features: Parts, widths: Sequence[str]) -> None:
    """Every width in every width."""
    wide, *others, narrow = widths
    placed = shared(features, wide, narrow, others)
    print("| queries | " + " | ".join(f"in {width}x" for width in widths) + " |")
    print("| --- |" + " ---: |" * len(widths))
    for query in widths:
        row = [cell(hits(placed[f"{query}/queries"], placed[f"{place}/gallery"], features)) for place in widths]
        print(f"| {query}x | {' | '.join(row)} |", flush=True)


def show_pairs(features: Parts, kinds: Mapping[str, tuple[str, str]]) -> None:
    """1x and the narrowest width, of one network and of two, and what differs by how much."""
    print("\n| | 1x in 1x | narrow in narrow | narrow in 1x |\n| --- | ---: | ---: | ---: |")
    differences = []
    for title, (wide, narrow) in kinds.items():
        ways = {"as they are": filled, "predicted": predicted}
        if title == ONE:
            ways["shared space"] = shared
        found = {}
        for name, way in ways.items():
            placed = way(features, wide, narrow)
            pairs = ((wide, wide), (narrow, narrow), (narrow, wide))
            found[name] = [
                hits(placed[f"{asked}/queries"], placed[f"{known}/gallery"], features) for asked, known in pairs
            ]
            print(f"| {title}, {name} | {' | '.join(map(cell, found[name]))} |", flush=True)
        last = [*found][-1]
        for name in ("as they are", last):
            changes = [interval(new - old) for new, old in zip(found[last][2], found[name][1], strict=True)]
            differences.append(f"| {title}, {last} | {name} | {' | '.join(changes)} |")
    print("\n| narrow in 1x less narrow in narrow | the latter | " + " | ".join(METRICS) + " |")
    print("| --- | --- | ---: | ---: |", *differences, sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--apart", type=Path, metavar="OTHER")
    parser.add_argument("--data", required=True)
    parser.add_argument("--fit", help="images to fit the space on (default: DATA)")
    parser.add_argument("--widths", type=float, nargs="+", default=[1.0, 0.75, 0.5, 0.25], help="widest first")
    parser.add_argument("--train-images", type=int)
    parser.add_argument("--test-images", type=int)
    parser.add_argument("--out", type=Path, help="a file for the features, .safetensors; read if it is there")
    arguments = parser.parse_args()
    widths = [f"{width:g}" for width in arguments.widths]
    if arguments.out and arguments.out.exists():
        features: Parts = load_file(arguments.out)
    else:
        net = us3l.load(arguments.run)
        side = Preprocessing.of(net).resize
        images: dict[str, Images] = {
            "fit": open_images(arguments.fit or arguments.data, "train", side, limit=IMAGES),
            "gallery": open_images(arguments.data, "train", side, limit=arguments.train_images),
            "queries": open_images(arguments.data, "test", side, limit=arguments.test_images),
        }
        calibrate_missing(net, images["fit"], arguments.widths, Preprocessing.of(net))
        networks: dict[str, torch.nn.Module] = {name: net.at(float(name)) for name in widths}
        if arguments.apart:
            networks["apart"] = us3l.load(arguments.apart).at(1.0)
        features = embedded(networks, images, net)
        if arguments.out:
            save_file(dict(features), arguments.out)
    show_matrix(features, widths)
    kinds = {ONE: (widths[0], widths[-1])}
    if "apart/fit" in features:
        kinds["two networks"] = ("apart", widths[-1])
    show_pairs(features, kinds)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
