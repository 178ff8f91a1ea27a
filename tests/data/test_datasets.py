"""The paper's data sets by name, on files made in the layout that torchvision expects."""

import hashlib
import pickle
import struct
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets as known
from PIL import Image
from scipy.io import savemat

from us3l.data.datasets import NAMED_SETS, download, root_folder
from us3l.data.sources import load
from us3l.system.errors import UserError


def image(path: Path, red: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 8), (red, 10, 20)).save(path)


def expect(monkeypatch: pytest.MonkeyPatch, name: str, classes: int, train: int, test: int) -> None:
    """Smaller sets than the real ones."""
    monkeypatch.setitem(NAMED_SETS, name, replace(NAMED_SETS[name], classes=classes, train=train, test=test))


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


PurePickler: Any = vars(pickle)["_Pickler"]


class Python2(PurePickler):
    """Writes as CIFAR's files were written, with one kind of string for bytes and text."""

    dispatch: ClassVar[dict] = dict(PurePickler.dispatch)

    def save_string(self, value: str | bytes) -> None:
        raw = value if isinstance(value, bytes) else value.encode("latin1")
        self.write(b"T" + struct.pack("<I", len(raw)) + raw)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def dump(value: object) -> bytes:
    file = BytesIO()
    Python2(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray")


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    random = np.random.default_rng(0)

    def write(name: str, value: dict) -> list[str]:
        (folder / name).write_bytes(dump(value))
        return [name, md5(folder / name)]

    def batch(name: str, count: int) -> list[str]:
        pixels = random.integers(0, 256, (count, 3072)).astype(np.uint8)
        return write(name, {"data": pixels, "labels": [i % 3 for i in range(count)], "filenames": ["x"] * count})

    train = [batch(f"data_batch_{number}", 6) for number in range(1, 6)]
    test = [batch("test_batch", 9)]
    meta = write("batches.meta", {"label_names": ["cat", "dog", "eel"]})
    monkeypatch.setattr(known.CIFAR10, "train_list", train)
    monkeypatch.setattr(known.CIFAR10, "test_list", test)
    monkeypatch.setattr(known.CIFAR10, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    expect(monkeypatch, "cifar10", 3, 30, 9)
    return folder


def test_cifar10_is_what_torchvision_reads(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, train in (("train", True), ("test", False)):
        ours = load("cifar10", split, root=cifar10.parent)  # type: ignore[arg-type]
        theirs = known.CIFAR10(cifar10.parent, train=train)
        assert ours.name == "cifar10"
        assert ours.images.permute(0, 2, 3, 1).numpy().tobytes() == theirs.data.tobytes()
        assert ours.labels is not None
        assert ours.labels.tolist() == theirs.targets
        assert ours.classes == theirs.classes
    monkeypatch.setenv("US3L_DATA", str(cifar10.parent))
    assert len(load("cifar10", limit=3)) == 3


def test_cifar100_has_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name, count in (("train", 4), ("test", 2)):
        pixels = np.zeros((count, 3072), np.uint8)
        value = {"data": pixels, "fine_labels": list(range(count)), "coarse_labels": [0] * count}
        (folder / name).write_bytes(dump(value))
    (folder / "meta").write_bytes(dump({"fine_label_names": list("abcd")}))
    monkeypatch.setattr(known.CIFAR100, "train_list", [["train", md5(folder / "train")]])
    monkeypatch.setattr(known.CIFAR100, "test_list", [["test", md5(folder / "test")]])
    meta = {"filename": "meta", "key": "fine_label_names", "md5": md5(folder / "meta")}
    monkeypatch.setattr(known.CIFAR100, "meta", meta)
    expect(monkeypatch, "cifar100", 4, 4, 2)
    train = load("cifar100", root=tmp_path)
    assert train.labels is not None
    assert train.labels.tolist() == [0, 1, 2, 3]
    assert train.classes == list("abcd")


class Evil:
    def __reduce__(self) -> tuple:
        return (open, ("evil.txt", "w"))


def test_pickles_run_no_code(cifar10: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = cifar10 / "test_batch"
    file.write_bytes(pickle.dumps({"data": Evil(), "labels": [0]}))
    monkeypatch.setattr(known.CIFAR10, "test_list", [["test_batch", md5(file)]])  # a checksum that is right
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"cifar-10-batches-py is incomplete or damaged \(it names _?io\.open"):
        load("cifar10", root=tmp_path)
    assert not (tmp_path / "evil.txt").exists()


def test_damaged_and_missing_files_are_named(cifar10: Path) -> None:
    file = cifar10 / "data_batch_3"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(
        UserError, match=r"the checksum of data_batch_3 is wrong.*us3l.data.datasets.download\('cifar10', data_root="
    ):
        load("cifar10", root=cifar10.parent)
    file.unlink()
    with pytest.raises(UserError, match="there is no file data_batch_3"):
        load("cifar10", root=cifar10.parent)


def test_wrong_folders_say_what_was_expected_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, wanted in ((name, wanted) for name, wanted in NAMED_SETS.items() if wanted.folder):
        with pytest.raises(UserError, match=f"{name}: expected in .*{wanted.folder}, which is not a folder") as error:
            load(name, root=tmp_path)
        assert "\n" not in str(error.value)
        (tmp_path / wanted.folder).mkdir(exist_ok=True)
        with pytest.raises(UserError, match=f"{name}: .*{wanted.folder}") as error:
            load(name, root=tmp_path)
        assert "\n" not in str(error.value)
    monkeypatch.delenv("US3L_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    image(tmp_path / "pets" / "1.png")
    with pytest.raises(UserError, match=r"pets: expected in data/oxford.*write \./pets"):
        load("pets")
    assert len(load("./pets", "all", 8)) == 1
    assert root_folder() == Path("data")
    monkeypatch.setenv("US3L_DATA", "~/sets")
    assert root_folder() == Path.home() / "sets"
    assert root_folder("elsewhere") == Path("elsewhere")
    with pytest.raises(UserError, match=r"did you mean .*or 'cifar100'"):
        load("cifar1000")


def test_flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "flowers-102"
    for number in range(1, 9):
        image(folder / "jpg" / f"image_{number:05d}.jpg", number)
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 1, 2, 2, 3, 3, 102, 102]])})
    savemat(folder / "setid.mat", {"trnid": [[1, 3]], "valid": [[5, 7]], "tstid": [[2, 4, 6, 8]]})
    files = {"image": ("102flowers.tgz", "")}
    files |= {name: (file, md5(folder / file)) for name, file in (("label", "imagelabels.mat"), ("setid", "setid.mat"))}
    monkeypatch.setattr(known.Flowers102, "_file_dict", files)
    expect(monkeypatch, "flowers102", 102, 4, 4)
    train, test = load("flowers102", size=8, root=tmp_path), load("flowers102", "test", 8, root=tmp_path)
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.tolist() == [0, 1, 2, 101]  # training and validation part
    assert test.labels.tolist() == [0, 1, 2, 101]
    assert train.classes is not None
    assert train.classes[0] == "pink primrose"
    (folder / "jpg" / "image_00005.jpg").unlink()
    with pytest.raises(UserError, match=r"jpg/image_00005\.jpg is missing"):
        load("flowers102", size=8, root=tmp_path)
    (folder / "setid.mat").write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"flowers-102 is incomplete or damaged \(Dataset not found or corrupted"):
        load("flowers102", size=8, root=tmp_path)


