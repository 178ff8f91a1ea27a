"""WebDataset shards, and the order in which sources that lie in blocks are read."""

import io
import json
import pickle
import tarfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from us3l.data import index, parquet, shards, streamed
from us3l.data.catalogue import Blocks
from us3l.data.images import Step
from us3l.data.sources import ImageFiles, decode_all, find, load
from us3l.data.streamed import block_order
from us3l.data.view_settings import Views
from us3l.system.errors import UserError


def image(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (value, 10, 20)).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_shards(root: Path, counts: list[int], name: str = "photos-{:04}.tar") -> None:
    """Shards of images whose red is their number, labelled by .cls with the number modulo 3."""
    number = 0
    for shard, count in enumerate(counts):
        members: dict[str, bytes] = {}
        for _ in range(count):
            members |= {f"{number:03}.png": image(number), f"{number:03}.cls": str(number % 3).encode()}
            number += 1
        write_tar(root / name.format(shard), members)


def reds(files: ImageFiles) -> list[int]:
    return decode_all(files).images[:, 0, 0, 0].tolist()


def test_shards_are_read_by_index_with_their_labels(tmp_path: Path) -> None:
    write_shards(tmp_path, [4, 0, 3])
    files = find(tmp_path, "all")
    assert reds(files) == list(range(7))
    assert files.labels is not None
    assert files.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert files.classes == ["0", "1", "2"]
    assert files.source.name(4) == "photos-0002.tar: 004.png"
    assert reds(files.subset(torch.tensor([1, 5]))) == [1, 5]
    assert reds(find(tmp_path / "photos-0002.tar", "all")) == [4, 5, 6]
    assert reds(pickle.loads(pickle.dumps(files))) == list(range(7))
    (tmp_path / "classnames.txt").write_text("cat\ndog\neel\nfly\n")
    assert find(tmp_path, "all").classes == ["cat", "dog", "eel", "fly"]
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    with pytest.raises(UserError, match="label 2 has no name; 2 classes are named"):
        find(tmp_path, "all")


def test_json_labels_long_names_and_odd_members(tmp_path: Path) -> None:
    long = "x" * 150
    write_tar(
        tmp_path / "x.tar",
        {
            "a/1.jpg": image(1),
            "a/1.json": json.dumps({"label": "cat"}).encode(),
            "b/1.png": image(2),  # another sample of that base name
            "b/1.json": json.dumps({"cls": "dog", "text": "a dog"}).encode(),
            f"{long}.json": json.dumps({"label": "cat"}).encode(),
            f"{long}.png": image(3),
            f"{long}.mask.png": image(99),
            "notes.txt": b"no image",
            "4.png": image(4),
            "4.json": b"{" * 100_000,
        },
    )
    files = find(tmp_path, "all")
    assert reds(files) == [1, 2, 3, 4]
    assert files.source.classes == ["cat", "dog"]
    assert files.source.labels.tolist() == [0, 1, 0, -1]


@pytest.mark.parametrize(("train", "test"), [("train-0.tar", "val-0.tar"), ("train/0.tar", "test/0.tar")])
def test_shards_with_splits(tmp_path: Path, train: str, test: str) -> None:
    write_shards(tmp_path, [3], train)
    write_shards(tmp_path, [2], test)
    write_shards(tmp_path, [5], "other-0.tar" if "-" in train else "other/0.tar")
    assert len(load(tmp_path, "train")) == 3
    assert len(load(tmp_path, "test")) == 2


def test_images_in_the_folder_come_before_archives_beside_them(tmp_path: Path) -> None:
    write_shards(tmp_path, [3])
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "1.png").write_bytes(image(77))
    assert reds(find(tmp_path, "all")) == [77]


def test_names_in_archives_are_never_paths(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(image(200))
    link = tarfile.TarInfo("link.png")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.png")
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / "x.tar", "w") as archive:
        archive.addfile(link)
        for name, value in (("../secret.png", 1), (str(tmp_path / "secret.png"), 2)):
            member = tarfile.TarInfo(name)
            member.size = len(image(value))
            archive.addfile(member, io.BytesIO(image(value)))
    before = sorted(tmp_path.rglob("*"))
    assert reds(find(tmp_path / "in", "all")) == [1, 2]
    assert sorted(tmp_path.rglob("*")) == before


def test_damaged_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, [5])
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    header = whole.index(b"003.png")
    for content in (whole[: header + 300], whole[: header + 600], whole[:header] + b"garbage" + whole[header + 7 :]):
        file.write_bytes(content)
        with pytest.raises(UserError, match="not a tar file, or damaged"):
            find(tmp_path, "all")
    file.write_bytes(b"")
    with pytest.raises(UserError, match="not a tar file"):
        find(tmp_path, "all")
    write_tar(file, {"notes.txt": b"hello"})
    with pytest.raises(UserError, match="no images in it"):
        find(tmp_path, "all")


def test_a_header_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    """A long name that is said to have 3 GiB, in a file with a hole of that size."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 3 * 2**30
    with open(tmp_path / "x.tar", "wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.truncate(4 * 2**30)
    with pytest.raises(UserError, match="a header of 3221225472 bytes"):
        find(tmp_path, "all")


def test_a_shard_that_changes_while_it_is_used_is_noticed(tmp_path: Path) -> None:
    write_shards(tmp_path, [3])
    files = find(tmp_path, "all")
    write_shards(tmp_path, [4])
    with pytest.raises(UserError, match="has changed"):
        reds(files)


class Counted:
    """Remembers what it is told."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def say(self, text: str, style: str | None = None) -> None:
        pass

    def counting(self, *_: Any) -> Any:
        return nullcontext(SimpleNamespace(so_far=lambda *step: self.steps.append(step)))


