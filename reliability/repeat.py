"""Tests of training beside those of deployment in one process, again and again: does it ever die?

    python -m reliability.repeat [--times 30] [--out FOLDER] [-- ARGUMENTS OF PYTEST]

OpenVINO, ONNX Runtime and NNCF leave threads behind, and training forks processes that read images. Each repetition is
one process with faulthandler and core dumps on. A test that fails is told apart from a process that dies.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/deploy/test_backends.py",
    "tests/deploy/test_export_int8.py::test_int8_is_small_and_close[onnx-resnet18]",
    "tests/deploy/test_export_int8.py::test_int8_is_small_and_close[openvino-resnet18]",
    "tests/training/test_streamed.py",
    "tests/data/test_stream.py",
    "tests/training/test_loop.py::test_mixed_precision",
    "tests/training/test_loop.py::test_large_images_are_calibrated_on_the_centre_that_evaluation_sees",
]
FAILED = 1  # pytest's code for tests that failed; larger ones mean that it could not run them


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("tests", nargs="*", default=TESTS)
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: Counter[str] = Counter()
    for number in range(options.times):
        log = folder / f"{number}.log"
        began = time.monotonic()
        outcome = told(repeat(options.tests, log, folder))
        outcomes[outcome.split(":")[0]] += 1
        print(f"{number + 1}: {outcome}, {time.monotonic() - began:.0f} s; {log}", flush=True)
        if outcome.startswith("died"):
            print(traceback_in(log), flush=True)
    print(f"{options.times} repetitions: {', '.join(f'{count} {name}' for name, count in outcomes.items())}")
    return 1 if outcomes["died"] else 0


def repeat(tests: list[str], log: Path, folder: Path) -> int:
    """One process that runs the tests; its exit code, or the negative signal that ended it."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ]
    with open(log, "wb") as file:
        return subprocess.run(
            [*command, "--basetemp", str(folder / "tmp"), *tests],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (most, most)),
            check=False,
        ).returncode


def told(code: int) -> str:
    """
    >>> told(0), told(1), told(-11), told(134)
    ('passed', 'failed', 'died: SIGSEGV', 'died: exit code 134')
    """
    if code < 0:
        return f"died: {signal.Signals(-code).name}"
    return {0: "passed", FAILED: "failed"}.get(code, f"died: exit code {code}")


def traceback_in(log: Path) -> str:
    """The test that ran last, and what faulthandler wrote."""
    lines = log.read_text(errors="replace").splitlines()
    fatal = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines))
    return "\n".join([*lines[max(0, fatal - 3) : fatal], *lines[fatal : fatal + 60]])


if __name__ == "__main__":
    sys.exit(main())
