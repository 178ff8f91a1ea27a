import errno
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from us3l.data import crops
from us3l.data.images import Step
from us3l.data.loader import _READING, default_workers, iterate
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageFiles, find, load
from us3l.data.view_settings import Views
from us3l.system.errors import UserError

VIEWS = Views(size=16, blur=0.5)
MODES = ("RGB", "L", "CMYK", "RGBA", "P", "1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of many sizes and modes in two classes, and a damaged one."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(12):
        mode = MODES[number % len(MODES)]
        path = root / "ab"[number % 2] / f"{number:02}.{'tif' if mode == 'CMYK' else 'png'}"
        path.parent.mkdir(exist_ok=True)
        shape = (20 + 3 * number, 50 - 2 * number, 3)
        Image.fromarray(random.integers(0, 256, shape, np.uint8)).convert(mode).save(path)
    (root / "b" / "cut.png").write_bytes((root / "a" / "00.png").read_bytes()[:60])
    return root


def steps(batches: list[torch.Tensor], epoch: int = 0) -> list[Step]:
    return [Step(number, epoch, indices) for number, indices in enumerate(batches)]


def views_of(files: ImageFiles, batches: list[torch.Tensor], epoch: int = 3, workers: int = 0) -> list[torch.Tensor]:
    """Both views of every image, in the order of the batches."""
    found = list(files.views(VIEWS, steps(batches, epoch), seed=7, workers=workers))
    return [torch.cat([batch.views[view] for batch in found]) for view in (0, 1)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("size", "side"), [(16, 16), (16, 20)])
def test_evaluation_sees_the_pixels_of_the_path_in_memory(photos: Path, size: int, side: int, workers: int) -> None:
    files, memory = find(photos, "all"), load(photos, "all", side)
    batches = list(files.batches(Preprocessing(size, side), 5, workers))
    in_memory = list(memory.batches(Preprocessing(size, side)))
    assert torch.equal(torch.cat([batch.views[0] for batch in batches]), in_memory[0].views[0])
    assert batches[0].views[0].shape == (5, 3, size, size)
    assert memory.labels is not None
    assert torch.cat([batch.labels for batch in batches if batch.labels is not None]).equal(memory.labels)
    assert [name for batch in batches for name in batch.damaged] == memory.skipped
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(12))  # the damaged one is the last


