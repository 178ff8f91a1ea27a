"""The paper's data sets by name, in the folders where torchvision puts them, with the paper's splits.

Reading them never runs code: CIFAR's files are pickles, and are opened by a reader that makes arrays and nothing else.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from us3l.data.catalogue import Catalogue, Names, of_pixels
from us3l.data.image_folder import listed, open_folder
from us3l.system.errors import UserError
from us3l.system.files import expanded

ROOT_VARIABLE = "US3L_DATA"


@dataclass(frozen=True)
class NamedSet:
    """A data set that is known by name."""

    folder: str
    """Where it lies, below the data root; empty if it comes with a library."""
    classes: int
    train: int
    test: int
    """Numbers of classes and of images; 0 where they are not checked."""
    open: Callable[[Path], Catalogue]
    """The images in a data root."""
    fetch: Callable[[Path], None]
    """Download it into a data root."""
    recipe: str | None = None
    """The recipe that is made for it; None if it depends on the images' sizes and on the computer."""


def recommended_recipe(data: str) -> str | None:
    """The name of the recipe that is made for a data set, if there is one."""
    return NAMED_SETS[data].recipe if data in NAMED_SETS else None


def is_there(data: str, root: str | Path | None = None) -> bool:
    """Whether there is a data set of that name, in its place, or a path."""
    if data not in NAMED_SETS:
        return os.path.exists(expanded(data))
    return not NAMED_SETS[data].folder or (root_folder(root) / NAMED_SETS[data].folder).is_dir()


def root_folder(root: str | Path | None = None) -> Path:
    """Where named data sets lie: the folder given, else the environment's US3L_DATA, else ./data."""
    return expanded(root or os.environ.get(ROOT_VARIABLE) or "data")


def open_named(name: str, root: str | Path | None = None) -> Catalogue:
    """The images of a named data set; a `UserError` says what was expected where."""
    wanted, where = NAMED_SETS[name], root_folder(root)
    place = where / wanted.folder
    if not is_there(name, root):
        own = f"; for your own folder of that name write ./{name}" if Path(name).exists() else ""
        raise UserError(f"{name}: expected in {place}, which is not a folder; {_remedy(name, where)}{own}")
    try:
        source = wanted.open(where)
    except UserError:
        raise
    except (RuntimeError, OSError, KeyError, ValueError, pickle.UnpicklingError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{name}: {place} is incomplete or damaged ({reason}); {_remedy(name, where)}") from None
    test = 0 if source.in_test is None else int(source.in_test.sum())
    found = {"classes": len(source.classes), "training images": len(source) - test, "test images": test}
    expected = {"classes": wanted.classes, "training images": wanted.train, "test images": wanted.test}
    for what, count in expected.items():
        if count and found[what] != count:
            raise UserError(
                f"{name}: expected {count:,} {what} in {place}, found {found[what]:,}; {_remedy(name, where)}"
            )
    return source


def download(name: str, data_root: str | Path | None = None) -> Path:
    """Fetch a named data set by torchvision into the data root, if it is not there yet; returns its folder."""
    if name not in NAMED_SETS:
        raise UserError(f"no data set is called {name!r}; there are {', '.join(NAMED_SETS)}")
    where = root_folder(data_root)
    # torchvision unpacks archives as they are; with this, no member can leave the folder or be more than a file.
    tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    try:
        NAMED_SETS[name].fetch(where)
    except (OSError, RuntimeError, tarfile.TarError) as error:  # torchvision's, of the network and of checksums
        raise UserError(f"{name}: cannot be fetched into {where}: {str(error).splitlines()[0]}") from None
    return where / NAMED_SETS[name].folder


def _remedy(name: str, root: Path) -> str:
    return MANUAL.get(name, f"fetch it with: `us3l.data.datasets.download({name!r}, data_root={str(root)!r})`")


# Digits


def _open_digits(_: Path) -> Catalogue:
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = (digits.images * (255 / 16)).astype(np.float32)  # values are 0 to 16
    return of_pixels(grey, digits.target, [str(name) for name in digits.target_names])


# CIFAR


class _ArraysOnly(pickle.Unpickler):
    """Makes numpy arrays and plain values; refuses everything else that a pickle can name."""

    known: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        found = self.known.get((module.replace("_core", "core"), name))  # numpy 2 has renamed it
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in this data set")
        return found


def _open_cifar(kind: str) -> Callable[[Path], Catalogue]:
    def open_set(root: Path) -> Catalogue:
        known = _torchvision(kind)
        folder = root / known.base_folder

        def read(name: str, md5: str) -> dict[str, Any]:
            from torchvision.datasets.utils import check_integrity

            if not (folder / name).is_file():
                raise FileNotFoundError(f"there is no file {name}")
            if not check_integrity(folder / name, md5):
                raise RuntimeError(f"the checksum of {name} is wrong")
            return _ArraysOnly(io.BytesIO((folder / name).read_bytes()), encoding="latin1").load()

        parts = [read(*file) for file in (*known.train_list, *known.test_list)]
        counts = [len(part["data"]) for part in parts]
        pixels = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.concatenate([part.get("labels", part.get("fine_labels")) for part in parts]).astype(np.int64)
        in_test = np.arange(len(labels)) >= sum(counts[: len(known.train_list)])
        classes = read(known.meta["filename"], known.meta["md5"])[known.meta["key"]]
        return of_pixels(np.ascontiguousarray(pixels), labels, classes, in_test)

    return open_set


def _fetch_cifar(kind: str) -> Callable[[Path], None]:
    def fetch(root: Path) -> None:
        from torchvision.datasets.utils import download_and_extract_archive

        known = _torchvision(kind)
        download_and_extract_archive(known.url, str(root), filename=known.filename, md5=known.tgz_md5)

    return fetch


# Sets of image files with lists of their own


def _open_listed(
    kind: str, folder: str, train: tuple[dict[str, str], ...], test: dict[str, str], images: str, labels: str | None
) -> Callable[[Path], Catalogue]:
    """What one of torchvision's classes lists for some parts, each given by its arguments."""

    def open_set(root: Path) -> Catalogue:
        parts = [_torchvision(kind)(str(root), **part) for part in (*train, test)]
        paths = [Path(path) for part in parts for path in getattr(part, images)]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"{path.relative_to(root / folder)} is missing")
        in_test = np.arange(len(paths)) >= len(paths) - len(getattr(parts[-1], images))
        known = [getattr(part, labels) if labels else [-1] * len(part) for part in parts]
        classes = list(parts[0].classes) if labels else []
        relative = Names.packed(path.relative_to(root / folder).as_posix() for path in paths)
        return listed(root / folder, relative, np.concatenate(known).astype(np.int64), classes, in_test)

    return open_set


