import json
import os
import shutil
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from rich.console import Console
from torchvision.transforms.v2 import functional as TV

from us3l.data import in_memory as memory
from us3l.data.decode import decode
from us3l.data.sources import ImageSet, find, load, open_images
from us3l.system.errors import UserError
from us3l.system.progress import Screen


def save(path: Path, value: int = 0, size: tuple[int, int] = (8, 8)) -> None:
    """An image of one colour, whose red says which it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 10, 20)).save(path)


def encoded(value: int) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (8, 8), (value, 10, 20)).save(buffer, "PNG")
    return buffer.getvalue()


def reds(images: ImageSet) -> list[int]:
    assert images.images.dtype == torch.uint8
    return images.images[:, 0, 0, 0].tolist()


def classes_of(images: ImageSet) -> list[str]:
    assert images.labels is not None
    assert images.classes is not None
    return [images.classes[label] for label in images.labels]


def write_parquet(path: Path, values: list[int], labels: list | None = None, names: list[str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict = {"image": [{"bytes": encoded(value), "path": f"{value}.png"} for value in values]}
    if labels is not None:
        columns["label"] = labels
    table = pa.table(columns)
    if names:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, path, row_group_size=3)


# Digits


def test_digits() -> None:
    train, test = load("digits"), load("digits", "test")
    assert train.images.shape[1:] == (3, 8, 8)
    assert train.images.dtype == torch.uint8
    assert train.images.max() == 255
    assert (train.images[:, 0] == train.images[:, 2]).all()
    assert train.labels is not None
    assert test.labels is not None
    assert len(train) + len(test) == 1797
    assert 0.19 < len(test) / 1797 < 0.21
    assert (test.labels.bincount() - test.labels.bincount().float().mean()).abs().max() < 2  # stratified
    assert load("digits", "all", size=32).images.shape == (1797, 3, 32, 32)
    assert load("digits", limit=50).labels.bincount().tolist() == [5] * 10


def test_digits_are_the_real_ones() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    ours = load("digits", "all")
    assert np.array_equal(ours.images[:, 1].numpy(), np.round(digits.images * 255 / 16))
    assert ours.labels is not None
    assert np.array_equal(ours.labels.numpy(), digits.target)


# Validation images


def test_validation_images_are_a_fixed_tenth_of_each_class_of_the_training_images() -> None:
    everything, learn, held_out = (find("digits", split) for split in ("pretrain", "learn", "validation"))
    chosen = [part.chosen.tolist() for part in (everything, learn, held_out)]
    assert sorted(chosen[1] + chosen[2]) == chosen[0]
    assert chosen[2] == find("digits", "validation").chosen.tolist()
    assert everything.labels is not None
    assert held_out.labels is not None
    shares = held_out.labels.bincount() / everything.labels.bincount()
    assert ((shares - 0.1).abs() < 0.005).all()
    images = load("digits", "all")  # a set in memory is divided in the same way
    assert torch.equal(load(images, "validation").images, load("digits", "validation").images)


def test_validation_images_of_a_pool_without_labels_and_of_a_source_with_a_test_part(tmp_path: Path) -> None:
    for value in range(20):
        save(tmp_path / "pool" / f"{value}.png", value)
        save(tmp_path / "parts" / "train" / f"c{value % 2}" / f"{value}.png", value)
        save(tmp_path / "parts" / "test" / f"c{value % 2}" / f"{value}.png", 100 + value)
    for folder in (tmp_path / "pool", tmp_path / "parts"):
        learn, held_out = reds(load(folder, "learn")), reds(load(folder, "validation"))
        assert sorted(learn + held_out) == list(range(20))
        assert len(held_out) == 2


# Folders


def test_folder_without_labels(tmp_path: Path) -> None:
    for value in range(10):
        save(tmp_path / "some" / f"{value}.png", value)
    save(tmp_path / "at_the_top.PNG", 10)
    save(tmp_path / ".hidden.png", 99)
    save(tmp_path / ".cache" / "hidden.png", 99)
    (tmp_path / "notes.txt").write_text("not an image")
    images = load(tmp_path, "all")
    assert reds(images) == [10, *range(10)]
    assert images.labels is images.classes is None
    assert images.skipped == []
    assert images.name == tmp_path.name


def test_folder_of_classes_is_divided_by_class(tmp_path: Path) -> None:
    for value in range(30):
        save(tmp_path / ("cat" if value < 20 else "dog") / "deeper" / f"{value:02}.png", value)
    train, test = load(tmp_path), load(tmp_path, "test")
    assert sorted(reds(train) + reds(test)) == list(range(30))
    for part in (train, test):
        assert classes_of(part) == ["cat" if value < 20 else "dog" for value in reds(part)]
    assert classes_of(test) == ["cat"] * 4 + ["dog"] * 2
    assert reds(load(tmp_path, "test")) == reds(test)
    assert reds(test) != [0, 1, 2, 3, 20, 21]  # at random


def test_the_smallest_class_has_a_test_image(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name / "1.png")
        save(tmp_path / name / "2.png")
    assert classes_of(load(tmp_path)) == classes_of(load(tmp_path, "test")) == ["a", "b"]


@pytest.mark.parametrize("test_name", ["test", "val", "valid", "validation", "Val", "val2017"])
def test_folder_with_splits(tmp_path: Path, test_name: str) -> None:
    for value in range(6):
        save(tmp_path / "train" / f"c{value % 3}" / f"{value}.png", value)
    for value in (6, 7):
        save(tmp_path / test_name / f"c{value % 3 + 1}" / f"{value}.png", value)
    train, test = load(tmp_path), load(tmp_path, "test")
    assert sorted(reds(train)) == list(range(6))
    assert sorted(reds(load(tmp_path, "all"))) == list(range(6))
    assert reds(test) == [6, 7]
    assert classes_of(test) == ["c1", "c2"]  # the same numbers as in training, though c0 has no test image
    assert train.classes == test.classes == ["c0", "c1", "c2"]


def test_unlabelled_test_part_of_a_labelled_set(tmp_path: Path) -> None:
    for value in range(4):
        save(tmp_path / "train" / f"c{value % 2}" / f"{value}.png", value)
    save(tmp_path / "test" / "4.png", 4)
    assert classes_of(load(tmp_path)) == ["c0", "c0", "c1", "c1"]
    assert load(tmp_path, "test").labels is None


def test_folder_with_training_part_only(tmp_path: Path) -> None:
    for value in range(10):
        save(tmp_path / "train" / f"c{value % 2}" / f"{value}.png", value)
    train, test = load(tmp_path), load(tmp_path, "test")
    assert sorted(reds(train) + reds(test)) == list(range(10))
    assert classes_of(test) == ["c0", "c1"]
    assert len(load(tmp_path, "all")) == 10


def test_train_may_be_a_class(tmp_path: Path) -> None:
    for value, name in enumerate(["bus", "car", "train"]):
        save(tmp_path / name / "1.png", value)
    assert classes_of(load(tmp_path, "all")) == ["bus", "car", "train"]


def test_one_class_is_no_label(tmp_path: Path) -> None:
    save(tmp_path / "only" / "1.png")
    save(tmp_path / "only" / "2.png")
    assert load(tmp_path, "all").labels is None


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "1.png", 1)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "circle").symlink_to(tmp_path / "set")
    assert reds(load(tmp_path / "set", "all")) == [1]


def test_what_cannot_be_listed_is_skipped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to itself, a folder that may not be read, a path that is too long."""
    save(tmp_path / "photos" / "1.png", 1)
    (tmp_path / "photos" / "itself").symlink_to("itself")
    (tmp_path / "photos" / "itself.png").symlink_to("itself.png")
    save(tmp_path / "photos" / "locked" / "2.png", 2)
    scandir = os.scandir

    def refuse_locked(path: str | Path) -> Iterator[os.DirEntry[str]]:
        if str(path).rstrip("/").endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse_locked)  # nothing is locked to a superuser
    deep = os.open(tmp_path / "photos", os.O_RDONLY)
    for _ in range(20):  # beyond 4,096 letters, a step at a time
        os.mkdir("d" * 250, dir_fd=deep)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    said = StringIO()
    images = load(tmp_path / "photos", "all", progress=Screen(Console(file=said, width=300)))
    assert reds(images) == [1]
    assert images.skipped == ["itself.png: Too many levels of symbolic links"]
    for reason in ("File name too long", "itself: Too many levels of symbolic links", "locked/: Permission denied"):
        assert reason in said.getvalue()
    assert "skipped 3 folders and links of photos" in said.getvalue()
    shutil.rmtree(tmp_path / "photos")


