"""Evaluating and calibrating many widths."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

import us3l
from benchmarks.networks import slimmable
from benchmarks.timing import Row, best_seconds
from us3l.data.sources import ImageSet
from us3l.evaluation.frozen_features import evaluate_fast
from us3l.evaluation.gradient_descent import evaluate_paper
from us3l.evaluation.prepare import NINE_WIDTHS, prepare
from us3l.evaluation.protocols import paper_probe
from us3l.slimmable import batch_norms

IMAGES, CLASSES = 2000, 100


def rows() -> Iterator[Row]:
    yield probes()
    yield calibration()


def probes() -> Row:
    """Of nine widths, base 16. Two epochs of the paper's hundred are run, and the rest extrapolated."""
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=16).to(memory_format=torch.channels_last)
    images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(IMAGES) % CLASSES
    names = [str(label) for label in range(CLASSES)]
    train, test = (ImageSet("noise", part, labels, names) for part in (images, images.flip(3)))
    us3l.calibrate(net, torch.randn(64, 3, 32, 32), NINE_WIDTHS)
    started = time.perf_counter()
    evaluate_fast(prepare(net, train, test, NINE_WIDTHS))
    fast = time.perf_counter() - started

    def epochs(count: int) -> float:
        started = time.perf_counter()
        evaluate_paper(prepare(net, train, test, NINE_WIDTHS), replace(paper_probe("transfer", 32), epochs=count))
        return time.perf_counter() - started

    one, three = epochs(1), epochs(3)
    an_epoch = (three - one) / 2
    whole = one + 99 * an_epoch
    what = f"linear probe of nine widths, {IMAGES:,} images: times as fast as the paper's protocol"
    return Row(what, fast, whole, "s", 30, "at least", f"an epoch of the paper's takes {an_epoch:.1f} s")


def calibration() -> Row:
    """All 90 widths, against a plain pass for each; thirty widths at a time, so that both take turns."""
    net = slimmable("resnet18")
    images = torch.randn(IMAGES, 3, 32, 32).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def plainly(widths: list[us3l.Width]) -> None:
        for width in widths:
            network = net.family(float(width)).to(memory_format=torch.channels_last).train()
            for norm in batch_norms(network).values():
                norm.momentum = None  # a cumulative mean
            for batch in images.split(256):
                network(batch)

    ours = rival = 0.0
    for first in range(0, len(net.widths), 30):
        widths = net.widths[first : first + 30]
        jobs = {"ours": partial(us3l.calibrate, net, images, widths), "rival": partial(plainly, widths)}
        best = best_seconds(jobs, turns=1, warm_up=False)
        ours, rival = ours + best["ours"], rival + best["rival"]
    what = f"calibrating {len(net.widths)} widths on {IMAGES:,} images: times as fast as plain passes"
    return Row(what, ours, rival, "s", 1, "at least")
