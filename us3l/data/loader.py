"""Processes that read images ahead of whoever needs them, and how they end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.queues import Queue
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from us3l.system.devices import keep_freed_memory, usable_cores
from us3l.system.errors import UserError
from us3l.system.streams import one_line

WORKERS_VARIABLE = "US3L_WORKERS"
DYING = 5.0  # seconds: a process that had much memory takes its time to end
NOTICED = 0.5  # seconds: how often whoever waits looks whether the processes are alive; torch does it every five
WORDS = 4096  # bytes to remember of what processes write to standard error
T = TypeVar("T")

_MultiProcessingDataLoaderIter._shutdown = True  # one that could not start has nothing to end

_READING: set[Any] = set()
"""Readers whose processes run. Held here, as the garbage collector may close their pipes before it asks them to end:
they could then write to, and close, whatever files have got the numbers of those pipes since."""


def read_ahead(
    dataset: Dataset[T | UserError], items: Iterable[Any], workers: int, pinned: bool
) -> Iterator[tuple[T, float]]:
    """What a data set has for each item, and the seconds that were spent on waiting for it.

    The processes live until the items end: give those of all epochs, as an iterator that is asked as they are needed.

    Args:
        dataset: Gives whole batches.
        items: What to ask it for. They must not hold whoever reads: see `iterate`.
        workers: The number of processes; 0: read in this one.
        pinned: Into memory from which a GPU can copy by itself.
    """
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=items,  # an item is a whole batch
        num_workers=workers,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # else it would draw from the global one
        pin_memory=pinned,
    )
    reading = iterate(loader)
    while True:
        started = time.perf_counter()
        try:
            batch = next(reading)
        except StopIteration:
            return
        if isinstance(batch, UserError):
            raise batch
        yield batch, time.perf_counter() - started


def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
    """What a loader gives, by processes that end in order: with the iteration, or when nobody is left who wants more.

    Args:
        loader: Its items must not hold whoever reads, who would then never be forgotten.
    """
    words = _LastWords()
    loader.worker_init_fn = partial(_start_worker, words.sender)
    try:
        with shielded_from_signals():
            reading: Any = iter(loader)
    except OSError as error:  # no shared memory, no processes, no files left
        words.close()
        raise UserError(
            f"cannot start {loader.num_workers} processes that read images ({error.strerror}): set the environment "
            f"variable {WORKERS_VARIABLE} to fewer of them, or to 0 for none"
        ) from None
    _READING.add(reading)
    if loader.num_workers:
        reading._try_get_data = partial(reading._try_get_data, NOTICED)
    try:
        for batch in reading:
            words.listen()
            yield batch
    except (RuntimeError, OSError, EOFError):  # what torch says of a dead process, or the connection to it
        code = _exit_code(reading)
        if not code:
            raise
        workers, last_line = loader.num_workers, words.listen()
        if code < 0:
            reason = "was killed, most likely because memory ran out; fewer of them need less"
        else:
            reason = f"ended: {last_line or f'with code {code}'}; try with fewer of them, or none (0)"
        raise UserError(
            f"one of {workers} processes that read images {reason}: set the environment variable {WORKERS_VARIABLE} to "
            f"{max(1, workers // 2)}"
        ) from None
    finally:
        _READING.discard(reading)
        if loader.num_workers:
            reading._shutdown_workers()  # torch would do it when it is collected, which may be too late: see _READING
        words.close()


class _LastWords:
    """What the processes of a loader write to standard error, of which only the end is remembered.

    Decoders complain there about damaged files, which is nobody's business, and a process that cannot go on says why.
    """

    def __init__(self) -> None:
        self.receiver, self.sender = os.pipe() if multiprocessing.get_start_method() == "fork" else (-1, -1)
        for end in (self.receiver, self.sender):
            if end >= 0:
                os.set_blocking(end, False)  # nobody waits for anybody to read
        self.end = b""

    def listen(self) -> str:
        """Take what was written since; return the last line."""
        with suppress(BlockingIOError, OSError):
            while self.receiver >= 0:
                self.end = (self.end + os.read(self.receiver, 2**16))[-WORDS:]
        return one_line(self.end.decode(errors="replace").strip().rpartition("\n")[2])

    def close(self) -> None:
        for end in (self.receiver, self.sender):
            if end >= 0:
                os.close(end)


def _exit_code(reading: Any) -> int:
    """The exit code of a process of a loader that has ended other than by itself, or does so; 0 if none has.

    A connection breaks a moment before its process ends.
    """
    processes = getattr(reading, "_workers", [])
    ending = wait([process.sentinel for process in processes], timeout=DYING)
    for process in processes:
        if process.sentinel in ending:
            process.join()  # its end of a pipe is closed before it has an exit code
    return next((process.exitcode for process in processes if process.exitcode), 0)


def _as_it_is(batch: T) -> T:
    return batch


@contextmanager
def shielded_from_signals() -> Iterator[None]:
    """Processes started inside are deaf to requests to stop: this one ends them, when it has saved its work.

    Such a request often goes to all processes of a group (Ctrl-C, `timeout`, systemd). Nor does the death of one of
    them interrupt this process anywhere; it shows when it is read from.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "sigwaitinfo"):
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    on_death = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, on_death)  # torch has set its own, which raises
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def default_workers() -> int:
    """The number of decoding processes: US3L_WORKERS, else this process's share of the cores that it may use."""
    text = os.environ.get(WORKERS_VARIABLE)
    if text is None:
        return max(1, usable_cores() // _local_processes())
    if not text.isdecimal():
        raise UserError(f"{WORKERS_VARIABLE} must be a number of processes, 0 for none, not {text!r}")
    return int(text)


def _local_processes() -> int:
    """Processes of the run on this machine: torchrun tells; without it all are here."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    if processes.isdecimal():
        return max(1, int(processes))
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _start_worker(standard_error: int, _: int) -> None:
    torch.set_num_threads(1)
    os.dup2(standard_error if standard_error >= 0 else os.open(os.devnull, os.O_WRONLY), 2)
    # What cannot be sent, for want of shared memory or files, would be dropped, and waited for without end.
    Queue._on_queue_feeder_error = staticmethod(_end_with)  # type: ignore[attr-defined]
    keep_freed_memory()  # a ninth of the time of a photograph
    # What the parent process left for its garbage collector must not be finalised here: loaders would end the workers
    # of the parent, and inference engines wait for threads that no fork has.
    gc.freeze()
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_end_for_parent, daemon=True).start()


def _end_with(error: Exception, _: object) -> None:
    """End this process with the reason why it cannot send what it has read."""
    with suppress(Exception):
        os.write(2, traceback.format_exception_only(error)[-1].encode(errors="replace"))
    os._exit(1)


def _end_for_parent() -> None:
    """End this process when its parent asks for it, and for nobody else."""
    parent = os.getppid()
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
