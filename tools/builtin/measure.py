"""Held-out figures: kNN on images that were never learned from, and nearness to the teacher. No test images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import us3l
from tools.builtin.images import ImageList, centres, preprocessed
from tools.builtin.teacher import Teacher, fused
from us3l.evaluation.neighbours import knn_accuracy

CALIBRATION, BATCH = 768, 64
SETS = ("photos/", "pets/")


@dataclass
class HeldOut:
    """Images to measure on: a part of those learned from as the neighbours, and those held out."""

    learned: ImageList
    held_out: ImageList
    teacher: Teacher
    every: int = 1
    """Of the neighbours, one of this many is used."""
    seed: int = 0

    def rows(self, images: ImageList, start: str) -> list[int]:
        return [row for row, name in enumerate(images.names) if name.startswith(start)]

    def calibrated(self, net: us3l.Slimmable, width: float, size: int) -> nn.Module:
        """Return the plain network of a width with statistics of images of that size."""
        draw = np.random.default_rng(self.seed)
        sharp = np.flatnonzero(~self.learned.blurred)
        rows = np.sort(draw.permutation(sharp)[:CALIBRATION]).tolist()
        us3l.calibrate(net, preprocessed(centres(self.learned, rows, size)), width, batch_size=128)
        return fused(net.carve(width)).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def features(self, network: nn.Module, images: ImageList, rows: list[int], size: int) -> Tensor:
        parts = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
        return torch.cat([network(preprocessed(centres(images, part, size))) for part in parts])

    def figures(self, network: nn.Module, size: int) -> dict[str, float]:
        """Return kNN % of each labelled set, and the share of unlabelled images that the classifier calls alike."""
        found = {}
        for start in SETS:
            near, asked = self.rows(self.learned, start)[:: self.every], self.rows(self.held_out, start)
            if near and asked:
                bank, queries = (
                    self.features(network, images, rows, size)
                    for images, rows in ((self.learned, near), (self.held_out, asked))
                )
                labels = (
                    torch.from_numpy(images.labels[rows])
                    for images, rows in ((self.learned, near), (self.held_out, asked))
                )
                bank_labels, query_labels = labels
                found[start.strip("/")] = round(knn_accuracy(bank, bank_labels, queries, query_labels), 2)
        rows = self.rows(self.held_out, "corpus/")
        if rows:
            ours, theirs = self.features(network, self.held_out, rows, size), self.teacher_features(rows)
            same = self.teacher.logits(ours).argmax(1) == self.teacher.logits(theirs).argmax(1)
            found["cosine"] = round(nn.functional.cosine_similarity(ours, theirs).mean().item(), 4)
            found["agreement"] = round(100 * same.float().mean().item(), 2)
        return found

    def teacher_features(self, rows: list[int]) -> Tensor:
        """Return the teacher's features at 224 pixels of held-out images; they are computed once."""
        if not hasattr(self, "_known"):
            self._known = self.teacher.features(preprocessed(centres(self.held_out, rows, 224)))
        return self._known

    def table(self, net: us3l.Slimmable, subnets: tuple[tuple[float, int], ...]) -> dict[str, dict[str, float]]:
        """Return the figures of each width at each size, by names such as 0.25x@128."""
        return {f"{width:g}x@{size}": self.figures(self.calibrated(net, width, size), size) for width, size in subnets}