def test_views_depend_neither_on_workers_nor_on_batches(photos: Path) -> None:
    files = find(photos, "all")
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    alone = views_of(files, list(order.split(5)))
    assert torch.equal(state, torch.get_rng_state())
    for workers, size in ((2, 5), (0, 1), (1, 12)):
        assert all(map(torch.equal, views_of(files, list(order.split(size)), workers=workers), alone))
    assert not torch.equal(alone[0], alone[1])
    assert not torch.equal(views_of(files, list(order.split(5)), epoch=4)[0], alone[0])
    # Going on in the middle of an epoch.
    rest = views_of(files, list(order.split(5))[1:], workers=2)
    assert torch.equal(rest[1], alone[1][5:])
    # A subset sees the same views of the same images.
    few = files.subset(torch.tensor([3, 8]))
    expected = [int((order == index).nonzero()) for index in (3, 8)]
    assert torch.equal(views_of(few, [torch.arange(2)])[0], alone[0][expected])


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_images_are_left_out_of_evaluation_and_named(photos: Path, workers: int) -> None:
    files = find(photos, "all").subset(torch.tensor([0, 4, 12]))
    for batch_size in (3, 2, 1):  # of two, the last batch has no good image; of one, there is none in it
        batches = list(files.batches(Preprocessing.usual(16), batch_size, workers))
        assert torch.cat([batch.indices for batch in batches]).tolist() == [0, 1]
        assert all(len(batch) for batch in batches)
        (name,) = (name for batch in batches for name in batch.damaged)
        assert name.startswith("b/cut.png: ")
    with pytest.raises(UserError, match=r"none of 1 images can be read; the first is b/cut\.png"):
        list(files.subset(torch.tensor([2])).batches(Preprocessing.usual(16), workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_images_are_replaced_in_training_and_named(photos: Path, workers: int) -> None:
    """A batch of one image, or of none, cannot be trained on."""
    files = find(photos, "all")
    whole = views_of(files, [torch.tensor([4, 0])])
    (batch,) = files.views(VIEWS, steps([torch.tensor([4, 12, 0])], 3), 7, workers=workers)
    assert batch.indices[[0, 2]].tolist() == [4, 0]
    assert torch.equal(batch.views[0][[0, 2]], whole[0])
    instead = batch.indices[1:2]
    assert torch.equal(batch.views[0][1:2], views_of(files, [instead])[0])
    assert batch.labels is not None
    assert files.labels is not None
    assert torch.equal(batch.labels, files.labels[batch.indices])
    assert len(batch.damaged) == 1
    assert batch.damaged[0].startswith("b/cut.png: ")
    (alone,) = files.views(VIEWS, steps([torch.tensor([12])], 3), 7, workers=workers)
    assert alone.indices.tolist() == instead.tolist()
    damaged = files.subset(torch.tensor([12]))
    with pytest.raises(UserError, match=r"none of 1 images can be read; the first is b/cut\.png"):
        list(damaged.views(VIEWS, steps([torch.tensor([0])]), 0, workers=workers))


def test_catalogues_can_be_sent_to_other_processes(photos: Path, tmp_path: Path) -> None:
    rows = [(photos / "a" / f"{number:02}.png").read_bytes() for number in (0, 4, 6, 10)]
    table = pa.table({"image": pa.array(rows, pa.binary()), "label": [0, 1, 0, 1]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    for data in (photos, tmp_path / "x.parquet"):
        files = find(data, "all")
        copy = pickle.loads(pickle.dumps(files))
        order = torch.tensor([3, 0, 2])
        assert torch.equal(views_of(copy, [order])[0], views_of(files, [order], workers=1)[0])


def test_processes_end_with_the_reading_even_if_somebody_holds_the_reader() -> None:
    others, processes = set(_READING), set(multiprocessing.active_children())
    numbers: Any = [1, 2, 3]
    reading = iterate(DataLoader(numbers, batch_size=None, num_workers=1))
    assert next(reading) == 1
    (held,) = _READING - others  # so that the garbage collector leaves its pipes open
    (process,) = set(multiprocessing.active_children()) - processes
    reading.close()  # type: ignore[attr-defined]
    ended = not process.is_alive()
    process.kill()
    assert ended
    assert held not in _READING


class _Lost:
    """Cannot be fetched from the process that made it."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _reset, ()


def _reset() -> None:
    raise ConnectionResetError("Connection reset by peer")


class _Gives(Dataset[_Lost]):
    """Something that gets lost on the way; after which the process dies, or not."""

    def __init__(self, dies: bool) -> None:
        self.dies = dies

    def __getitem__(self, index: int) -> _Lost:
        if index and self.dies:
            time.sleep(0.2)  # longer than it takes to find that the first was lost
            os.kill(os.getpid(), signal.SIGKILL)
        return _Lost()


def test_a_connection_that_breaks_before_its_process_has_ended_is_a_killed_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("us3l.data.loader.DYING", 60.0)
    items: Any = [0, 1]
    reading = iterate(DataLoader(_Gives(dies=True), batch_size=None, sampler=items, num_workers=1))
    with pytest.raises(UserError, match="1 processes that read images was killed"):
        next(reading)
    monkeypatch.setattr("us3l.data.loader.DYING", 0.0)
    reading = iterate(DataLoader(_Gives(dies=False), batch_size=None, sampler=items, num_workers=1))
    with pytest.raises(ConnectionResetError):
        next(reading)


class _TooLarge:
    """Cannot be sent."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        raise RuntimeError("unable to resize file </torch_1> to the right size: File too large (27)")


class _Gone(Dataset[int]):
    """The process leaves with a word."""

    def __getitem__(self, _: int) -> int:
        os.write(2, b"decoder: an old complaint\ndecoder: assertion failed\n")
        os._exit(3)


class _Sends(Dataset[_TooLarge]):
    def __getitem__(self, _: int) -> _TooLarge:
        return _TooLarge()


@pytest.mark.parametrize(
    ("dataset", "words"), [(_Sends(), "ended: RuntimeError: unable to resize"), (_Gone(), "ended: decoder: assertion")]
)
def test_processes_that_cannot_go_on_end_the_reading_with_their_last_words(dataset: Dataset, words: str) -> None:
    items: Any = [0]
    reading = iterate(DataLoader(dataset, batch_size=None, sampler=items, num_workers=1))
    with pytest.raises(UserError, match=words):
        next(reading)


def test_processes_that_cannot_be_started_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a full /dev/shm."""

    def refuse() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    numbers: Any = [1, 2, 3]
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(UserError, match=r"cannot start 1 processes .*temporarily unavailable.* US3L_WORKERS"):
        next(iterate(DataLoader(numbers, batch_size=None, num_workers=1)))


def test_a_limit_on_files_is_no_endless_wait(photos: Path) -> None:
    """Which holds for shared memory, too: `ulimit -f 20`."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_240, limits[1]))
    try:
        reading = find(photos, "all").batches(Preprocessing.usual(64), workers=1)
        with pytest.raises(UserError, match="File too large"):
            next(reading)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_the_number_of_workers_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("US3L_WORKERS", "3")
    assert default_workers() == 3
    for wrong in ("two", "-1", "1.5", ""):
        monkeypatch.setenv("US3L_WORKERS", wrong)
        with pytest.raises(UserError, match="US3L_WORKERS must be a number of processes"):
            default_workers()


def test_processes_on_one_machine_share_the_cores_that_they_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("US3L_WORKERS")
    monkeypatch.setattr("us3l.data.loader.usable_cores", lambda: 64)
    for processes, workers in (("", 64), ("1", 64), ("8", 8), ("3", 21), ("100", 1), ("0", 64)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert default_workers() == workers
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert default_workers() == 32


class Trap:
    """Leaves a file when it is finalised, named by the process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.circle = folder, self

    def __del__(self) -> None:
        (self.folder / str(os.getpid())).touch()


def test_workers_do_not_finalise_what_their_parent_left(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = tmp_path / "collected"
    decoded = crops.decode

    def collecting(*arguments: Any, **options: Any) -> Any:
        gc.collect()
        collected.touch()
        return decoded(*arguments, **options)

    monkeypatch.setattr(crops, "decode", collecting)
    files, traps = find(photos, "all"), tmp_path / "traps"
    traps.mkdir()
    gc.disable()
    try:
        Trap(traps)  # garbage, as it refers to itself
        list(files.batches(Preprocessing.usual(16), workers=1))
    finally:
        gc.enable()
    assert collected.exists()
    assert {path.name for path in traps.iterdir()} <= {str(os.getpid())}