def test_the_index_of_shards_is_kept_until_one_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("US3L_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(index, "WORTH_KEEPING", 1)
    monkeypatch.setattr(index, "SETTLED", -(10**10))
    looked: list[Path] = []
    samples = shards._samples
    monkeypatch.setattr(shards, "_samples", lambda path: looked.append(path) or samples(path))
    root, seen = tmp_path / "set", []
    write_shards(root, [3, 2])
    assert reds(find(root, "all", progress=Counted(seen))) == reds(find(root, "all"))
    assert len(looked) == 2
    assert seen == [(1, 2), (2, 2)]
    write_tar(root / "photos-0001.tar", {"9.png": image(9)})
    assert reds(find(root, "all")) == [0, 1, 2, 9]
    write_tar(root / "photos-0002.tar", {"8.png": image(8)})
    assert reds(find(root, "all")) == [0, 1, 2, 9, 8]


# The order of an epoch


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_blocks_are_shuffled_and_mixed_within_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "WINDOW_IMAGES", 20)
    blocks = Blocks(np.arange(0, 100, 10), np.zeros(10, np.int64))
    chosen = np.arange(100)
    found = block_order(blocks, chosen, seeded(1))
    assert sorted(found.tolist()) == list(range(100))
    windows = [{int(place) // 10 for place in part} for part in found.split(20)]
    assert all(len(window) == 2 for window in windows)  # a reader is at two blocks at a time
    assert [min(window) for window in windows] != sorted(min(window) for window in windows)
    assert any(part.tolist() != sorted(part.tolist()) for part in found.split(10))
    assert torch.equal(found, block_order(blocks, chosen, seeded(1)))
    assert not torch.equal(found, block_order(blocks, chosen, seeded(2)))
    some = np.array([3, 5, 41, 42, 99])
    assert sorted(block_order(blocks, some, seeded(0)).tolist()) == [0, 1, 2, 3, 4]
    monkeypatch.setattr(streamed, "WINDOW_BYTES", 5)
    large = Blocks(blocks.starts, np.full(10, 4))
    assert all(
        len({int(place) // 10 for place in part}) == 1 for part in block_order(large, chosen, seeded(1)).split(10)
    )


def test_an_epoch_of_shards_goes_on_in_its_middle_whatever_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "WINDOW_IMAGES", 6)
    write_shards(tmp_path, [4] * 5)
    files = find(tmp_path, "all")
    batches = list(files.order(seeded(3)).split(3))

    def views(first: int, workers: int) -> torch.Tensor:
        found = list(files.views(Views(size=8), [Step(0, 3, batch) for batch in batches[first:]], 0, workers=workers))
        assert torch.cat([batch.indices for batch in found]).tolist() == torch.cat(batches[first:]).tolist()
        return torch.cat([batch.views[1] for batch in found])

    whole = views(0, 0)
    assert torch.equal(views(0, 2), whole)
    assert torch.equal(views(4, 1), whole[12:])


def test_row_groups_are_read_once_in_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(streamed, "WINDOW_IMAGES", 6)
    for part in range(2):
        rows = pa.array([image(10 * part + number) for number in range(10)], pa.binary())
        pq.write_table(pa.table({"image": rows}), tmp_path / f"part-{part}.parquet", row_group_size=3)
    files = find(tmp_path, "all")
    blocks = files.source.blocks
    assert blocks is not None
    assert blocks.starts.tolist() == [0, 3, 6, 9, 10, 13, 16, 19]
    assert (blocks.nbytes > 0).all()
    read: list[tuple[str, int]] = []
    columns = parquet._Table.columns
    monkeypatch.setattr(
        parquet._Table, "columns", lambda table, group: read.append((table.path.name, group)) or columns(table, group)
    )
    batches = files.order(seeded(0)).split(2)
    found = list(files.views(Views(size=8), [Step(0, 0, batch) for batch in batches], 0, workers=0))
    assert sorted(int(index) for batch in found for index in batch.indices) == list(range(20))
    assert len(read) == len(set(read)) == 7  # the first was looked into when the files were found
    monkeypatch.setattr(parquet, "HELD_BYTES", 100)  # less than a row group
    assert reds(find(tmp_path, "all")) == list(range(20))


def test_many_row_groups_cost_no_more_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept was added up anew for each group: a small file of 20,000 groups took minutes."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = pa.array([image(number) for number in range(60)], pa.binary())
    pq.write_table(pa.table({"image": rows}), tmp_path / "part.parquet", row_group_size=1)
    asked: list[int] = []

    class Column(list[Any]):
        @property
        def nbytes(self) -> int:
            asked.append(len(self))
            return 10

    columns = parquet._Table.columns
    monkeypatch.setattr(parquet._Table, "columns", lambda table, group: map(Column, columns(table, group)))
    monkeypatch.setattr(parquet, "HELD_BYTES", 205)  # of 20 groups
    files = find(tmp_path, "all")
    assert reds(files) == list(range(60))
    assert 60 <= len(asked) <= 2 * 60
    assert len(files.source.read.__self__.kept) == 20  # type: ignore[attr-defined]
