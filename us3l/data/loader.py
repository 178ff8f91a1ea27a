"""Processes that read images ahead of whoever needs them, and how they end."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from us3l.system.allocation import keep_freed_memory
from us3l.system.errors import UserError

WORKERS_VARIABLE = "US3L_WORKERS"
DYING = 5.0  # seconds: a process that had much memory takes its time to end
T = TypeVar("T")

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
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # else it would draw from the global one
        pin_memory=pinned,
    )
    reading = iterate(loader)
    while True:
        started = time.perf_counter()
        try:
            found = next(reading)
        except StopIteration:
            return
        if isinstance(found, UserError):
            raise found
        yield found, time.perf_counter() - started


def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
    """What a loader gives, by processes that end in order: with the iteration, or when nobody is left who wants more.

    Args:
        loader: Its items must not hold whoever reads, who would then never be forgotten.
    """
    with shielded_from_signals():
        reading: Any = iter(loader)
    _READING.add(reading)
    try:
        yield from reading
    except (RuntimeError, OSError, EOFError):  # what torch says of a dead process, or the connection to it
        if not _was_killed(reading):
            raise
        raise UserError(
            f"one of {loader.num_workers} processes that read images was killed, most likely because memory ran out; "
            f"fewer of them need less: set the environment variable {WORKERS_VARIABLE} to "
            f"{max(1, loader.num_workers // 2)}"
        ) from None
    finally:
        _READING.discard(reading)
        if loader.num_workers:
            reading._shutdown_workers()  # torch would do it when it is collected, which may be too late: see _READING


def _was_killed(reading: Any) -> bool:
    """Whether a process of a loader has ended other than by itself, or does so: a connection breaks a moment before."""
    processes = getattr(reading, "_workers", [])
    ending = wait([process.sentinel for process in processes], timeout=DYING)
    for process in processes:
        if process.sentinel in ending:
            process.join()  # its end of a pipe is closed before it has an exit code
    return any(process.exitcode for process in processes)


def _as_it_is(found: T) -> T:
    return found


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


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _local_processes() -> int:
    """Processes of the run on this machine: torchrun tells; without it all are here."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdecimal():
        return max(1, int(told))
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # on which decoders complain about files
    keep_freed_memory()  # a ninth of the time of a photograph
    # What the parent process left for its garbage collector must not be finalised here: loaders would end the workers
    # of the parent, and inference engines wait for threads that no fork has.
    gc.freeze()
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_end_for_parent, daemon=True).start()


def _end_for_parent() -> None:
    """End this process when its parent asks for it, and for nobody else."""
    parent = os.getppid()
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
