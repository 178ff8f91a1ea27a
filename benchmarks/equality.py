"""Random sub-networks of every backbone: shared weights, carved and exported networks compute the same.

`python -m benchmarks.equality --count 30`: forward and gradient of the shared weights against those of the carved
network, in double precision, and ONNX Runtime against it, in single precision. The exit code is 1 if any differs.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import torch
import tyro

import us3l
from us3l.deploy.formats import write_onnx
from us3l.families import BACKBONES, options_for
from us3l.runtime.backends import run_onnx
from us3l.slimmable import Slimmable
from us3l.tensors import leading, tensors_of
from us3l.width import Width

SIZE = 32


@dataclass(frozen=True)
class Equality:
    """Compare random sub-networks."""

    backbones: tuple[str, ...] = BACKBONES
    """Which ones."""
    count: int = 30
    """Sub-networks of each."""
    exported: int = 30
    """Of these, how many are also written as ONNX."""


def drawn(net: Slimmable, random: Random) -> Width:
    """A random width for each stage, and a random number of its blocks."""
    blocks = net.family.blocks or ()
    widths = [random.uniform(net.min_width, 1) for _ in range(net.family.stages or 1)]
    return Width(widths, [random.randint(1, most) for most in blocks] or None)


def difference(net: Slimmable, subnet: Width) -> tuple[float, float]:
    """The largest of the outputs and of the gradients, relative to the largest of each."""
    images = torch.randn(4, 3, SIZE, SIZE, dtype=torch.float64)
    carved = net.carve(subnet).train()
    shared, plain = net(images, width=subnet), carved(images)
    weights = torch.randn_like(plain)
    net.zero_grad()
    (shared * weights).sum().backward()
    (plain * weights).sum().backward()
    full, worst = tensors_of(net.full), 0.0
    own = dict(carved.named_parameters())
    for name, parameter in own.items():
        if parameter.grad is not None:
            ours = leading(full[name].grad, parameter.shape, net.family.segments(name))  # type: ignore[arg-type]
            worst = max(worst, float((ours - parameter.grad).abs().max() / (1e-12 + parameter.grad.abs().max())))
    outside = [name for name in full.keys() - own.keys() if full[name].grad is not None]
    assert not outside, f"{outside} are not in {subnet}, but have gradients"
    return float(((shared - plain).abs().max() / plain.abs().max()).detach()), worst


def exported_difference(net: Slimmable, subnet: Width, folder: Path) -> float:
    """The largest of ONNX Runtime's outputs, relative to the largest."""
    us3l.calibrate(net, torch.randn(16, 3, SIZE, SIZE), subnet)
    images = torch.randn(2, 3, SIZE, SIZE)
    network, path = net.carve(subnet), folder / f"{subnet}.onnx"
    write_onnx(network, SIZE, path, about="")
    with torch.no_grad():
        expected = network(images).numpy()
    found = float(np.abs(run_onnx(path, 1)(images.numpy()) - expected).max() / np.abs(expected).max())
    path.unlink()
    net.set_statistics(subnet, None)
    return found


def main() -> None:
    command = tyro.cli(Equality)
    warnings.filterwarnings("ignore", message="width .* is not calibrated")
    torch.manual_seed(0)
    good = True
    print("| backbone | sub-networks | forward | gradient | exported |\n| --- | --- | --- | --- | --- |")
    for name in command.backbones:
        options = options_for(name, "cifar", SIZE)
        doubles, floats = us3l.create(name, **options).double(), us3l.create(name, **options)
        random = Random(0)
        some = [drawn(doubles, random) for _ in range(command.count)]
        forward, gradient = (max(values) for values in zip(*(difference(doubles, one) for one in some), strict=True))
        with TemporaryDirectory() as folder:
            files = [exported_difference(floats, one, Path(folder)) for one in some[: command.exported]]
        print(f"| {name} | {len(some)} | {forward:.0e} | {gradient:.0e} | {max(files, default=0):.0e} |", flush=True)
        good = good and forward < 1e-9 and gradient < 1e-7 and max(files, default=0) < 1e-3
    sys.exit(not good)


if __name__ == "__main__":
    main()