def test_names_that_are_not_text_can_be_written_down(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    for kind in (b"a\xff", b"b"):
        save(folder / os.fsdecode(kind) / os.fsdecode(b"\xfe.png"))
    images = find(folder, "all")
    for name in (images.name, *map(images.source.name, images.chosen), *images.source.classes):
        name.encode()
    assert len(load(folder, "all")) == 2


def test_a_folder_named_after_a_split_has_its_parents_name_too(tmp_path: Path) -> None:
    for part in ("train", "val2017"):
        save(tmp_path / "pets" / part / "cat.png")
        assert find(tmp_path / "pets" / part, "all").name == f"pets/{part}"
    assert find(tmp_path / "pets", "all").name == "pets"


def test_limit_is_balanced_repeatable_and_within_the_split(tmp_path: Path) -> None:
    for value in range(60):
        save(tmp_path / ("rare" if value < 10 else "frequent") / f"{value:02}.png", value)
    train, few = load(tmp_path), load(tmp_path, limit=10)
    assert sorted(classes_of(few)) == ["frequent"] * 5 + ["rare"] * 5
    assert set(reds(few)) < set(reds(train))
    assert reds(few) == reds(load(tmp_path, limit=10))
    assert reds(load(tmp_path, limit=1000)) == reds(train)
    assert sorted(classes_of(load(tmp_path, limit=20)))[-8:] == ["rare"] * 8  # all there are


@pytest.mark.parametrize("shape", [(40, 80), (90, 60), (24, 20)])
def test_images_are_resized_by_the_shorter_side_and_cropped(tmp_path: Path, shape: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8))
    image.save(tmp_path / "image.png")
    expected = TV.pil_to_tensor(TV.center_crop(TV.resize(image, [20]), [20, 20]))
    ours = load(tmp_path, size=20).images[0]
    inside = slice(1, -1)  # torchvision's outermost pixels also have a share of what is cut off
    assert (ours.int() - expected.int())[:, inside, inside].abs().max() <= 1


