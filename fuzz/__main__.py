"""`python -m fuzz`: change files of a kind, read them, and count what happened. Exits with 1 if a reader misbehaved."""

from __future__ import annotations

import argparse
import sys

import torch

from fuzz.kinds import KINDS
from fuzz.run import CHANGES, Report, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--form", choices=CHANGES, nargs="+", default=list(CHANGES))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # readers are forked, and would wait for ever for threads that stayed behind
    columns = ("kind", "form", "files", "accepted", "refused", "other", "most memory", "longest")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    reports = []
    for name in arguments.kind:
        for form in arguments.form:
            reports.append(run(name, arguments.count, arguments.seed, form))
            print(line(reports[-1]), flush=True)
    for report in reports:
        for what, number in report.unexpected.items():
            print(f"{report.kind}, {report.form} {number}: {what}")
    return 1 if any(report.unexpected for report in reports) else 0


def line(report: Report) -> str:
    counts, total = report.outcomes, report.outcomes.total()
    good = counts["accepted"], counts["refused"]
    figures = f"{total:,} | {good[0]:,} | {good[1]:,} | {total - sum(good):,}"
    return (
        f"| {report.kind} | {report.form} | {figures} | {report.most_memory / 2**20:.0f} MiB | {report.longest:.2f} s |"
    )


if __name__ == "__main__":
    sys.exit(main())
