"""Every image is known by its bytes: what was replaced, overwritten, removed or copied to the other split shows."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from us3l.data import contents as contents_module
from us3l.data.cached import CachedImages
from us3l.data.contents import UNKNOWN, Contents, content_hash, duplicates
from us3l.data.images import Batch, ImageSet, Step
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import find, load, open_for_training, open_images
from us3l.data.streamed import ImageFiles
from us3l.data.view_settings import Views
from us3l.system.errors import UserError

COUNT = 40  # more than the 16 images that a fingerprint looks into
VIEWS = Views(size=8)


def bmp(number: int) -> bytes:
    """An image of noise in a format that always takes the same space."""
    file = BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (12, 20, 3), np.uint8)
    Image.fromarray(pixels).save(file, "BMP")
    return file.getvalue()


def write_folder(place: Path, images: list[bytes]) -> Path:
    (place / "photos").mkdir(exist_ok=True)
    for number, image in enumerate(images):
        (place / "photos" / f"{number:02}.bmp").write_bytes(image)
    return place / "photos"


def write_parquet(place: Path, images: list[bytes]) -> Path:
    table = pa.table({"image": pa.array(images, pa.binary())})
    pq.write_table(table, place / "photos.parquet", compression="none", use_dictionary=False, row_group_size=16)
    return place / "photos.parquet"


def write_tar(place: Path, images: list[bytes]) -> Path:
    with tarfile.open(place / "photos.tar", "w") as archive:
        for number, image in enumerate(images):
            member = tarfile.TarInfo(f"{number:02}.bmp")
            member.size = len(image)
            archive.addfile(member, BytesIO(image))
    return place / "photos.tar"


def read_all(images: ImageFiles | ImageSet) -> None:
    list(images.batches(Preprocessing.usual(8)))


OPENINGS: dict[str, Callable[[Path], ImageFiles | ImageSet]] = {
    "streamed": lambda path: open_images(path, "all", 8, stream=True),
    "in memory": lambda path: open_images(path, "all", 8),
    "cached": lambda path: open_for_training(path, VIEWS),
}


@pytest.mark.parametrize("write", [write_folder, write_parquet, write_tar])
@pytest.mark.parametrize("opening", OPENINGS)
def test_one_image_replaced_by_another_of_its_size_shows(
    write: Callable[[Path, list[bytes]], Path], opening: str, tmp_path: Path
) -> None:
    """Which the fingerprint of sizes and of some images does not tell."""
    images = [bmp(number) for number in range(COUNT)]
    path, open_again = write(tmp_path, images), OPENINGS[opening]
    opened = open_again(path)
    assert isinstance(opened, CachedImages) == (opening == "cached")
    if opening == "streamed":
        read_all(opened)
    before, fingerprint = opened.contents, opened.fingerprint()
    assert before.complete
    assert not open_again(path).changed_since(before)
    images[6] = bmp(1006)
    write(tmp_path, images)
    again = open_again(path)
    if opening != "in memory":
        assert again.fingerprint() == fingerprint
    (line,) = again.changed_since(before)
    assert line.endswith("06.bmp: other bytes than before") or line == "photos.parquet row 6: other bytes than before"
    assert again.contents.complete
    assert again.contents.digest() != before.digest()


def test_files_that_were_not_touched_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_folder(tmp_path, [bmp(number) for number in range(COUNT)])
    opened = find(path, "all")
    read_all(opened)
    hashed: list[object] = []
    monkeypatch.setattr(
        "us3l.data.streamed.content_hash", lambda encoded: hashed.append(encoded) or content_hash(encoded)
    )
    assert not find(path, "all").changed_since(opened.contents)
    assert not hashed
    copy = shutil.copytree(path, tmp_path / "copy")  # as on another machine
    assert not find(copy, "all").changed_since(opened.contents)
    assert len(hashed) == COUNT
    (copy / "03.bmp").unlink()
    (copy / "03.bmp").symlink_to("nowhere")
    assert find(copy, "all").changed_since(opened.contents) == ["03.bmp: cannot be read any more"]
    with pytest.raises(UserError, match="there are 39 images, and there were 40"):
        find(sorted(copy.glob("*.bmp"))[:39], "all").changed_since(opened.contents)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_changes_between_epochs_is_named(workers: int, tmp_path: Path) -> None:
    path = write_folder(tmp_path, [bmp(number) for number in range(COUNT)])
    files = find(path, "all")

    def epochs(first: int, last: int) -> list[Batch]:
        steps = [Step(number, number, torch.arange(COUNT)) for number in range(first, last)]
        return list(files.views(VIEWS, steps, 0, workers=workers))

    batches = epochs(0, 2)
    (path / "05.bmp").write_bytes(bmp(1005))
    (path / "11.bmp").unlink()
    batches += epochs(2, 4)
    assert not [line for batch in batches[:2] for line in batch.changed]
    assert batches[2].changed == ["05.bmp: other bytes than before"]
    assert not batches[3].changed  # it is as it was in the epoch before
    assert [line.split(":")[0] for line in batches[2].damaged] == ["11.bmp"]


def test_images_without_files_are_known_by_their_pixels() -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), np.uint8))
    for opened in (ImageSet("pixels", pixels), load(pixels, "all")):
        before = opened.contents
        assert before.complete
        assert not opened.changed_since(before)
        turned = pixels.clone()
        turned[2] = turned[2].flip(-1)  # of the same sum
        for other in (ImageSet("pixels", turned), load(turned, "all")):
            if isinstance(other.files, ImageFiles) == isinstance(opened.files, ImageFiles):
                assert [line.split(":")[0] for line in other.changed_since(before)] == ["image 2"]


def test_hashes_come_back_from_a_file(tmp_path: Path) -> None:
    contents = Contents(np.array([3, UNKNOWN, 5]), np.array([1, 2, UNKNOWN]))
    contents.save(tmp_path / "images.safetensors")
    again = Contents.load(tmp_path / "images.safetensors")
    assert (again.hashes.tolist(), again.statuses.tolist()) == ([3, 0, 5], [1, 2, 0])
    assert not again.complete
    assert again.digest() is None
    whole = (tmp_path / "images.safetensors").read_bytes()
    for damaged in (whole[:-3], b"", whole.replace(b"I64", b"F64"), whole.replace(b"statuses", b"statuser")):
        (tmp_path / "images.safetensors").write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            Contents.load(tmp_path / "images.safetensors")


def test_a_status_tells_any_change_of_a_file(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.integers(0, 2**60, (1000, 4))
    numbers = contents_module.status_numbers(rows)
    assert len(set(numbers.tolist())) == 1000
    assert numbers.min() > 0
    for column in range(4):
        changed = rows.copy()
        changed[:, column] += 1
        assert (contents_module.status_numbers(changed) != numbers).all()
    path = write_folder(tmp_path, [bmp(0)])
    files = find(path, "all")
    (before,) = files.source.statuses(files.chosen)
    os.utime(path / "00.bmp", ns=(1, 1))
    (after,) = files.source.statuses(files.chosen)
    assert before != after


def test_copies_in_the_other_split_are_found(tmp_path: Path) -> None:
    for split, numbers in (("train", range(COUNT)), ("test", (3, 100, 9, 3))):
        (tmp_path / split).mkdir()
        for place, number in enumerate(numbers):
            (tmp_path / split / f"{place:02}.bmp").write_bytes(bmp(number))
    train, test = (find(tmp_path, split) for split in ("train", "test"))
    assert duplicates(train.contents, test.contents) == []  # nothing was read
    assert duplicates(train.read_contents(), test.read_contents()) == [(3, 0), (9, 2), (3, 3)]
