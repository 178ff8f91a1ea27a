"""`make bench`: every speed against its limit or rival. See README.md beside this file."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
import tyro
from rich.console import Console
from rich.table import Table

from us3l.runtime.backends import machine
from us3l.system.devices import keep_freed_memory

Part = Literal["startup", "data", "networks", "steps", "evaluation", "scaling"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Bench:
    """Measure, print ratios, and write them as JSON.

    examples:
      make bench
      python -m benchmarks networks data
    """

    parts: Annotated[tuple[Part, ...], tyro.conf.Positional] = PARTS
    """What to measure."""
    out: Path = Path("benchmarks/latest.json")
    """File for the results."""


def main() -> None:
    command = tyro.cli(Bench)
    keep_freed_memory()  # as the commands do; the rivals gain by it too
    warnings.filterwarnings("ignore", message="width .* is not calibrated")
    console = Console()
    table = Table("what", "ours", "rival or limit", "", "ratio", "target", "", box=None)
    found = []
    for part in command.parts:
        console.print(f"measuring {part} ...")
        for row in import_module(f"benchmarks.{part}").rows():
            console.print(f"  {row.what}: {row.ratio:.3g}" + (f" ({row.note})" if row.note else ""), highlight=False)
            target = f"{row.kind} {row.target:g}"
            figures = (f"{row.ours:.4g}", f"{row.rival:.4g}", row.unit, f"{row.ratio:.3g}", target)
            table.add_row(row.what, *figures, "" if row.met else "missed")
            found.append(asdict(row) | {"ratio": row.ratio, "met": row.met})
    console.print(table)
    where = machine(("torch",), torch.get_num_threads())
    command.out.write_text(json.dumps({"machine": where, "rows": found}, indent=2) + "\n", encoding="utf-8")
    console.print(f"written: {command.out}")


if __name__ == "__main__":
    main()
