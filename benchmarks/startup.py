"""What a person waits for: imports, help, the first step of the demo."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.timing import Row, best_seconds

US3L = "from us3l.commands.main import main; import sys; sys.exit(main({}))"


def rows() -> Iterator[Row]:
    commands = {
        "nothing": "pass",
        "`import us3l`": "import us3l",
        "`us3l --help`": US3L.format(["--help"]),
    }
    best = best_seconds({name: partial(run, code) for name, code in commands.items()}, turns=5)
    yield Row("`import us3l`, with Python's own start", best["`import us3l`"], 1, "s", 0.2)
    yield Row("`us3l --help`", best["`us3l --help`"], 1, "s", 0.3, note=f"Python alone: {best['nothing']:.2f} s")
    yield Row("`us3l demo` to its first step", first_step(), 1, "s", 10)


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def first_step() -> float:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", US3L.format(["demo", "--out", f"{folder}/run"])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                if " step " in line:
                    break
            taken = time.perf_counter() - started
            process.kill()
    return taken
