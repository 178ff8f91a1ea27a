"""Proof that an exported file is the network it came from. What fails it is an error, never a warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.data.images import ImageSet
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import find, load
from us3l.data.streamed import ImageFiles
from us3l.evaluation.held_out import held_out
from us3l.evaluation.knn import knn_accuracy
from us3l.evaluation.scoring import percent_correct
from us3l.run import Run
from us3l.runtime.backends import Forward
from us3l.system.errors import UserError
from us3l.system.progress import Progress

BATCHES = (1, 7)
TOLERANCE = 1e-4
"""Largest difference of a float file's outputs, in units of the largest output where that is above 1."""
OVERHEAD = 0.05
"""Share of the weights that all else in a file may take."""
BYTES_PER_CHANNEL = 20
"""Of an INT8 file: a bias and the scales and zero points of the bias and of the channel's weights."""
MIN_COSINE = 0.98
MAX_DROP = 3.0
"""Of INT8's accuracy, in points."""
CALIBRATION, TEST = 300, 500
"""Images that INT8 is calibrated on, and tested on."""
ENOUGH = 500
"""Labelled images from which on a drop of the accuracy means something."""


@dataclass(frozen=True)
class Evidence:
    """Images to prove files on, preprocessed (N x 3 x S x S): training images to calibrate on, others to test with."""

    name: str | None
    """Of the data; None when it is noise, because there are no images."""
    train: Tensor
    test: Tensor
    train_labels: Tensor | None = None
    test_labels: Tensor | None = None
    classes: list[str] | None = None

    @classmethod
    def of(cls, train: ImageSet, test: ImageSet, preprocessing: Preprocessing) -> Evidence:
        seen, unseen = (torch.cat([batch.views[0] for batch in part.batches(preprocessing)]) for part in (train, test))
        return cls(test.name, seen, unseen, train.labels, test.labels, test.classes)

    @classmethod
    def noise(cls, size: int) -> Evidence:
        images = torch.randn(max(BATCHES), 3, size, size, generator=torch.Generator().manual_seed(0))
        return cls(None, images, images)


@dataclass(frozen=True)
class Proof:
    """What was found of a file."""

    images: str
    """What it was compared on."""
    difference: float | None = None
    """Of a float file: the largest between its outputs and PyTorch's."""
    cosine: float | None = None
    """Of an INT8 file: the mean similarity of its outputs to the float network's."""
    judge: str | None = None
    """What the accuracies are of: "kNN" or "head"."""
    float_accuracy: float | None = None
    int8_accuracy: float | None = None


def prove_float(network: nn.Module, run: Forward, evidence: Evidence) -> Proof:
    """The file's outputs are PyTorch's, for a batch of one and of several."""
    worst = 0.0
    for count in BATCHES:
        images = evidence.test[torch.arange(count) % len(evidence.test)]
        expected, found = outputs_of(network, images), run(images.numpy())
        if found.shape != expected.shape:
            raise UserError(f"the exported network's outputs are {found.shape}, not {expected.shape}")
        worst = max(worst, difference(found, expected))
        if not worst <= TOLERANCE:
            raise UserError(f"the exported network differs from the original by {worst:g}, more than {TOLERANCE:g}")
    count = min(max(BATCHES), len(evidence.test))
    return Proof(f"{count} images of {evidence.name}" if evidence.name else "noise", difference=worst)


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest, in units of the largest output where that is above 1: float32 keeps digits, not decimal places."""
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def prove_int8(network: nn.Module, run: Forward, evidence: Evidence, classes: list[str] | None) -> Proof:
    """By the accuracy of the head, or else of kNN; without enough labelled images, by the similarity of outputs."""
    expected, found = (
        torch.from_numpy(values) for values in (outputs_of(network, evidence.test), outputs(run, evidence.test))
    )
    images = f"{len(found)} images of {evidence.name}"
    cosine = F.cosine_similarity(found, expected).mean().item()
    known, asked = evidence.train_labels, evidence.test_labels
    judge, before, after = None, 0.0, 0.0
    if known is not None and asked is not None and classes is None:
        judge = "kNN"
        banks = outputs_of(network, evidence.train), outputs(run, evidence.train)
        before, after = (
            knn_accuracy(torch.from_numpy(bank), known, queries, asked)
            for bank, queries in zip(banks, (expected, found), strict=True)
        )
    elif asked is not None and classes == evidence.classes:
        judge, before, after = "head", percent_correct(expected, asked), percent_correct(found, asked)
    if judge and len(found) >= ENOUGH:
        if not before - after <= MAX_DROP:
            raise UserError(
                f"INT8 costs too much: accuracy ({judge}) falls from {before:.1f} % to {after:.1f} % on {images}, by "
                f"more than {MAX_DROP:g} points; export this width without `int8`"
            )
    elif not cosine >= MIN_COSINE:
        raise UserError(
            f"INT8 changes the outputs too much: their mean cosine with the float network's is {cosine:.3f} on "
            f"{images}, less than {MIN_COSINE}; export this width without `int8`"
        )
    if judge is None:
        return Proof(images, cosine=cosine)
    return Proof(images, cosine=cosine, judge=judge, float_accuracy=before, int8_accuracy=after)


def prove_size(network: nn.Module, weights_file: Path, graph: int, int8: bool) -> None:
    """The file holds this sub-network's weights and little else."""
    weights = weight_bytes(list(network.state_dict().values()), int8)
    limit = weights + max(OVERHEAD * weights, graph)
    size = weights_file.stat().st_size
    if size > limit:
        raise UserError(f"the file takes {size:,} bytes, but the weights of this width only {weights:,}")


