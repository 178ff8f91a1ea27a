"""Files made to take memory, to hang, to leave their folder or to run code."""

import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import us3l
from fuzz.kinds import recipe_trainer
from us3l.commands.main import main
from us3l.data import datasets as named
from us3l.data.datasets import NAMED_SETS, download
from us3l.data.decode import Damaged, decode
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import decode_all, find
from us3l.detection import coco
from us3l.run.bundles import Bundle, Entry, read_bundle, write_bundle
from us3l.run.config import read_config
from us3l.run.evaluations import EVALUATIONS
from us3l.storage import read_torch
from us3l.system.errors import UserError
from us3l.system.files import checksum, read_bytes, read_json
from us3l.training.run_config import RunConfig
from us3l.width import Width


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """An image that is said to have this size."""
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(pixels)))
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


# Images


@pytest.mark.parametrize(("width", "height"), [(9000, 9000), (2**31 - 1, 2**31 - 1), (1, 2**27), (0, 0)])
def test_images_of_huge_or_no_size(width: int, height: int) -> None:
    with pytest.raises(Damaged):
        decode(png(width, height), 8)


def test_a_large_photograph_is_read_at_a_fraction_of_its_size(tmp_path: Path) -> None:
    Image.new("L", (9000, 8000)).save(tmp_path / "large.jpg", quality=5)  # more pixels than are allowed
    assert decode(tmp_path / "large.jpg", 32).shape == (32, 32, 3)
    with pytest.raises(Damaged, match="9000x8000 are more than 67,108,864 pixels"):
        decode(tmp_path / "large.jpg", None)


def test_formats_that_run_other_programs_are_no_images() -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) (w) file\n%%EOF\n"
    with pytest.raises(Damaged, match="not an image"):
        decode(script, 8)


def test_pipes_and_devices_are_no_images(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "zero.png"):
        with pytest.raises(Damaged, match="not a file"):
            decode(tmp_path / name, 8)
        with pytest.raises(UserError, match="it is not a regular file"):
            read_bytes(tmp_path / name)


def test_a_parquet_file_that_repeats_a_large_image(tmp_path: Path) -> None:
    """100 times 4 MB, of which the file holds one."""
    once = pa.array([np.random.default_rng(0).bytes(4_000_000)])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), once)
    pq.write_table(pa.table({"image": repeated, "label": repeated}), tmp_path / "x.parquet", store_schema=False)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(UserError, match="none of 100 images can be read"):
        decode_all(find(tmp_path, "all"), 8)
    assert pa.default_memory_pool().max_memory() - before < 2**27


# Models and settings


HUGE = [{"base": 10**6}, {"base": 2**62}, {"base": 10**40}, {"base": -8}, {"base": "8"}, {"num_classes": 10**15}]
HUGE_TRANSFORMERS = [{"depth": 10**9}, {"image_size": 10**9}, {"base": 2**40}]


@pytest.mark.parametrize(("transformer", "change"), [*product([False], HUGE), *product([True], HUGE_TRANSFORMERS)])
def test_a_model_that_claims_to_be_huge(tmp_path: Path, transformer: bool, change: dict) -> None:
    if transformer:
        us3l.create("vit_tiny", image_size=8, patch=4, base=8, depth=1).save(tmp_path)
    else:
        us3l.create("resnet18", stem="cifar", base=8).save(tmp_path)
    description = json.loads((tmp_path / "model.json").read_text())
    description["options"] |= change
    (tmp_path / "model.json").write_text(json.dumps(description))
    with pytest.raises(UserError):
        us3l.load(tmp_path)


def test_aliases_in_yaml_do_not_multiply(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    (tmp_path / "config.yaml").write_text("\n".join([*lines, "data: *a39"]))
    with pytest.raises(UserError, match="aliases"):
        read_config(tmp_path / "config.yaml", RunConfig)


@pytest.mark.parametrize(
    "text",
    [
        "data: 2001-99-99",
        "data: !!python/object/apply:os.system [true]",
        "recipe: {seed: " + "9" * 5000 + "}",
        "recipe: {optimiser: {lr: .nan}}",
        "recipe: {optimiser: {lr: 1" + "0" * 400 + "}}",
        "recipe: {seed: 99999999999999999999}",
        "[" * 5000,
        "x: " + "y" * 2**17,
        "data: \0",
    ],
)
def test_settings_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_config(tmp_path / "config.yaml", RunConfig)
    assert len(str(caught.value)) < 1000
    assert main(["pretrain", "digits", "--out", str(tmp_path / "run"), "--config", str(tmp_path / "config.yaml")]) == 2


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 100_000, '{"widths": ' + "9" * 5000 + "}", "\xff", "[1]", ""])
def test_json_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin1"))
    with pytest.raises(UserError, match="cannot read"):
        read_json(tmp_path / "x.json")