def test_pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "oxford-iiit-pet"
    lists: dict[str, list[str]] = {"trainval": [], "test": []}
    for number, (part, name, label) in enumerate(
        [("trainval", "Abyssinian", 1), ("trainval", "yorkshire_terrier", 2), ("test", "yorkshire_terrier", 2)]
    ):
        image(folder / "images" / f"{name}_{number}.jpg", number)
        lists[part].append(f"{name}_{number} {label} 1 1\n")
    (folder / "annotations").mkdir()
    for part, lines in lists.items():
        (folder / "annotations" / f"{part}.txt").write_text("".join(lines))
    expect(monkeypatch, "pets", 2, 2, 1)
    train, test = load("pets", size=8, root=tmp_path), load("pets", "test", 8, root=tmp_path)
    assert train.classes == test.classes == ["Abyssinian", "Yorkshire Terrier"]
    assert test.labels is not None
    assert test.labels.tolist() == [1]
    expect(monkeypatch, "pets", 2, 3680, 1)
    with pytest.raises(UserError, match=r"pets: expected 3,680 training images in .*oxford-iiit-pet, found 2"):
        load("pets", size=8, root=tmp_path)


def test_dtd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dtd" / "dtd"
    (folder / "labels").mkdir(parents=True)
    for part, names in {"train": ["a", "b"], "val": ["a", "b"], "test": ["a", "b", "b"]}.items():
        paths = [f"{name}/{name}_{part}{index}.jpg" for index, name in enumerate(names)]
        (folder / "labels" / f"{part}1.txt").write_text("\n".join(paths))
        for path in paths:
            image(folder / "images" / path)
    expect(monkeypatch, "dtd", 2, 4, 3)
    train, test = load("dtd", size=8, root=tmp_path), load("dtd", "test", 8, root=tmp_path)
    assert train.labels is not None
    assert train.labels.tolist() == [0, 1, 0, 1]
    assert test.labels is not None
    assert test.labels.tolist() == [0, 1, 1]


