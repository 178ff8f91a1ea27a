"""Held-out figures: kNN on images that were never learned from, and nearness to the teacher. No test images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import us3l
from tools.builtin.images import ImageList, centres, preprocessed
from tools.builtin.recipe import Subnet, subnet_name
from tools.builtin.teacher import Teacher, fused
from us3l.evaluation.knn import knn_accuracy

CALIBRATION, BATCH = 768, 64
SETS = ("photos", "pets")
Features = Callable[[ImageList, Sequence[int]], Tensor]
"""From the images of these rows to their features."""


class LabelledSet(NamedTuple):
    """Images with labels, and others that are named by their 20 nearest neighbours among them."""

    name: str
    bank: ImageList
    bank_rows: list[int]
    queries: ImageList
    query_rows: list[int]

    def split(self, features: Features) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return features and labels of the neighbours, then of those to be named."""
        sides = (self.bank, self.bank_rows), (self.queries, self.query_rows)
        bank, queries = ((features(images, rows), torch.from_numpy(images.labels[rows])) for images, rows in sides)
        return *bank, *queries

    def knn(self, features: Features) -> float:
        """Return the percentage that are named correctly (20 neighbours, temperature 0.07)."""
        return round(knn_accuracy(*self.split(features)), 2)


def labelled_sets(bank: ImageList, queries: ImageList, every: int = 1) -> list[LabelledSet]:
    """Return the labelled sets that both lists have images of; of the bank, one image of so many is used."""
    both = [LabelledSet(name, bank, rows_of(bank, name)[::every], queries, rows_of(queries, name)) for name in SETS]
    return [one for one in both if one.bank_rows and one.query_rows]


def rows_of(images: ImageList, name: str) -> list[int]:
    """Return which of the images lie in the folder of that name."""
    return [row for row, path in enumerate(images.names) if path.startswith(f"{name}/")]


class HeldOut:
    """Measures sub-networks on images that were held out.

    Args:
        learned: Images that are learned from: the neighbours, and those that statistics are collected on.
        held_out: The others.
        teacher: What the features imitate.
        every: Of the neighbours, one of this many is used.
    """

    def __init__(self, learned: ImageList, held_out: ImageList, teacher: Teacher, every: int = 1) -> None:
        self.learned, self.held_out, self.teacher = learned, held_out, teacher
        self.sets = labelled_sets(learned, held_out, every)

    def calibrated(self, net: us3l.Slimmable, width: float, size: int) -> nn.Module:
        """Return the plain network of a width with statistics of images of that size."""
        sharp = np.random.default_rng(0).permutation(np.flatnonzero(~self.learned.blurred))
        rows = np.sort(sharp[:CALIBRATION]).tolist()
        us3l.calibrate(net, preprocessed(centres(self.learned, rows, size)), width, batch_size=128)
        return net.carve(width)

    def figures(self, network: nn.Module, size: int) -> dict[str, float]:
        """Return kNN % of each labelled set; of the other images, the mean cosine of features to the teacher's at
        224 pixels, and the share that ImageNet's classifier calls alike.
        """
        features = features_of(network, size)
        found = {one.name: one.knn(features) for one in self.sets}
        if rows := rows_of(self.held_out, "corpus"):
            ours, theirs = features(self.held_out, rows), self.teacher_features
            same = self.teacher.logits(ours).argmax(1) == self.teacher.logits(theirs).argmax(1)
            found["cosine"] = round(nn.functional.cosine_similarity(ours, theirs).mean().item(), 4)
            found["agreement"] = round(100 * same.float().mean().item(), 2)
        return found

    @cached_property
    def teacher_features(self) -> Tensor:
        rows = rows_of(self.held_out, "corpus")
        return self.teacher.features(preprocessed(centres(self.held_out, rows, 224)))

    def table(self, net: us3l.Slimmable, subnets: Sequence[Subnet]) -> dict[str, dict[str, float]]:
        """Return the figures of each width at each size, by names such as 0.25x@128."""
        found = {}
        for width, size in subnets:
            network = fused(self.calibrated(net, width, size)).to(memory_format=torch.channels_last)
            found[subnet_name(width, size)] = self.figures(network, size)
        return found


def features_of(network: nn.Module, size: int) -> Features:
    """Return the network as a function of images and rows."""

    @torch.inference_mode()
    def features(images: ImageList, rows: Sequence[int]) -> Tensor:
        parts = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
        return torch.cat([network(preprocessed(centres(images, part, size))) for part in parts])

    return features
