"""Small files that ask for much memory or time get little of either. Measured in a fork of this process."""

from __future__ import annotations

import io
import json
import multiprocessing
import struct
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fuzz.run import reset_peak, status_bytes
from us3l.data.decode import Damaged, decode
from us3l.data.sources import load
from us3l.detection import scenes
from us3l.detection.examples import example
from us3l.detection.voc import read_annotation
from us3l.system.errors import UserError


def cost(work: Callable[[], object]) -> tuple[str, float, float]:
    """Return what became of it in a fork of this process, MiB and seconds of processor time."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(work, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _measure(work: Callable[[], object], to: Connection) -> None:
    before, began = reset_peak(), time.process_time()
    try:
        work()
        outcome = "accepted"
    except (Damaged, UserError) as error:
        outcome = f"refused: {' '.join(str(error).split())[:200]}"
    to.send((outcome, (status_bytes("VmHWM") - before) / 2**20, time.process_time() - began))


def jpeg_of_many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose coefficients are refined again and again."""
    buffer = io.BytesIO()
    Image.new("L", (side, side)).save(buffer, "JPEG", progressive=True, quality=30)
    whole = buffer.getvalue()
    first = whole.index(b"\xff\xda")
    second = whole.index(b"\xff\xda", first + 2)
    scan = whole[first:second]  # with the tables that follow it
    return whole[:first] + scan * scans + whole[second:]


def test_a_jpeg_of_many_scans(tmp_path: Path) -> None:
    """700 scans in 0.8 MB took 53 s."""
    (tmp_path / "scans.jpg").write_bytes(jpeg_of_many_scans(4000, 700))
    outcome, mebibytes, seconds = cost(lambda: decode(tmp_path / "scans.jpg", 32))
    assert outcome.startswith("refused: a JPEG of 4000x4000 pixels in ")
    assert seconds < 5
    assert mebibytes < 100


def test_usual_progressive_jpegs_are_read(tmp_path: Path) -> None:
    Image.effect_noise((1500, 1000), 80).convert("RGB").save(tmp_path / "photo.jpg", progressive=True, quality=95)
    content = (tmp_path / "photo.jpg").read_bytes()
    (tmp_path / "motion.jpg").write_bytes(content + b"\xff\xda\x00\x02" * 2000)  # what phones put behind a photo
    for name in ("photo.jpg", "motion.jpg"):
        assert cost(partial(decode, tmp_path / name, 32))[0] == "accepted"


def test_a_progressive_jpeg_is_held_in_full(tmp_path: Path) -> None:
    """Of others a fraction is decoded, so that they may have more pixels."""
    buffer = io.BytesIO()
    Image.new("L", (64, 64)).save(buffer, "JPEG", progressive=True)
    content = bytearray(buffer.getvalue())
    frame = content.index(b"\xff\xc2")
    content[frame + 5 : frame + 9] = struct.pack(">HH", 9000, 9000)
    (tmp_path / "large.jpg").write_bytes(content)
    outcome, mebibytes, _ = cost(lambda: decode(tmp_path / "large.jpg", 32))
    assert outcome.startswith("refused: 9000x9000 are more than")
    assert mebibytes < 100


def webp(kind: bytes, content: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


@pytest.mark.parametrize("kind", ["VP8L", "VP8 ", "VP8X"])
def test_a_webp_that_is_all_size(tmp_path: Path, kind: str) -> None:
    """34 bytes took 1.28 GiB."""
    most = 16382
    content = {
        "VP8L": b"\x2f" + struct.pack("<I", most | most << 14) + b"\0" * 8,
        "VP8 ": b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", most, most) + b"\0" * 8,
        "VP8X": b"\0" * 4 + struct.pack("<I", most)[:3] + struct.pack("<I", most)[:3] + b"\0" * 8,
    }[kind]
    (tmp_path / "large.webp").write_bytes(webp(kind.encode(), content))
    outcome, mebibytes, _ = cost(lambda: decode(tmp_path / "large.webp", 32))
    assert outcome.startswith("refused: 1638")
    assert mebibytes < 100


def test_a_parquet_value_that_is_repeated(tmp_path: Path) -> None:
    """A few hundred bytes took 3 GiB."""
    value = Image.new("L", (2000, 1500))
    buffer = io.BytesIO()
    value.save(buffer, "BMP")
    image = pa.DictionaryArray.from_arrays(pa.array([0] * 128, pa.int32()), pa.array([buffer.getvalue()], pa.binary()))
    table = pa.table({"image": image.cast(pa.binary())})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", dictionary_pagesize_limit=2**30)
    assert (tmp_path / "x.parquet").stat().st_size < 10_000
    outcome, mebibytes, seconds = cost(lambda: load(tmp_path, "all", 8))
    assert outcome == "accepted"
    assert mebibytes < 350
    assert seconds < 30


def test_masks_of_many_large_objects(tmp_path: Path) -> None:
    """A COCO file of 32 KB took 7.6 GiB and 71 s."""
    side = 8000
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        Image.new("1", (side, side)).save(tmp_path / split / "1.png")
        one = {"image_id": 1, "category_id": 7, "bbox": [2, 2, 7, 7], "area": 30, "iscrowd": 0}
        shape = {"size": [side, side], "counts": [0, side * side]}
        whole = {
            "images": [{"id": 1, "file_name": "1.png", "width": side, "height": side}],
            "categories": [{"id": 7, "name": "cat"}],
            "annotations": [one | {"id": number, "segmentation": shape} for number in range(100)],
        }
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(whole))
    outcome, mebibytes, seconds = cost(lambda: example(scenes.load(tmp_path)[0].scenes[0], masks=True))
    assert outcome == "refused: masks of 100 objects of 8000x8000 pixels are too many to hold"
    assert mebibytes < 1000
    assert seconds < 30


def test_xml_of_nothing_but_elements(tmp_path: Path) -> None:
    """An annotation of 16 MiB took 1.5 GiB."""
    for number, text in enumerate(("<a/>" * 10**6, "<a>" * 10**6 + "</a>" * 10**5, "<a/>" * (4 * 10**6))):
        path = tmp_path / f"{number}.xml"
        path.write_text(f"<annotation>{text}</annotation>")
        outcome, mebibytes, seconds = cost(partial(read_annotation, path))
        assert outcome.startswith(("refused: it has more than 131,072 elements", "refused: cannot read"))
        assert mebibytes < 150
        assert seconds < 5
