"""Images given in every way that there is, and the one protocol that they follow."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from us3l.data.images import Images, ImageSet, Step
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import Data, find, load, open_images
from us3l.data.streamed import ImageFiles
from us3l.data.view_settings import Views
from us3l.system.errors import UserError

COUNT = 20


def pixels(count: int = COUNT, side: int = 12) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


class Pairs(Dataset):
    """Images with labels, in the form asked for."""

    def __init__(self, form: str, labels: bool = True) -> None:
        self.form, self.with_labels = form, labels

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        image: Any = pixels()[index]
        if self.form != "tensor":
            image = image.permute(1, 2, 0).numpy()
        if self.form == "pil":
            image = Image.fromarray(image)
        return (image, np.int64(index % 2) if self.form == "array" else index % 2) if self.with_labels else image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for number, image in enumerate(pixels()):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / f"{number:02}.png")
    return root


class Listener:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str, style: str | None = None) -> None:  # noqa: ARG002
        self.lines.append(text)

    def counting(self, *_: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return SimpleNamespace(so_far=lambda *_: None, more=lambda *_: None)

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("kind", ["path", "text", "tensor", "files", "pil", "array", "dataset", "set", "open files"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_kind_of_data_gives_the_same_images(folder: Path, kind: str, stream: bool) -> None:
    given: dict[str, Data] = {
        "path": folder,
        "text": str(folder),
        "tensor": pixels(),
        "files": sorted(folder.iterdir()),
        "pil": Pairs("pil", labels=False),
        "array": Pairs("array", labels=False),
        "dataset": Pairs("tensor", labels=False),
        "set": ImageSet("set", pixels()),
        "open files": find(folder, "all"),
    }
    images = open_images(given[kind], "all", 12, stream=stream)
    assert isinstance(images, ImageFiles) == (stream and kind != "set")
    assert len(images) == COUNT
    assert images.labels is None
    (batch,) = images.batches(Preprocessing.usual(12))
    assert torch.equal(batch.views[0], Preprocessing.usual(12).apply(pixels()))
    train, test = (open_images(given[kind], split, 12, stream=stream) for split in ("train", "test"))
    assert (len(train), len(test)) == (16, 4)
    assert len(open_images(given[kind], "pretrain", 12, limit=7, stream=stream)) == 7


@pytest.mark.parametrize("form", ["pil", "array", "tensor"])
def test_data_sets_of_torch_have_labels(form: str) -> None:
    dataset: Any = Pairs(form)
    images = load(dataset, "all")
    assert images.labels is not None
    assert images.labels.tolist() == [index % 2 for index in range(COUNT)]
    assert images.classes == ["0", "1"]
    dataset.classes = ["even", "odd", "never"]
    dataset.targets = torch.ones(COUNT, dtype=torch.int64)
    dataset.targets[3] = 0
    again = load(dataset, "all")
    assert again.classes == ["even", "odd", "never"]
    assert again.labels is not None
    assert again.labels.sum() == COUNT - 1


def test_a_fifth_held_out_is_said_once(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / "photos" / f"c{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    heard = Listener()
    assert len(open_images(tmp_path / "photos", "pretrain", 4, progress=heard)) == 16
    assert heard.lines == ["photos: 4 of 20 images, a fifth of each class, are held out for evaluation"]
    heard = Listener()
    open_images(tmp_path / "photos", "train", 4, progress=heard)
    assert not heard.lines


def test_files_that_are_left_out_are_counted_and_named(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.heic", "a/3.HEIC", "b/4.avif", "b/notes", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name, "PNG")
    heard = Listener()
    assert len(open_images(tmp_path, "all", 4, progress=heard)) == 1
    (line,) = heard.lines
    assert line.startswith(f"{tmp_path.name}: left out 4 files of other kinds (2 .heic, ")
    assert "1 .avif" in line


def test_what_cannot_be_read_as_images() -> None:
    for wrong, message in (
        (pixels().float() / 255, r"expected bytes \(uint8, 0 to 255\), not float32.*\* 255"),
        (pixels()[:, :2], "expected N x 3 x height x width, not 20 x 2 x 12 x 12"),
        (pixels()[:0], "there are none"),
        ([], "the list of image files is empty"),
        ([1, 2], "must hold paths of files, not int"),
        (7, "int cannot be read as images"),
    ):
        with pytest.raises(UserError, match=message):
            open_images(wrong, "all", 12)  # type: ignore[arg-type]
    dataset: Any = Pairs("tensor", labels=False)
    dataset.form = "array"
    dataset.__class__ = type("Floats", (Pairs,), {"__getitem__": lambda *_: torch.rand(3, 4, 4)})
    with pytest.raises(UserError, match="Floats: item 0 is neither a PIL image nor bytes"):
        load(dataset, "all")


def test_floats_in_memory_are_refused() -> None:
    """They were taken for bytes."""
    with pytest.raises(UserError, match=r"mine: expected bytes \(uint8, 0 to 255\), not float32"):
        ImageSet("mine", torch.rand(4, 3, 8, 8))
    with pytest.raises(UserError, match="4 images cannot have 3 labels"):
        ImageSet("mine", pixels(4), torch.arange(3))


@pytest.mark.parametrize("stream", [False, True])
def test_shares_of_a_batch_look_as_they_do_in_the_whole(folder: Path, stream: bool) -> None:
    images = open_images(folder, "all", 12, stream=stream)
    steps = [Step(3, 1, images.order(torch.Generator().manual_seed(0))[:8])]
    (whole,) = images.views(Views(size=8), steps, seed=5)
    for number in (0, 1):
        (half,) = images.views(Views(size=8), steps, seed=5, part=(number, 2))
        own = slice(4 * number, 4 * number + 4)
        assert torch.equal(half.indices, whole.indices[own])
        assert all(torch.equal(mine, other[own]) for mine, other in zip(half.views, whole.views, strict=True))


def test_large_images_are_sampled_from_their_files(folder: Path) -> None:
    """Images in memory have the size of views; calibration needs what evaluation sees."""
    images = load(folder, "all", 6)
    sample = images.sample(COUNT, torch.Generator().manual_seed(0), 9)
    expected = load(folder, "all", 9).images
    assert torch.equal(sample.images.sum(dim=(1, 2, 3)).sort().values, expected.sum(dim=(1, 2, 3)).sort().values)
    assert images.sample(5, torch.Generator().manual_seed(0), 6).images.shape == (5, 3, 6, 6)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("change", ["pixels", "labels", "names", "order"])
def test_a_fingerprint_tells_other_images_and_labels(tmp_path: Path, stream: bool, change: str) -> None:
    """Runs were resumed although every image was replaced, or labels were exchanged."""

    def write(root: Path, changes: bool) -> Images:
        for number, image in enumerate(pixels(10)):
            other = changes and change == "pixels"
            kind = number % 2 if not (changes and change == "labels") else (number // 2) % 2
            name = number + 10 * (changes and change == "names")
            source = pixels(10)[9 - number] if changes and change == "order" else image
            path = root / f"c{kind}" / f"{name}.ppm"
            path.parent.mkdir(parents=True, exist_ok=True)
            array = source.permute(1, 2, 0).numpy()
            Image.fromarray(array[::-1, ::-1] // 2 if other else array).save(path)
        return open_images(root, "all", 12, stream=stream)

    before, after = write(tmp_path / "before", False), write(tmp_path / "after", True)
    assert write(tmp_path / "before", False).fingerprint() == before.fingerprint()
    same = not stream and change == "names"  # in memory, names are gone
    assert (before.fingerprint() == after.fingerprint()) == same


def test_views_are_made_on_the_device_asked_for() -> None:
    images = ImageSet("", pixels())
    steps = [Step(0, 0, torch.arange(8))]
    (batch,) = images.views(Views(size=8), steps, seed=0, device=torch.device("meta"))
    assert {view.device.type for view in batch.views} == {"meta"}