@pytest.mark.parametrize("sizes", [[(8, 8), (9, 9)], [(8, 6), (8, 6)]])
def test_without_a_size_images_must_be_squares_of_one_size(tmp_path: Path, sizes: list[tuple[int, int]]) -> None:
    for index, size in enumerate(sizes):
        save(tmp_path / f"{index}.png", size=size)
    with pytest.raises(UserError, match="give a size"):
        load(tmp_path, "all")
    assert load(tmp_path, "all", size=4).images.shape == (2, 3, 4, 4)


def test_order_and_progress_over_several_blocks(tmp_path: Path) -> None:
    count = memory.DECODED_AT_ONCE + 44
    for value in range(count):
        save(tmp_path / f"{value:03}.ppm", value % 256, size=(4, 4))
    calls: list[tuple[int, int]] = []
    images = memory.decode_all(find(tmp_path, "all"), progress=lambda done, total: calls.append((done, total)))
    assert reds(images) == [value % 256 for value in range(count)]
    assert calls == [(memory.DECODED_AT_ONCE, count), (count, count)]


# Damaged images


def test_damaged_images_are_skipped_and_named(tmp_path: Path) -> None:
    for value in range(8):
        save(tmp_path / f"c{value % 2}" / f"{value}.png", value)
    save(tmp_path / "c0" / "cut.jpg", size=(64, 64))
    whole = (tmp_path / "c0" / "cut.jpg").read_bytes()
    (tmp_path / "c0" / "cut.jpg").write_bytes(whole[: len(whole) - 100])
    (tmp_path / "c0" / "0_empty.png").touch()
    (tmp_path / "c1" / "broken_link.png").symlink_to(tmp_path / "nowhere.png")
    images = load(tmp_path, "all", size=8)
    assert reds(images) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert classes_of(images) == ["c0"] * 4 + ["c1"] * 4
    assert [line.split(":")[0] for line in images.skipped] == ["c0/0_empty.png", "c0/cut.jpg", "c1/broken_link.png"]
    assert images.skipped[0].endswith(": not an image")
    assert "truncated" in images.skipped[1].lower()
    assert str(tmp_path) not in "".join(images.skipped)


# Kinds of images


def decoded(image: Image.Image, kind: str = "PNG", **options: object) -> np.ndarray:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return decode(buffer.getvalue(), None)


def test_every_mode_becomes_rgb() -> None:
    colour = Image.new("RGB", (4, 4), (200, 100, 50))
    assert decoded(colour)[0, 0].tolist() == [200, 100, 50]
    assert decoded(colour.convert("L"))[0, 0].tolist() == [124] * 3
    assert decoded(Image.new("1", (4, 4), 1))[0, 0].tolist() == [255] * 3
    assert decoded(colour.quantize(4))[0, 0].tolist() == [200, 100, 50]
    assert decoded(colour.convert("CMYK"), "TIFF")[0, 0].tolist() == [200, 100, 50]
    assert decoded(colour, "WEBP", lossless=True)[0, 0].tolist() == [200, 100, 50]


