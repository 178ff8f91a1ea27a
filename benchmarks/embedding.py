"""`us3l embed` beside the network alone, and its memory over many images.

    python -m benchmarks.embedding speed RUN DATA --width 1
    python -m benchmarks.embedding memory --images 1000 10000 100000

"speed" embeds the images into a file, and runs the network by itself on as many random images in the same batches.
They take turns, and the best time of each counts. The exit code is 1 if `embed` has less than 80 % of the images/s.
With --cpu-time images are read in this process, and its processor time counts: for busy machines, with one thread.

"memory" makes parquet files with that many small images, and embeds each in a process of its own by a small network.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENOUGH = 0.8
EMBED = """
import sys
from pathlib import Path
import us3l

def memory(name):
    return int(Path("/proc/self/status").read_text().split(name)[1].split()[0]) / 1024

model, images, out = sys.argv[1:]
us3l.embed(model, "digits", out=out + ".warm.parquet")
before = memory("VmRSS:")
found = us3l.embed(model, images, out=out)
print(f"{found.images:,} images: {memory('VmHWM:') - before:.0f} MB more at most, {found.images_per_s:.0f} images/s, "
      f"a file of {Path(out).stat().st_size / 1e6:.0f} MB")
"""


def speed(run: Path, data: str, width: float, turns: int, cpu_time: bool) -> bool:
    import numpy as np

    import us3l
    from benchmarks.timing import best_seconds
    from us3l.runtime.runtime import BATCH
    from us3l.width import Width

    runtime = us3l.Runtime(run)
    forward, size = runtime.networks.run(Width(width), "features"), runtime.networks.preprocessing.size
    batch = np.random.default_rng(0).normal(size=(BATCH, 3, size, size)).astype(np.float32)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "e.parquet"

        def embed() -> int:
            return us3l.embed(run, data, width=width, out=out, overwrite=True).images

        images = embed()

        def alone() -> None:
            for start in range(0, images, BATCH):
                forward(batch[: images - start])

        clock = time.process_time if cpu_time else time.perf_counter
        best = best_seconds({"embed": embed, "alone": alone}, turns, clock=clock)
    rates = {name: images / seconds for name, seconds in best.items()}
    share = rates["embed"] / rates["alone"]
    print(
        f"{images:,} images of {data} at {width:g}x: embed {rates['embed']:.1f} images/s, the network alone "
        f"{rates['alone']:.1f}: {100 * share:.0f} %"
    )
    return share >= ENOUGH


def memory(counts: list[int]) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from PIL import Image

    import us3l
    from us3l.data.preprocessing import Preprocessing

    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(32, 3, 8, 8))
    net.metadata = {"preprocessing": Preprocessing.usual(8).to_plain()}
    encoded = []
    for seed in range(256):
        buffer = io.BytesIO()
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)).save(buffer, "PNG")
        encoded.append({"bytes": buffer.getvalue(), "path": None})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        net.save(folder / "model")
        for count in counts:
            images = folder / f"{count}.parquet"
            with pq.ParquetWriter(images, pa.table({"image": encoded}).schema) as writer:
                for start in range(0, count, 256):
                    writer.write_table(pa.table({"image": encoded[: count - start]}))
            command = [
                sys.executable,
                "-c",
                EMBED,
                str(folder / "model"),
                str(images),
                str(folder / f"{count}.parquet"),
            ]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    timed = parts.add_parser("speed")
    timed.add_argument("run", type=Path)
    timed.add_argument("data")
    timed.add_argument("--width", type=float, default=1.0)
    timed.add_argument("--turns", type=int, default=3)
    timed.add_argument("--cpu-time", action="store_true")
    parts.add_parser("memory").add_argument("--images", type=int, nargs="+", default=[1000, 10_000, 100_000])
    arguments = parser.parse_args()
    if arguments.part == "speed":
        if arguments.cpu_time:
            os.environ["US3L_WORKERS"] = "0"
        fast = speed(arguments.run, arguments.data, arguments.width, arguments.turns, arguments.cpu_time)
        return 0 if fast else 1
    memory(arguments.images)
    return 0


if __name__ == "__main__":
    sys.exit(main())
