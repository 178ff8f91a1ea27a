"""`python -m fuzz`: change files of a kind, read them, and count what happened. Exits with 1 if a reader misbehaved.

The same kind, form, seed and number give the same file. `--tally FILE` keeps what was counted: the same command goes on
where it was stopped. `--start NUMBER --count 1 --keep FOLDER` makes one file again, and leaves it there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from fuzz.kinds import KINDS
from fuzz.run import CHANGES, Report, run
from fuzz.tally import Tally

SAVE_EVERY = 100  # files


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--form", choices=CHANGES, nargs="+", default=list(CHANGES))
    parser.add_argument("--start", type=int, default=0, help="number of the first file")
    parser.add_argument("--count", type=int, default=1000, help="files, from the first one on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tally", type=Path, help="file to keep the counts in, and to go on from")
    parser.add_argument("--keep", type=Path, help="folder to leave the last changed file in")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # readers are forked, and would wait for ever for threads that stayed behind
    columns = ("kind", "form", "seed", "files", "accepted", "refused", "other", "most memory", "longest")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    tally, told = Tally(arguments.tally), set[str]()

    def progress(report: Report) -> None:
        for what, number in report.unexpected.items():
            name = f"{report.kind}, {report.form} {number}: {what}"
            if name not in told:
                print(name, file=sys.stderr, flush=True)
            told.add(name)
        if report.next % SAVE_EVERY == 0:
            tally.save()

    end = arguments.start + arguments.count
    for form in arguments.form:
        for kind in arguments.kind:
            report = tally.report(Report(kind, form, arguments.seed, arguments.start))
            if report.next < end:
                run(report, end, progress, arguments.keep)
            progress(report)
            tally.save()
            print(line(report), flush=True)
    return 1 if any(report.unexpected for report in tally.reports.values()) else 0


def line(report: Report) -> str:
    counts, total = report.outcomes, report.outcomes.total()
    good = counts["accepted"], counts["refused"]
    figures = f"{total:,} | {good[0]:,} | {good[1]:,} | {total - sum(good):,}"
    cost = f"{report.most_memory / 2**20:.0f} MiB | {report.longest:.2f} s"
    return f"| {report.kind} | {report.form} | {report.seed} | {figures} | {cost} |"


if __name__ == "__main__":
    sys.exit(main())
