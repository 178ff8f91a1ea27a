"""Two machines, as two agents of torchrun on this one; a worker of the second is killed, and the job must recover.

    python -m reliability.nodes [--out FOLDER] [-- SETTINGS OF US3L PRETRAIN]

The job restarts from its last checkpoint and must end with the same bits as one that nobody disturbed.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from reliability.kills import SETTINGS, differences
from us3l.run import Run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("settings", nargs="*", default=SETTINGS)
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp())
    whole, run = Run(folder / "whole"), Run(folder / "run")
    codes = [agent.wait() for agent in agents(whole, options.settings)]
    print(f"undisturbed: exit codes {codes}", flush=True)
    pair = agents(run, options.settings)
    while not (run.checkpoints / "previous.pt").exists() and pair[1].poll() is None:
        time.sleep(0.05)
    worker = int(Path(f"/proc/{pair[1].pid}/task/{pair[1].pid}/children").read_text().split()[0])
    os.kill(worker, signal.SIGKILL)
    steps = len(run.metrics.read_text().splitlines())
    print(f"killed the second machine's worker, process {worker}, with {steps} lines of metrics written", flush=True)
    codes += [agent.wait() for agent in pair]
    found = differences(whole, run) if not any(codes) else [f"exit codes {codes}"]
    starts = run.log.read_text().count(" steps of ")
    print(f"the job began {starts} times; {'DIFFERS: ' + ', '.join(found) if found else 'identical'}")
    return 1 if found or starts < 2 else 0


def agents(run: Run, settings: list[str]) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 3".split()
    torchrun += f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --local-addr 127.0.0.1".split()
    command = [*torchrun, "-m", "us3l", "pretrain", "digits", "--out", str(run.folder), "--resume", *settings]
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    started = []
    for node in range(2):
        with open(run.folder.with_suffix(f".{node}.log"), "wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    return started


if __name__ == "__main__":
    sys.exit(main())
