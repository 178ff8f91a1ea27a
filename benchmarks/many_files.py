"""Opening a folder with very many images: `python -m benchmarks.many_files --count 1000000`.

Makes them in a temporary folder (hard links to one tiny image) and opens it in new processes: for the first time, again
with the index that was kept, and after one more image came. A line each: seconds, memory, number of images.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

LINKS = 60_000  # of one file; ext4 allows 65,000

OPEN = """
import sys, time
from pathlib import Path
from us3l.data.sources import find

def memory(name):
    return int(Path("/proc/self/status").read_text().split(name)[1].split()[0]) / 1024

before, began = memory("VmRSS:"), time.perf_counter()
files = find(sys.argv[1], "all")
print(f"{time.perf_counter() - began:.2f} s, {memory('VmHWM:') - before:.0f} MB at most, "
      f"{memory('VmRSS:') - before:.0f} MB in the end, {len(files):,} images, {len(files.classes or [])} classes")
"""


def make(folder: Path, count: int, in_a_folder: int) -> None:
    for number in range(count):
        if number % LINKS == 0:
            source = folder / f".{number}.png"
            Image.new("RGB", (4, 4), (number % 256, 0, 0)).save(source)
        place = folder / f"class{number // in_a_folder:04}"
        if number % in_a_folder == 0:
            place.mkdir()
        os.link(source, place / f"image_{number:08}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--in-a-folder", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "images"
        folder.mkdir()
        make(folder, arguments.count, arguments.in_a_folder)
        time.sleep(3)  # an index of a folder that changed just now is not kept
        environment = os.environ | {"US3L_CACHE": str(Path(temporary) / "cache")}

        def opened(what: str) -> None:
            done = subprocess.run(
                [sys.executable, "-c", OPEN, str(folder)], env=environment, check=True, capture_output=True, text=True
            )
            print(f"{what}: {done.stdout.strip()}", flush=True)

        opened("the first time")
        kept = sum(path.stat().st_size for path in (Path(temporary) / "cache").iterdir())
        print(f"kept index: {kept / 1e6:.1f} MB")
        opened("again")
        Image.new("RGB", (4, 4)).save(folder / "class0000" / "new.png")
        opened("with one more image")


if __name__ == "__main__":
    main()