def test_transparency_is_laid_on_white() -> None:
    assert decoded(Image.new("RGBA", (4, 4), (200, 100, 0, 0)))[0, 0].tolist() == [255] * 3
    half = decoded(Image.new("RGBA", (4, 4), (200, 100, 0, 128)))[0, 0]
    assert abs(half - np.array([227, 177, 127])).max() <= 1
    assert decoded(Image.new("LA", (4, 4), (10, 0)))[0, 0].tolist() == [255] * 3
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([9, 9, 9])
    assert decoded(palette)[0, 0].tolist() == [9] * 3
    assert decoded(palette, transparency=0)[0, 0].tolist() == [255] * 3


# Parquet


@pytest.mark.parametrize("below", ["", "data"])
@pytest.mark.parametrize("test_name", ["test", "validation-00000-of-00001"])
def test_parquet_of_the_hub(tmp_path: Path, below: str, test_name: str) -> None:
    folder, names = tmp_path / below, ["cat", "dog", "eel"]
    write_parquet(folder / "train-00000-of-00002.parquet", [0, 1, 2, 3, 4], [0, 1, 0, 1, 0], names)
    write_parquet(folder / "train-00001-of-00002.parquet", [5, 6], [1, 0], names)
    write_parquet(folder / f"{test_name}.parquet", [7, 8], [1, 0], names)
    train, test = load(tmp_path), load(tmp_path, "test")
    assert reds(train) == [0, 1, 2, 3, 4, 5, 6]
    assert classes_of(train) == ["cat", "dog"] * 3 + ["cat"]
    assert train.classes == names
    assert reds(test) == [7, 8]
    assert classes_of(test) == ["dog", "cat"]
    few = load(tmp_path, limit=4)
    assert sorted(classes_of(few)) == ["cat", "cat", "dog", "dog"]
    assert classes_of(few) == [["cat", "dog"][value % 2] for value in reds(few)]


def test_single_parquet_file_is_divided(tmp_path: Path) -> None:
    file = tmp_path / "photos.parquet"
    write_parquet(file, list(range(20)), ["b" if value % 2 else "a" for value in range(20)])
    train, test = load(file), load(str(file), "test")
    assert sorted(reds(train) + reds(test)) == list(range(20))
    assert len(test) == 4
    for part in (train, test):
        assert classes_of(part) == ["b" if value % 2 else "a" for value in reds(part)]
    assert reds(load(file, "all")) == list(range(20))


@pytest.mark.parametrize("labels", [None, [-1, -1, -1], [0, None, 1], [[0], [0, 1], []]])
def test_parquet_without_usable_labels(tmp_path: Path, labels: list | None) -> None:
    write_parquet(tmp_path / "all.parquet", [1, 2, 3], labels)
    images = load(tmp_path, "all")
    assert reds(images) == [1, 2, 3]
    assert images.labels is images.classes is None


def test_images_without_a_label_are_left_out_of_an_evaluation(tmp_path: Path) -> None:
    """In 4 of 20 rows the label is missing."""
    write_parquet(tmp_path / "all.parquet", list(range(20)), [None if row % 5 == 0 else row % 2 for row in range(20)])
    said = StringIO()
    images = open_images(tmp_path, "all", labelled=True, progress=Screen(Console(file=said, width=200)))
    assert isinstance(images, ImageSet)
    assert reds(images) == [row for row in range(20) if row % 5]
    assert classes_of(images) == [str(row % 2) for row in reds(images)]
    assert "left out 4 of 20 images, which have no label" in said.getvalue()
    assert open_images(tmp_path, "all").labels is None


def test_parquet_of_labels_with_a_point(tmp_path: Path) -> None:
    """So libraries write whole numbers of which some are missing."""
    write_parquet(tmp_path / "whole.parquet", [1, 2, 3], [4.0, 7.0, 4.0])
    assert classes_of(load(tmp_path / "whole.parquet", "all")) == ["4", "7", "4"]
    write_parquet(tmp_path / "gaps.parquet", [1, 2, 3], [4.0, float("nan"), 7.0])
    assert find(tmp_path / "gaps.parquet", "all").source.labels.tolist() == [0, -1, 1]


@pytest.mark.parametrize(("labels", "kind"), [([0.5, 1.0, 2.0], "double"), ([[0], [1], []], "list")])
def test_labels_that_are_not_classes_are_named(tmp_path: Path, labels: list, kind: str) -> None:
    write_parquet(tmp_path / "x.parquet", [1, 2, 3], labels)
    said = StringIO()
    assert load(tmp_path, "all", progress=Screen(Console(file=said, width=200))).labels is None
    assert f"left out the column 'label' of x.parquet: it holds {kind}" in said.getvalue()