def test_results_with_numbers_beyond_arithmetic(tmp_path: Path) -> None:
    for value in (10**400, float("inf"), float("nan"), True, "5"):
        row = {"width": 0.5, "params": 1, "macs": 1, "rankme": value}
        (tmp_path / "x.json").write_text(json.dumps({"version": 3, "widths": [row]}))
        with pytest.raises(UserError, match=r"cannot read .*x\.json: widths\[0\]\.rankme: "):
            EVALUATIONS.load(tmp_path / "x.json")


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_states_run_no_code_and_are_not_compressed(tmp_path: Path) -> None:
    torch.save({"step": 1, "weights": torch.zeros(3)}, tmp_path / "good.pt")
    assert read_torch(tmp_path / "good.pt")["step"] == 1
    assert read_torch(io.BytesIO((tmp_path / "good.pt").read_bytes() + b"a checksum"))["step"] == 1
    torch.save({"step": Harmful(tmp_path / "made")}, tmp_path / "bad.pt")
    with pytest.raises(ValueError, match="holds more than tensors and plain values"):
        read_torch(tmp_path / "bad.pt")
    assert not (tmp_path / "made").exists()
    with zipfile.ZipFile(tmp_path / "good.pt") as good, zipfile.ZipFile(tmp_path / "packed.pt", "w") as packed:
        for name in good.namelist():
            packed.writestr(name, good.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="compressed"):
        read_torch(tmp_path / "packed.pt")


# Boxes and masks


def coco_file(tmp_path: Path, size: int, segmentation: object) -> Path:
    (tmp_path / "train").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "1.png")
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4], "segmentation": segmentation}
    whole = {
        "images": [{"id": 1, "file_name": "1.png", "width": size, "height": size}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [annotation],
    }
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_train.json").write_text(json.dumps(whole))
    return tmp_path


@pytest.mark.parametrize(
    ("size", "segmentation"),
    [
        (8, {"size": [8, 8], "counts": "0P"}),  # pycocotools would read on behind the text
        (8, {"size": [8, 8], "counts": [0.5, 63.5]}),
        (8, {"size": [8, 8], "counts": [10**400, -(10**400) + 64]}),
        (8, [[0, 0, 10**400, 0, 4, 4]]),
        (2000, [[0, 0, 3999, 0] * 3000]),  # an outline of 24 million pixels
    ],
)
def test_masks_that_would_take_any_memory(tmp_path: Path, size: int, segmentation: object) -> None:
    with pytest.raises(UserError, match="segmentation that is neither"):
        coco.read_split("x", coco_file(tmp_path, size, segmentation), "train")


def test_images_annotated_as_huge_are_left_out(tmp_path: Path) -> None:
    side = 10**5
    counts = {"size": [side, side], "counts": [side * side]}
    with pytest.raises(UserError, match="of which none is in"):
        coco.read_split("x", coco_file(tmp_path, side, counts), "train")


# Files that leave their folder


def test_a_link_out_of_a_bundle(tmp_path: Path) -> None:
    folder, file = tmp_path / "bundle", tmp_path / "bundle" / "net.onnx"
    folder.mkdir()
    file.write_bytes(b"a network")
    entry = Entry(Width(1.0), "onnx", False, {file.name: checksum(file)}, 1, 1, 9, 3)
    write_bundle(Bundle(folder, "resnet18", Preprocessing.usual(8), [entry]))
    assert read_bundle(folder).path(entry) == file
    file.rename(tmp_path / "elsewhere.onnx")
    file.symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(UserError, match="leads out of the bundle"):
        read_bundle(folder)


@pytest.mark.parametrize("kind", ["parent", "absolute", "link"])
def test_archives_cannot_write_outside_their_folder(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets.utils import extract_archive

    root = tmp_path / "data"
    root.mkdir()
    member = tarfile.TarInfo({"parent": "../out.txt", "absolute": str(tmp_path / "out.txt"), "link": "in"}[kind])
    member.size = 5
    if kind == "link":
        member.type, member.linkname, member.size = tarfile.SYMTYPE, str(tmp_path), 0
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.addfile(member, io.BytesIO(b"harm!"))
    hostile = replace(NAMED_SETS["cifar10"], fetch=lambda where: extract_archive(tmp_path / "set.tar", where))
    monkeypatch.setitem(named.NAMED_SETS, "cifar10", hostile)
    if kind == "absolute":  # the leading slash is taken off
        download("cifar10", root)
    else:
        with pytest.raises(UserError, match="cannot be fetched"):
            download("cifar10", root)
    assert not (tmp_path / "out.txt").exists()
    assert not (root / "in").is_symlink()


def test_a_checkpoint_with_other_values_than_numbers():
    """Found by fuzzing."""
    trainer = recipe_trainer()
    with pytest.raises(UserError, match="does not fit"):
        trainer.load_state(trainer.state() | {"skipped": {"a": 0}})


def test_names_of_columns_do_not_break_the_line(tmp_path: Path) -> None:
    pq.write_table(pa.table({"one\ntwo\x0cthree": [b"x"]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="no column") as caught:
        find(tmp_path / "x.parquet", "all")
    assert len(str(caught.value).splitlines()) == 1