def _fetch_listed(kind: str, *parts: dict[str, str]) -> Callable[[Path], None]:
    def fetch(root: Path) -> None:
        for part in parts:
            _torchvision(kind)(str(root), **part, download=True)

    return fetch


# Folders


def _open_folder(folder: str, *needed: str) -> Callable[[Path], Catalogue]:
    def open_set(root: Path) -> Catalogue:
        for name in needed:
            if not (root / folder / name).is_dir():
                raise FileNotFoundError(f"there is no folder {name}")
        images = open_folder(root / folder)
        if images is None:
            raise FileNotFoundError("there are no images")
        return images

    return open_set


def _unpack_imagenet(root: Path) -> None:
    for split in ("train", "val"):
        _torchvision("ImageNet")(str(root / "imagenet"), split)


def _refuse(name: str) -> Callable[[Path], None]:
    def fetch(_: Path) -> None:
        raise RuntimeError(MANUAL[name])

    return fetch


def _torchvision(kind: str) -> Any:
    import torchvision.datasets

    return getattr(torchvision.datasets, kind)


MANUAL = {
    "digits": "it comes with scikit-learn, and needs no fetching",
    "imagenet": (
        "put train/ and val/ there, a folder a class, or the three archives ILSVRC2012_devkit_t12.tar.gz, "
        "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from image-net.org, and unpack them by: "
        "us3l download imagenet"
    ),
    "coco": "put train2017/ and val2017/ there, and annotations/ for detection, from cocodataset.org",
}
FLOWERS = ({"split": "train"}, {"split": "val"})
PETS = ({"split": "trainval"},)
VOC = ({"year": "2007", "image_set": "trainval"}, {"year": "2012", "image_set": "trainval"})
VOC_TEST = {"year": "2007", "image_set": "test"}
TEST = {"split": "test"}

NAMED_SETS = {
    "digits": NamedSet("", 10, 1_797, 0, _open_digits, _refuse("digits"), recipe="digits"),
    "cifar10": NamedSet(
        "cifar-10-batches-py", 10, 50_000, 10_000, _open_cifar("CIFAR10"), _fetch_cifar("CIFAR10"), "mini"
    ),
    "cifar100": NamedSet(
        "cifar-100-python", 100, 50_000, 10_000, _open_cifar("CIFAR100"), _fetch_cifar("CIFAR100"), "mini"
    ),
    "imagenet": NamedSet("imagenet", 1000, 0, 0, _open_folder("imagenet", "train", "val"), _unpack_imagenet),
    "flowers102": NamedSet(
        "flowers-102",
        102,
        2_040,
        6_149,
        _open_listed("Flowers102", "flowers-102", FLOWERS, TEST, "_image_files", "_labels"),
        _fetch_listed("Flowers102", *FLOWERS, TEST),
    ),
    "pets": NamedSet(
        "oxford-iiit-pet",
        37,
        3_680,
        3_669,
        _open_listed("OxfordIIITPet", "oxford-iiit-pet", PETS, TEST, "_images", "_labels"),
        _fetch_listed("OxfordIIITPet", *PETS, TEST),
    ),
    "dtd": NamedSet(
        "dtd",
        47,
        3_760,
        1_880,
        _open_listed("DTD", "dtd", FLOWERS, TEST, "_image_files", "_labels"),
        _fetch_listed("DTD", *FLOWERS, TEST),
    ),
    "voc": NamedSet(
        "VOCdevkit",
        0,
        16_551,
        4_952,
        _open_listed("VOCDetection", "VOCdevkit", VOC, VOC_TEST, "images", None),
        _fetch_listed("VOCDetection", *VOC, VOC_TEST),
    ),
    "coco": NamedSet("coco", 0, 0, 0, _open_folder("coco", "train2017", "val2017"), _refuse("coco")),
}
