"""`us3l report`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from us3l.cli.parse import parse, program
from us3l.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from us3l.data.sources import ImageSet
    from us3l.run import Run
    from us3l.slimmable import Slimmable

WORK = 10**11  # multiply-accumulates to spend on looking at images at full width: seconds on a core
MOST, LEAST = 2000, 300  # images to look at
ENOUGH = 100  # held-out images


@dataclass(frozen=True)
class Report:
    """One page about a run, or about several beside each other: an HTML file that opens anywhere, without a network.

    It shows what is there: accuracies after `us3l evaluate`, latencies after `us3l profile`, curves at any time.
    `us3l pretrain` and `us3l demo` make it by themselves.

    examples:
      us3l report runs/photos
      us3l report runs/us3l runs/us-simsiam --out compared.html
      us3l report runs/photos --no-images --out to-share.html
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of runs, finished or not."""
    out: Path | None = None
    """The page (default, for one run: RUN/report.html, which is replaced)."""
    overwrite: bool = False
    """Replace the file given by --out."""
    images: bool = True
    """Show some of the images: nearest neighbours and a map. They become part of the page."""
    data: str | None = None
    """Which images to show (default: those of the run)."""
    data_root: Path | None = None
    """Where data sets that have a name lie (default: the environment's US3L_DATA, else ./data)."""


def main(arguments: list[str]) -> int:
    command = parse(Report, "report", arguments)
    out = destination(command)
    from us3l.console import Console

    console = Console()
    make(command, out, console)
    console.say(f"written: {out}")
    return 0


def after(folder: Path) -> int:
    """The page of a run that has just ended well; if it cannot be made, a line says so, and that is all."""
    from us3l.console import Console

    if not is_first():
        return 0
    console = Console()
    try:
        out = destination(command := Report((folder,)))
        make(command, out, console)
        console.print(f"the page is {out}", markup=False, highlight=False, soft_wrap=True)
    except (Exception, KeyboardInterrupt) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        text = f"no page was made ({reason}); the run is complete, try {program()} report {folder}"
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    return 0


def is_first() -> bool:
    """Whether this is the process that speaks and writes, where several train together."""
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    return not getattr(rank_zero_only, "rank", 0)


def renew(folder: Path) -> int:
    """Bring the page of a run up to date, if it has one, with what has just been measured."""
    return after(folder) if (folder / "report.html").exists() else 0


def destination(command: Report) -> Path:
    """Where the page goes; nothing of the user's is replaced unasked."""
    if not command.runs:
        raise UserError("say which runs to report on: us3l report RUN ...")
    if len({folder.resolve() for folder in command.runs}) < len(command.runs):
        raise UserError("a run is given twice")
    if command.out is None:
        if len(command.runs) > 1:
            raise UserError("say where the page about several runs should go: --out FILE.html")
        return command.runs[0] / "report.html"
    if command.out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{command.out}: the page is written as .html")
    if command.out.exists() and not command.overwrite:
        raise UserError(f"{command.out} already exists: choose another --out, or --overwrite")
    return command.out


def make(command: Report, out: Path, console: Console) -> None:
    from us3l.files import write_text
    from us3l.report.facts import compared, evaluations
    from us3l.report.page import page
    from us3l.run import Run
    from us3l.training.run import config_of

    names: dict[str, Run] = {}
    for folder in command.runs:
        name = folder.resolve().name
        names[str(folder) if name in names else name] = Run(folder)
    individual = {name: config_of(run).recipe.network.individual for name, run in names.items()}
    runs = [facts(command, name, run, console) for name, run in names.items()]
    report = {
        "title": ", ".join(names),
        "runs": runs,
        "compared": compared({name: evaluations(run, individual[name])[0] for name, run in names.items()}),
    }
    write_text(out, page(report))


def facts(command: Report, name: str, run: Run, console: Console) -> dict[str, Any]:
    """All about one run; what cannot be had is left out, with the reason in its place."""
    from us3l.cli.data import load_model
    from us3l.data.preprocessing import Preprocessing
    from us3l.report.facts import run_facts
    from us3l.training.run import config_of

    net, problem, size = None, None, config_of(run).recipe.views.size
    try:
        net = load_model(run.folder)
        size = Preprocessing.of(net).size
    except UserError as error:
        problem = str(error)
    found = run_facts(run, name, net, size, problem) | {"gallery": None, "no_gallery": problem}
    if net is not None and not command.images:
        found["no_gallery"] = "No images were wanted in this page."
    elif net is not None:
        try:
            images = some_images(command, command.data or config_of(run).data, net, size, console)
            found["gallery"] = look(net, images, size, console)
        except (UserError, OSError) as error:
            found["no_gallery"] = f"There are no images to show: {error}"
    return found


def some_images(command: Report, data: str, net: Slimmable, size: int, console: Console) -> ImageSet:
    """As many images as can be looked at in seconds: held-out ones if there are enough, else any."""
    from us3l.costs import cost
    from us3l.data.preprocessing import Preprocessing
    from us3l.data.sources import load
    from us3l.progress import Screen

    limit = WORK // cost(net.skeleton(1.0, tracking=True), (3, size, size)).macs
    limit = min(MOST, max(LEAST, limit))
    side = Preprocessing.of(net).resize
    held_out = load(data, "test", side, limit, Screen(console), command.data_root)
    if len(held_out) >= ENOUGH:
        return held_out
    return load(data, "all", side, limit, Screen(console), command.data_root)


def look(net: Slimmable, images: ImageSet, size: int, console: Console) -> dict[str, Any]:
    from us3l.progress import Counting
    from us3l.report.gallery import gallery, work

    with Counting(console, f"looking at images of {images.name}", work(net, images)) as counting:
        return gallery(net, images, size, counting.more)