def test_parquet_of_raw_bytes_with_a_damaged_row(tmp_path: Path) -> None:
    rows = [encoded(0), b"bad", None, encoded(3)]
    pq.write_table(pa.table({"img": pa.array(rows, pa.binary()), "fine_label": [7, 7, 9, 9]}), tmp_path / "x.parquet")
    images = load(tmp_path / "x.parquet", "all")
    assert reds(images) == [0, 3]
    assert classes_of(images) == ["7", "9"]
    assert images.skipped == ["x.parquet row 1: not an image", "x.parquet row 2: no image bytes"]


# Errors


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: no such file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(UserError, match=r"imaginary.*choose from digits"):
        load("imaginary")
    (tmp_path / "digitz").mkdir()
    with pytest.raises(UserError, match=r"no such file or folder; did you mean '[^ ]*digitz'"):
        find(tmp_path / "digitt")


def test_unusable_sources(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no images"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match="neither a folder"):
        load(tmp_path / "notes.txt")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(UserError, match="not a readable parquet"):
        load(tmp_path / "bad.parquet")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "text.parquet")
    with pytest.raises(UserError, match="no column 'image' or 'img'; it has text"):
        load(tmp_path / "text.parquet")
    pq.write_table(pa.table({"image": ["a.png"]}), tmp_path / "paths.parquet")
    with pytest.raises(UserError, match="holds string, not image bytes"):
        load(tmp_path / "paths.parquet", "all")
    save(tmp_path / "one" / "1.png")
    with pytest.raises(UserError, match="no images in the test split"):
        load(tmp_path / "one", "test")
    assert len(load(tmp_path / "one" / "1.png")) == 1
    for bad in ({"size": 0}, {"limit": 0}):
        with pytest.raises(UserError, match="at least 1"):
            load("digits", **bad)  # type: ignore[arg-type]


def test_parquet_damaged_in_the_middle(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    write_parquet(file, list(range(100)))
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)
    file.write_bytes(content)
    with pytest.raises(UserError, match="not a readable parquet"):
        load(file, "all")


@pytest.mark.parametrize("damaged", ["image", "label"])
def test_parquet_whose_repeated_values_have_wrong_numbers(
    damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a damaged file, of which pyarrow notices it only when a value is asked for."""
    file = tmp_path / "x.parquet"
    values = pa.array([encoded(0), encoded(1)] if damaged == "image" else ["a", "b"])
    columns = {"image": pa.array([encoded(0)] * 3), "label": ["a", "b", "a"]}
    pq.write_table(pa.table(columns), file)
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), values, safe=False)
    found = pq.ParquetFile.iter_batches

    def batches(self: pq.ParquetFile, size: int, *, columns: list[str], **settings: object) -> Iterator[pa.RecordBatch]:
        yield from (
            [pa.record_batch({damaged: wrong})]
            if columns == [damaged]
            else found(self, size, columns=columns, **settings)
        )

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", batches)
    with pytest.raises(UserError, match="not a readable parquet"):
        load(file, "all")


def test_memory_is_checked_before_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in range(4):
        save(tmp_path / f"{value}.png", value)
    monkeypatch.setattr(memory, "available_memory", lambda: 2 * 4 * 3 * 16 * 16)
    assert len(load(tmp_path, "all", size=16)) == 4
    with pytest.raises(UserError, match="lower the size"):
        load(tmp_path, "all", size=17)
    assert len(load(tmp_path, "all", size=17, limit=3)) == 3


# Real data


def test_photographs_of_many_sizes(shared_data: Path) -> None:
    train, test = load(shared_data / "coco", size=48), load(shared_data / "coco", "test", size=48)
    assert (len(train), len(test)) == (72, 36)
    assert train.images.shape[1:] == (3, 48, 48)
    assert train.labels is None


def test_pretraining_sees_the_training_split_or_all_of_a_pool_without_labels(tmp_path: Path) -> None:
    for number in range(10):
        save(tmp_path / "flat" / f"{number}.png", number)
        save(tmp_path / "classes" / "ab"[number % 2] / f"{number}.png", number)
    assert len(load(tmp_path / "flat", "pretrain", 8)) == 10
    assert len(load(tmp_path / "flat", "train", 8)) == 8
    assert len(load(tmp_path / "classes", "pretrain", 8)) == 8
    assert len(load("digits", "pretrain")) == len(load("digits", "train"))
