"""The kinds of files that us3l reads: how to make good ones, and how they are read."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lightning_fabric import Fabric
from PIL import Image

import us3l
from tests.made_runs import make_run
from us3l.data.contents import Contents
from us3l.data.decode import Damaged
from us3l.data.sources import load
from us3l.deploy.deployment_settings import ExportSettings
from us3l.deploy.exporting import export_run
from us3l.deploy.latency import read_device_profile
from us3l.detection.coco import encode_mask
from us3l.detection.examples import example
from us3l.detection.scenes import load as load_scenes
from us3l.reporting.build import build_report
from us3l.run import Run
from us3l.run.bundles import read_bundle
from us3l.run.checkpoints import load_checkpoint, save_checkpoint
from us3l.run.config import write_config
from us3l.run.linear_maps import Linear, Probes, load_probes, probes_file, write_probes
from us3l.run.profiles import PROFILES
from us3l.run.training_log import Skipped, Start, append_records, append_start, read_history, read_records
from us3l.runtime.runtime import Runtime
from us3l.system.files import write_json
from us3l.training.recipes import MINI, Network
from us3l.training.run_config import config_of
from us3l.training.trainer import Trainer
from us3l.width import FULL, Width


@dataclass(frozen=True)
class Kind:
    make: Callable[[Path], None]
    """Write good files into a folder."""
    read: Callable[[Path], object]
    """Read them as the commands do; whatever is wrong with them is a `UserError`."""
    changed: str
    """Which of the files are changed: a pattern, or several with a bar between them."""
    use: Callable[[Path], object] = lambda _: None
    """What commands then do with files that could be read."""


BLACK = np.zeros((1, 3, 8, 8), np.uint8)


def network() -> us3l.Slimmable:
    torch.manual_seed(0)
    return us3l.create("resnet18", stem="cifar", base=8)


def make_model(folder: Path) -> None:
    net = network()
    us3l.calibrate(net, torch.randn(8, 3, 8, 8), widths=[1.0, 0.5])
    net.metadata = {"preprocessing": {"size": 8}}
    net.save(folder)


def read_model(folder: Path) -> None:
    net = us3l.load(folder)
    net.canonical(1.0)


def recipe_trainer() -> Trainer:
    small = replace(MINI.objective, hidden=8, predictor=8, dim=8)
    recipe = replace(MINI, network=Network(base=8), objective=small, views=replace(MINI.views, size=8), batch_size=8)
    return Trainer(recipe, load("digits", limit=16), Fabric(accelerator="cpu"))


class Checkpoints:
    """One trainer for all files: building it takes longer than reading them."""

    trainer: Trainer | None = None

    def make(self, folder: Path) -> None:
        save_checkpoint(folder, recipe_trainer().state())

    def read(self, folder: Path) -> None:
        self.trainer = self.trainer or recipe_trainer()
        state, _ = load_checkpoint(folder)
        self.trainer.load_state(state)


def use_model(folder: Path) -> None:
    """Export a network and run one."""
    export_run(Run(folder), ExportSettings(0.5, "safetensors", out=folder / "exported"))
    Runtime(folder, threads=1).embed(BLACK, 0.5)


KEPT: dict[str, us3l.Slimmable] = {}
"""The network of a whole run, read once: that takes longer than reading the files that are changed beside it."""


def make_whole_run(folder: Path) -> None:
    """A finished run with results, a profile and a classifier."""
    run = make_run(folder, classes=["a", "b", "c"])
    write_config(run.config_file, replace(config_of(run), data="nothing-is-here"))  # so that no images are read
    append_start(run, Start("2026-01-01 10:00:00", 0, 2, 100, 8, 1, "cpu", "1", "2"))
    append_records(run, [Skipped(300, 1, 0.1, [FULL])])
    features = run.network.at(1.0)(torch.zeros(1, 3, 16, 16)).shape[1]
    linear: dict[Width, Linear] = {FULL: (torch.randn(3, features), torch.zeros(3))}
    write_probes(probes_file(run, "digits"), Probes(linear, ["a", "b", "c"], "digits", run.weights))
    KEPT["network"] = Run(folder).network


def whole_run(folder: Path) -> Run:
    run = Run(folder)
    vars(run)["network"] = KEPT["network"]  # in place of the cached property
    return run


def read_run(folder: Path) -> None:
    read_records(Run(folder))
    read_history(Run(folder))


def use_run(folder: Path) -> None:
    """The page about a run."""
    build_report([whole_run(folder)], images=False)


def use_probes(folder: Path) -> None:
    export_run(whole_run(folder), ExportSettings(1.0, "safetensors", head="probe"))


def make_bundle(folder: Path) -> None:
    make_model(folder / "model")
    export_run(Run(folder / "model"), ExportSettings(0.5, "onnx", out=folder))
    shutil.rmtree(folder / "model")


def use_bundle(folder: Path) -> None:
    Runtime(folder, "onnx", threads=1).embed(BLACK, 0.5)


PROFILE_NET = network()


def make_profile(folder: Path) -> None:
    rows = [{"width": w, "backend": "torch", "batch": 1, "p50_ms": 2.0, "p95_ms": 3.0} for w in (1.0, 0.5)]
    costs = [{"width": w, "params": 10, "macs": 20, "bytes": 40, "memory": 40} for w in (1.0, 0.5)]
    write_json(
        folder / "profile.json",
        {"version": 2, "image_size": 8, "costs": costs, "latencies": rows, "machine": {"cpu": "some"}},
    )
    write_json(folder / "device.json", {"latencies": rows})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (folder / "device.csv").write_text(text.getvalue())


def read_profiles(folder: Path) -> None:
    PROFILES.load(folder / "profile.json")
    for name in ("device.json", "device.csv"):
        read_device_profile(PROFILE_NET, folder / name)


def picture(number: int, side: int = 12) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8))


def encoded(number: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture(number).save(buffer, kind)
    return buffer.getvalue()


def make_images(folder: Path) -> None:
    for suffix in ("png", "jpg", "gif", "webp", "tif", "bmp", "ppm"):
        picture(0).save(folder / f"image.{suffix}")
    picture(1).convert("RGBA").save(folder / "alpha.png")
    picture(1).convert("P").save(folder / "palette.png")
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8)).save(folder / "deep.png")
    picture(2).save(folder / "packed.tif", compression="tiff_lzw")
    for number, kind in enumerate((np.uint16, np.int32)):
        deep = Image.fromarray(np.arange(63, dtype=kind).reshape(7, 9))
        deep.save(folder / f"deep{number}.tif", tiffinfo={262: number, 274: 6})


def make_contents(folder: Path) -> None:
    Contents(np.arange(1, 9), np.arange(8)).save(folder / "images.safetensors")


def make_parquet(folder: Path) -> None:
    rows = [{"bytes": encoded(number), "path": f"{number}.png"} for number in range(6)]
    names = {"info": {"features": {"label": {"names": ["a", "b"]}}}}
    table = pa.table({"image": rows, "label": [0, 1] * 3}).replace_schema_metadata({"huggingface": json.dumps(names)})
    pq.write_table(table, folder / "train.parquet", row_group_size=4)
    pq.write_table(pa.table({"image": [encoded(7)] * 3, "label": ["x", "y", "x"]}), folder / "other.parquet")
    pq.write_table(pa.table({"image": [encoded(8)] * 3, "label": [1.0, None, 2.0]}), folder / "points.parquet")


def make_shards(folder: Path) -> None:
    with tarfile.open(folder / "x.tar", "w") as archive:
        for number in range(4):
            for ending, content in (("png", encoded(number)), ("cls", b"%d" % (number % 2)), ("json", b'{"label": 1}')):
                member = tarfile.TarInfo(("x" * 120 if number == 3 else "") + f"{number}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def make_coco(folder: Path) -> None:
    mask = np.zeros((12, 12), bool)
    mask[2:9, 3:7] = True
    outline = [[2, 2, 9, 2, 9, 9, 2, 9]]
    counts = {"size": [12, 12], "counts": [20, 4, 120]}
    for split in ("train", "val"):
        (folder / split).mkdir()
        picture(0).save(folder / split / "1.png")
        annotations = [
            {"id": number, "image_id": 1, "category_id": 7, "bbox": [2, 2, 7, 7], "area": 30, "iscrowd": 0,
             "segmentation": shape}
            for number, shape in enumerate((outline, counts, encode_mask(mask)))
        ]  # fmt: skip
        whole = {
            "images": [{"id": 1, "file_name": "1.png", "width": 12, "height": 12}],
            "categories": [{"id": 7, "name": "cat"}],
            "annotations": annotations,
        }
        write_json(folder / "annotations" / f"instances_{split}.json", whole)


def make_voc(folder: Path) -> None:
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for name, split in (("1", "trainval"), ("2", "test")):
        picture(0).save(folder / "JPEGImages" / f"{name}.png")
        box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
        size = "<size><width>12</width><height>12</height></size>"
        one = f"<object><name>cat</name><difficult>0</difficult>{box}</object>"
        (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{size}{one}{one}</annotation>")
        (folder / "ImageSets/Main" / f"{split}.txt").write_text(f"{name}\n")


def read_scenes(folder: Path) -> None:
    for part in load_scenes(folder):
        for scene in part.scenes[:200]:  # a list may name one image many times
            with suppress(Damaged):
                example(scene, masks=part.has_masks)


CHECKPOINTS = Checkpoints()
KINDS = {
    "model": Kind(make_model, read_model, "[mw]*", use_model),
    "statistics": Kind(make_model, read_model, "statistics.safetensors", use_model),
    "checkpoint": Kind(CHECKPOINTS.make, CHECKPOINTS.read, "*.pt"),
    "config": Kind(make_whole_run, lambda folder: config_of(Run(folder)), "config.yaml", use_run),
    "results": Kind(make_whole_run, lambda folder: Run(folder).evaluations, "eval/*.json", use_run),
    "records": Kind(make_whole_run, read_run, "*.jsonl|train.log", use_run),
    "probes": Kind(
        make_whole_run, lambda folder: load_probes(probes_file(Run(folder), "digits")), "eval/*.safetensors", use_probes
    ),
    "bundle": Kind(make_bundle, read_bundle, "manifest.json|example.py|*.onnx", use_bundle),
    "profile": Kind(make_profile, read_profiles, "*"),
    "image": Kind(make_images, lambda folder: load(folder, "all", 8), "*"),
    "hashes": Kind(make_contents, lambda folder: Contents.load(folder / "images.safetensors"), "*"),
    "parquet": Kind(make_parquet, lambda folder: load(folder, "all", 8), "*"),
    "shards": Kind(make_shards, lambda folder: load(folder, "all", 8), "*"),
    "coco": Kind(make_coco, read_scenes, "annotations/*.json"),
    "voc": Kind(make_voc, read_scenes, "Annotations/*.xml|ImageSets/Main/*.txt"),
}
