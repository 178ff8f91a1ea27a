"""Large folders: names in little memory, and an index that is kept and never stale."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from us3l.data import image_folder, index
from us3l.data.catalogue import Names
from us3l.data.image_folder import open_folder
from us3l.data.sources import find

HOUR = 3600


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for indices, which are kept of sources of any size."""
    monkeypatch.setenv("US3L_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(index, "WORTH_KEEPING", 1)
    return tmp_path / "kept"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b/1.png", "a/deep/2.jpg", "a/1.png", "a-c/3.png", "notes.txt", ".hidden/4.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "photos"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is ahead, so that what was just written counts as settled."""
    monkeypatch.setattr(index.time, "time_ns", lambda now=time.time_ns: now() + HOUR * 10**9)


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were listed anew."""
    made: list[Path] = []
    listing = image_folder._listing
    monkeypatch.setattr(image_folder, "_listing", lambda root: made.append(root) or listing(root))
    return made


def names_in(root: Path) -> list[str]:
    found = open_folder(root)
    return [found.name(number) for number in range(len(found))] if found else []


@pytest.mark.parametrize("names", [[], [""], ["a", "", "\u00e9/\U0001f600.png", "\0", "a"]])
def test_names_come_back(names: list[str]) -> None:
    packed = Names.packed(names)
    assert list(packed) == names
    assert [packed[number] for number in range(len(packed))] == names


def test_names_that_are_no_text_are_kept(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.png")).touch()
    (name,) = find(tmp_path, "all").source.read(np.array([0]))
    assert isinstance(name, Path)
    assert name.exists()


def test_order_is_that_of_sorted_paths(photos: Path) -> None:
    assert names_in(photos) == ["a/1.png", "a/deep/2.jpg", "a-c/3.png", "b/1.png"]
    assert names_in(photos) == [str(p) for p in sorted(Path(name) for name in names_in(photos))]


@pytest.mark.usefixtures("later")
def test_an_index_is_made_once(photos: Path, kept: Path, listings: list[Path]) -> None:
    first, again = find(photos, "all"), find(photos, "all")
    assert len(listings) == 1
    assert len(list(kept.iterdir())) == 1
    assert [again.source.name(number) for number in range(4)] == [first.source.name(number) for number in range(4)]
    assert again.labels is not None
    assert first.labels is not None
    assert again.labels.tolist() == first.labels.tolist() == [0, 0, 1, 2]
    assert again.classes == first.classes == ["a", "a-c", "b"]
    assert not [path for path in photos.rglob("*") if "index" in path.name]


@pytest.mark.usefixtures("later", "kept")
@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "a" / "new.png").touch(),
        lambda root: (root / "a" / "deep" / "2.jpg").unlink(),
        lambda root: (root / "b" / "1.png").rename(root / "b" / "2.png"),
        lambda root: (root / "c").mkdir() or (root / "c" / "1.png").touch(),
        lambda root: (root / "a-c").rename(root / "d"),
        lambda root: (root / "b" / "1.png").rename(root / "a" / "9.png"),
    ],
)
def test_every_change_is_seen(photos: Path, change, listings: list[Path]) -> None:
    before = names_in(photos)
    stamps = {path: path.stat() for path in (photos, *photos.rglob("*")) if path.is_dir()}
    change(photos)
    for path, stamp in stamps.items():  # even when someone sets the times of the folders back
        if path.exists():
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    found = names_in(photos)
    assert len(listings) == 2
    assert found != before
    assert set(found) == {str(p.relative_to(photos)) for p in photos.rglob("*.[pj]*g") if ".hidden" not in str(p)}


@pytest.mark.usefixtures("later", "kept")
def test_a_linked_folder_that_changes_is_seen(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "1.png").touch()
    (photos / "link").symlink_to(tmp_path / "one")
    assert "link/1.png" in names_in(photos)
    (tmp_path / "one" / "2.png").touch()
    assert "link/2.png" in names_in(photos)


def test_a_folder_that_changed_just_now_is_not_trusted(photos: Path, kept: Path) -> None:
    find(photos, "all")
    assert not kept.exists()  # another image within the same tick of the clock would not show


@pytest.mark.usefixtures("later")
def test_damaged_or_impossible_indices_are_made_again(
    photos: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = names_in(photos)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    for content in (b"", whole[:-9], whole.replace(b"statuses", b"statuszs"), b"{" * 100):
        file.write_bytes(content)
        assert names_in(photos) == expected
        assert file.read_bytes() == whole
    file.unlink()
    monkeypatch.setenv("US3L_CACHE", "off")
    assert names_in(photos) == expected
    monkeypatch.setenv("US3L_CACHE", str(photos / "notes.txt"))  # no folder
    assert names_in(photos) == expected
    assert not list(kept.iterdir())


@pytest.mark.usefixtures("later")
def test_what_cannot_be_listed_is_named_and_no_index_is_kept(
    kept: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse(path: Path):
        if str(path).rstrip("/").endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(image_folder.os, "scandir", refuse)
    for _ in range(2):
        assert find(photos, "all").source.unreadable == ["a/deep/: Permission denied"]
    assert not kept.exists()
