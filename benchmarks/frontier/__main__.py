"""The built-in network beside networks that one may download: kNN, linear probe, costs, INT8 latency on one thread.

    python -m benchmarks.frontier --litert VENV/bin/python --only rivals
    python -m benchmarks.frontier --litert VENV/bin/python --model builtin

The LiteRT rivals run in a process of their own, by a Python that has ai-edge-litert and numpy. By default the queries
are images held out of the training folders. Test images (`--test`) are for one final table.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torchvision
import tyro
from safetensors.torch import load_file
from torch import Tensor

import us3l
from benchmarks.frontier.rivals import RIVALS, LiteRT
from benchmarks.frontier.table import Row, table
from tools.builtin.images import ImageList, Source, centres, read_images
from tools.builtin.measure import Features, HeldOut, LabelledSet, features_of, labelled_sets
from tools.builtin.recipe import Subnet, subnet_name
from tools.builtin.teacher import Teacher, fused
from tools.builtin.train import WEIGHTS
from us3l.evaluation.knn import knn_accuracy
from us3l.evaluation.linear import linear_accuracy
from us3l.system.files import write_json

MEASURED = (
    (0.25, 96), (0.25, 128), (0.35, 96), (0.35, 128), (0.25, 160), (0.5, 128), (0.5, 160), (0.75, 128), (0.5, 224),
    (0.75, 160), (0.75, 224), (1.0, 160), (1.0, 224),
)  # fmt: skip
"""Widths and sizes of the table."""
TURNS = 5


@dataclass(frozen=True)
class Frontier:
    """Measure the built-in network beside networks that one may download."""

    litert: Path | None = None
    """A Python that has ai-edge-litert; without it the LiteRT rivals are left out."""
    model: str = "builtin"
    """The network, or the folder of another one that began with it."""
    data: Path = Path("../shared/data")
    only: tuple[Literal["rivals", "ours", "latency"], ...] = ("rivals", "ours", "latency")
    subnets: tuple[Subnet, ...] = MEASURED
    """Our widths and sizes."""
    test: bool = False
    """Ask about test images instead of those held out of the training folders."""
    out: Path = Path("frontier.json")


def open_sets(command: Frontier) -> tuple[list[LabelledSet], HeldOut]:
    """Return the labelled sets, and what collects statistics on the images that are learned from."""
    teacher = Teacher(command.data / WEIGHTS)
    learned, held_out = read_images(command.data), read_images(command.data, held_out=True)
    if not command.test:
        return labelled_sets(learned, held_out), HeldOut(learned, held_out, teacher)
    folders = [Source(f"{name}/{part}", labelled=True) for part in ("train", "test") for name in ("photos", "pets")]
    bank, queries = read_images(command.data, folders[:2]), read_images(command.data, folders[2:])
    return labelled_sets(bank, queries), HeldOut(learned, held_out, teacher)


def rival_features(rival: LiteRT, size: int) -> Features:
    """Return a rival as a function of images and rows; it sees the same centres of images as ours."""

    def features(images: ImageList, rows: Sequence[int]) -> Tensor:
        pixels = centres(images, rows, size).permute(0, 2, 3, 1)
        return torch.from_numpy(rival.features(np.ascontiguousarray(pixels.numpy())))

    return features


def scores(sets: list[LabelledSet], features: Features) -> dict[str, float]:
    """Return kNN and the linear probe of each labelled set, in percent."""
    found = {}
    for one in sets:
        split = one.split(features)
        found[one.name] = round(knn_accuracy(*split), 2)
        found[f"{one.name} linear"] = round(linear_accuracy(*split), 2)
    return found


def rival_rows(command: Frontier, sets: list[LabelledSet]) -> list[Row]:
    """Return kNN of each rival."""
    rows: list[Row] = []
    for rival in RIVALS if command.litert else ():
        assert command.litert is not None
        with LiteRT(command.litert, command.data / "rivals" / rival.file) as running:
            features = rival_features(running, rival.size)
            rows.append(show({"network": rival.title, "mmacs": rival.macs, **scores(sets, features)}))
    source = torchvision.models.mobilenet_v2()
    source.load_state_dict(load_file(command.data / WEIGHTS), strict=False)
    source.classifier = torch.nn.Identity()
    features = features_of(fused(source.eval()).to(memory_format=torch.channels_last), 224)
    title = "MobileNetV2 1.0@224, 32 bits"
    rows.append(show({"network": title, "mmacs": 300, **scores(sets, features)}))
    return rows


def our_rows(command: Frontier, sets: list[LabelledSet], held_out: HeldOut) -> list[Row]:
    """Return kNN of our sub-networks, 32 bits."""
    net = us3l.load(command.model)
    rows = []
    for width, size in command.subnets:
        network = held_out.calibrated(net, width, size)
        features = features_of(fused(network).to(memory_format=torch.channels_last), size)
        macs = us3l.cost(net.skeleton(width), (3, size, size)).macs / 1e6
        rows.append(show({"network": subnet_name(width, size), "mmacs": round(macs, 1), **scores(sets, features)}))
    return rows


def exported(command: Frontier, held_out: HeldOut, width: float, size: int, folder: Path) -> Callable[[], object]:
    """Return a run of our sub-network as an INT8 file on one image, by ONNX Runtime on one thread."""
    import onnxruntime

    net = us3l.load(command.model)
    held_out.calibrated(net, width, size)
    net.metadata["preprocessing"] = {"size": size, "resize": round(size * 8 / 7)}
    bundle = us3l.export(net, width, "onnx", out=folder, int8=True, data=str(command.data / "photos" / "train"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(bundle.files[0]), options, providers=["CPUExecutionProvider"])
    image = {session.get_inputs()[0].name: np.random.default_rng(0).random((1, 3, size, size), np.float32)}
    return lambda: session.run(None, image)


def latencies(command: Frontier, held_out: HeldOut) -> dict[str, float]:
    """Return the milliseconds of each network on one image, one thread, INT8: they take turns, the best turn counts."""
    with ExitStack() as opened:
        clocks: dict[str, Callable[[], float]] = {}
        for rival in RIVALS if command.litert else ():
            assert command.litert is not None
            running = opened.enter_context(LiteRT(command.litert, command.data / "rivals" / rival.file))
            clocks[rival.title] = running.seconds
        for width, size in command.subnets:
            folder = opened.enter_context(tempfile.TemporaryDirectory())
            job = exported(command, held_out, width, size, Path(folder))
            clocks[subnet_name(width, size)] = lambda job=job: quickest(job)  # type: ignore[misc]
        best = dict.fromkeys(clocks, float("inf"))
        for _ in range(TURNS):
            for name, clock in clocks.items():
                best[name] = min(best[name], clock())
    return {name: round(1000 * seconds, 3) for name, seconds in best.items()}


def quickest(job: Callable[[], object], count: int = 20) -> float:
    """Return the seconds of the quickest of some runs."""
    best = float("inf")
    for _ in range(count):
        started = time.perf_counter()
        job()
        best = min(best, time.perf_counter() - started)
    return best


def show(row: Row) -> Row:
    print(row, flush=True)
    return row


def main() -> None:
    command = tyro.cli(Frontier)
    torch.set_num_threads(1)
    sets, held_out = open_sets(command)
    found: dict[str, Any] = {"queries": "test images" if command.test else "held out of the training folders"}
    if "rivals" in command.only:
        found["rivals"] = rival_rows(command, sets)
    if "ours" in command.only:
        found["ours"] = our_rows(command, sets, held_out)
    if "latency" in command.only:
        found["milliseconds"] = show(latencies(command, held_out))
    write_json(command.out, found)
    print(table(found))


if __name__ == "__main__":
    main()