def weight_bytes(tensors: Sequence[Tensor], int8: bool) -> int:
    """What the weights take in a file; in INT8 a byte each, but for depthwise convolutions (C x 1 x k x k)."""
    if not int8:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    sizes = (BYTES_PER_CHANNEL if tensor.ndim < 2 else 4 if tensor.shape[1] == 1 else 1 for tensor in tensors)
    return sum(tensor.numel() * size for tensor, size in zip(tensors, sizes, strict=True))


def outputs(run: Forward, images: Tensor) -> np.ndarray:
    return np.concatenate([run(part.contiguous().numpy()) for part in images.split(50)])


@torch.no_grad()
def outputs_of(network: nn.Module, images: Tensor) -> np.ndarray:
    return torch.cat([network(part) for part in images.split(50)]).numpy()


def find_evidence(
    run: Run, preprocessing: Preprocessing, int8: bool, data: str | None, evaluation: str | None, progress: Progress
) -> Evidence:
    """Return the images named, else those of the training, else noise, with a message; INT8 needs real ones.

    Args:
        run: Whose networks are exported.
        preprocessing: How images become their input.
        int8: Whether the files are in INT8.
        data: The images that were asked for.
        evaluation: The one that the classifiers in the files come from. In INT8 they are tested on images that they
            have not learned from, by default on those that it tested them on.
        progress: Told if files are proved on less than one would expect.
    """
    name = data or run.data or (evaluated_data(run, evaluation) if evaluation else None)
    if name is not None:
        try:
            tested = unseen_images(run, evaluation, data, progress) if int8 and evaluation else find(name, "test")
            test = load(tested, "every", preprocessing.resize, TEST if int8 else max(BATCHES), progress)
            train = load(name, "train", preprocessing.resize, CALIBRATION, progress) if int8 else test
            return Evidence.of(train, test, preprocessing)
        except UserError:
            if data or int8:
                raise
    why = f"{name} is not here" if name else "the model does not say what it was trained on"
    progress.say(f"proving on noise, for {why}: name images by `data`", style="yellow")
    return Evidence.noise(preprocessing.size)


def evaluated_data(run: Run, evaluation: str) -> str:
    """Return what the images of an evaluation can be opened by."""
    record = run.evaluations[evaluation]
    return (record.identity.source if record.identity else record.data) or evaluation


def unseen_images(run: Run, evaluation: str, data: str | None, progress: Progress) -> ImageFiles:
    """Return images that the classifiers of an evaluation have not learned from, of some data or of its own."""
    name = data or evaluated_data(run, evaluation)
    files = find(name, "test" if data else run.evaluations[evaluation].split)
    unseen = held_out(run, evaluation, files, name)
    if unseen is None:
        progress.say(
            f"it is not known which images the classifier of {evaluation} has learned from: its proof may be on some",
            style="yellow",
        )
        return files
    if not unseen.any():
        raise UserError(f"{files.name}: the classifier has learned from all test images; name others by `data`")
    return files.subset(torch.from_numpy(np.flatnonzero(unseen)))