def test_imagenet_voc_and_coco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "val"):
        for wnid in ("n01440764", "n01443537"):
            image(tmp_path / "imagenet" / part / wnid / "1.JPEG")
    with pytest.raises(UserError, match=r"expected 1,000 classes in .*imagenet, found 2"):
        load("imagenet", size=8, root=tmp_path)
    expect(monkeypatch, "imagenet", 2, 0, 0)
    assert load("imagenet", "test", 8, root=tmp_path).classes == ["n01440764", "n01443537"]

    for year, parts in {"2007": {"trainval": ["1", "2"], "test": ["3"]}, "2012": {"trainval": ["4"]}}.items():
        folder = tmp_path / "VOCdevkit" / f"VOC{year}"
        (folder / "ImageSets" / "Main").mkdir(parents=True)
        for part, names in parts.items():
            (folder / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(names))
            for name in names:
                image(folder / "JPEGImages" / f"{name}.jpg", 10 * int(name))
    expect(monkeypatch, "voc", 0, 3, 1)
    assert (len(load("voc", size=8, root=tmp_path)), len(load("voc", "test", 8, root=tmp_path))) == (3, 1)
    assert load("voc", size=8, root=tmp_path).labels is None
    assert len(load("voc", "pretrain", 8, root=tmp_path)) == 3  # never the test images

    for part in ("train2017", "val2017"):
        image(tmp_path / "coco" / part / "1.jpg")
    assert len(load("coco", size=8, root=tmp_path)) == 1


def test_download_asks_torchvision(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "torchvision.datasets.utils.download_and_extract_archive", lambda *_, **options: asked.append(options)
    )
    assert download("cifar10", cifar10.parent) == cifar10
    assert asked == [{"filename": "cifar-10-python.tar.gz", "md5": "c58f30108f718f92721af3b95e74349a"}]

    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    for module, name in (("dtd", "dtd"), ("oxford_iiit_pet", "pets"), ("flowers102", "flowers102"), ("voc", "voc")):
        monkeypatch.setattr(f"torchvision.datasets.{module}.download_and_extract_archive", offline)
        with pytest.raises(UserError, match=f"{name}: cannot be fetched into .*no network"):
            download(name, cifar10.parent)
    with pytest.raises(UserError, match=r"train2017/ and val2017/ there.*cocodataset"):
        download("coco", cifar10.parent)
    with pytest.raises(UserError, match=r"ILSVRC2012_devkit_t12\.tar\.gz is not present"):
        download("imagenet", cifar10.parent)
    with pytest.raises(UserError, match="no data set is called 'mnist'"):
        download("mnist", cifar10.parent)
