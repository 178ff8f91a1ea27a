"""What decoding in limited child processes costs: python -m benchmarks.sandbox FOLDER [--images 1500]."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

from benchmarks.timing import best_seconds
from us3l.data import sandbox
from us3l.data.decode import Damaged, decode_here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1500)
    options = parser.parse_args()
    files = list(islice((path for path in sorted(options.folder.rglob("*")) if good(path)), options.images))
    for size in (None, 128):
        ways = {"here": decode_here, "in a child": sandbox.decode_in_child}
        best = best_seconds({name: partial(decode_all, way, files, size) for name, way in ways.items()}, turns=3)
        rates = ", ".join(f"{name} {len(files) / seconds:.0f} images/s" for name, seconds in best.items())
        print(f"{len(files)} images, {'as they are' if size is None else f'squares of {size}'}: {rates}")


def decode_all(way: Callable[[Path, int | None], object], files: list[Path], size: int | None) -> None:
    for file in files:
        way(file, size)


def good(path: Path) -> bool:
    try:
        return path.is_file() and decode_here(path, 8) is not None
    except Damaged:
        return False


if __name__ == "__main__":
    main()
