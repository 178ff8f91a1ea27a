"""Reading changed files in a process of its own, within limits of time and memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Literal

from fuzz.kinds import KINDS, Kind
from fuzz.mutate import mutated
from fuzz.structured import structured
from us3l.system.errors import UserError

MEMORY = 2**32  # bytes that a reader may ask for at all
SECONDS = 20.0  # of processor time for one file
PATIENCE = 300.0  # seconds until a reader is taken to hang: the machine may have other work

Form = Literal["mutated", "structured"]
CHANGES: dict[Form, Callable[[bytes, str, Random], bytes]] = {"mutated": mutated, "structured": structured}

Outcome = Literal["accepted", "refused", "unexpected error", "too slow", "died"]


@dataclass
class Report:
    """What became of files of a kind, and which comes next."""

    kind: str
    form: Form = "mutated"
    seed: int = 0
    next: int = 0
    """The number of the first file that was not read yet."""
    outcomes: Counter[str] = field(default_factory=Counter)
    unexpected: dict[str, int] = field(default_factory=dict)
    """What else happened, and the number of the first file that did it."""
    paused: set[int] = field(default_factory=set)
    """Files that took too long once."""
    most_memory: int = 0
    """The most that reading one file took, in bytes."""
    longest: float = 0.0
    """Seconds of processor time for one file."""


def changed_file(name: str, form: Form, seed: int, number: int, good: Path, folder: Path) -> None:
    """Copy the good files, one of them changed; which and how depends on the numbers alone."""
    kind, random = KINDS[name], Random(f"{name}/{seed}/{number}")
    paths = sorted(path for pattern in kind.changed.split("|") for path in good.glob(pattern) if path.is_file())
    chosen = random.choice(paths)
    copy_files(good, folder)
    if kind is KINDS["image"]:  # the others would be good
        shutil.rmtree(folder)
        folder.mkdir()
    target = folder / chosen.relative_to(good)
    target.unlink(missing_ok=True)
    target.write_bytes(CHANGES[form](chosen.read_bytes(), chosen.suffix, random))


def copy_files(good: Path, folder: Path) -> None:
    """Another folder with the same files; nothing here writes into one that is there."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder, copy_function=os.link)


def outcome_of(kind: Kind, folder: Path) -> tuple[Outcome, str]:
    try:
        kind.read(folder)
        kind.use(folder)
    except UserError as error:
        lines = str(error).splitlines()
        if isinstance(error.__context__, MemoryError):
            return "unexpected error", "more memory than allowed"
        return ("refused", "") if len(lines) == 1 else ("unexpected error", f"a message of {len(lines)} lines")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return "unexpected error", f"{type(error).__name__} at {where}: {str(error)[:120]}"
    return "accepted", ""


def run(
    report: Report, end: int, progress: Callable[[Report], None] = lambda _: None, keep: Path | None = None
) -> Report:
    """Read changed files of a kind, and use those that could be read.

    Args:
        report: Of which kind and form; the first file is its next one.
        end: The number after the last file.
        progress: Told after each file.
        keep: Where to leave the last file; by default none is left.

    Returns:
        The same report, completed.
    """
    kind = KINDS[report.kind]
    with tempfile.TemporaryDirectory() as temporary:
        good = Path(temporary) / "good"
        good.mkdir()
        kind.make(good)
        copy_files(good, Path(temporary) / "same")
        if (outcome := outcome_of(kind, Path(temporary) / "same")) != ("accepted", ""):
            raise AssertionError(f"{report.kind}: what is not changed must be accepted, but {outcome}")
        while report.next < end:
            _run_some(report, good, keep or Path(temporary) / "changed", end, progress)
    return report


def _run_some(report: Report, good: Path, folder: Path, end: int, progress: Callable[[Report], None]) -> None:
    """Read files until all are done or one did not end well."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    files = range(report.next, end)
    reader = context.Process(
        target=_read_files, args=(report.kind, report.form, good, folder, report.seed, files, theirs)
    )
    reader.start()
    theirs.close()
    try:
        while report.next < end:
            if not ours.poll(PATIENCE):
                reader.kill()
                if report.next in report.paused:
                    _note(report, "too slow", f"no answer in {PATIENCE:g} s")
                else:  # once more, as the machine may have stood still
                    report.paused.add(report.next)
                break
            outcome, what, memory, seconds = ours.recv()
            report.most_memory, report.longest = max(report.most_memory, memory), max(report.longest, seconds)
            _note(report, outcome, what)
            progress(report)
    except EOFError:
        reader.join()
        _note(report, "died", f"exit code {reader.exitcode}")
    finally:
        reader.join()
        ours.close()


def _note(report: Report, outcome: Outcome, what: str) -> None:
    report.outcomes[outcome] += 1
    if what:
        report.unexpected.setdefault(f"{outcome}: {what}", report.next)
    report.next += 1


def _read_files(name: str, form: Form, good: Path, folder: Path, seed: int, files: range, to: Connection) -> None:
    kind = KINDS[name]
    copy_files(good, folder)
    outcome_of(kind, folder)  # what a first reading leaves in memory is no file's fault
    resource.setrlimit(resource.RLIMIT_DATA, (status_bytes("VmData") + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in files:
        changed_file(name, form, seed, number, good, folder)
        before = reset_peak()
        began = time.process_time()
        outcome, what = outcome_of(kind, folder)
        seconds = time.process_time() - began
        if seconds > SECONDS:
            outcome, what = "too slow", f"more than {SECONDS:g} s"
        to.send((outcome, what, status_bytes("VmHWM") - before, seconds))


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])
