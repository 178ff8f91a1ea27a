"""The page about runs: gather the facts about them, look at some images, and write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from us3l.costs import cost
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet, load
from us3l.reporting.gallery import gallery, work
from us3l.reporting.page import page
from us3l.reporting.run_page import compared, evaluations, run_facts
from us3l.run import Run
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.files import write_text
from us3l.system.progress import SILENT, Progress
from us3l.training.run_config import config_of

WORK = 10**11  # multiply-accumulates to spend on looking at images at full width: seconds on a core
MOST, LEAST = 2000, 300  # images to look at
ENOUGH = 100  # held-out images


def build_report(
    runs: Sequence[Run],
    out: str | Path | None = None,
    *,
    images: bool = True,
    data: str | None = None,
    data_root: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
    typed: Callable[[str], str] = str,
) -> Path:
    """Write one page about a run, or several runs side by side.

    Args:
        runs: Finished or not.
        out: The page, an HTML file; by default report.html in the folder of the only run, which is replaced.
        images: Show some images: nearest neighbours and a map.
        data: Which images (default: those of the run).
        data_root: Where data sets that have a name lie.
        overwrite: Replace the file `out`.
        progress: Where it says how far it is.
        typed: Shows a call in backquotes as one types it, such as on the command line.

    Returns:
        Where the page is.

    Raises:
        UserError: A run cannot be read, or the page has no place.
    """
    path = destination(runs, out, overwrite)
    names: dict[str, Run] = {}
    for run in runs:
        name = run.folder.resolve().name
        names[str(run.folder) if name in names else name] = run
    individual = {name: config_of(run).recipe.network.individual for name, run in names.items()}
    facts = []
    for name, run in names.items():
        size, net, problem = network_of(run)
        shown: dict[str, Any] = {"gallery": None, "no_gallery": problem}
        if net is not None and not images:
            shown["no_gallery"] = "No images were wanted in this page."
        elif net is not None:
            try:
                chosen = some_images(data or config_of(run).source, net, data_root, progress)
                with progress.counting(f"looking at images of {chosen.name}", work(net, chosen)) as counting:
                    shown["gallery"] = gallery(net, chosen, size, counting.more)
            except (UserError, OSError) as error:
                shown["no_gallery"] = f"There are no images to show: {error}"
        facts.append(run_facts(run, name, net, size, problem, typed) | shown)
    comparisons = compared({name: evaluations(run, individual[name])[0] for name, run in names.items()})
    write_text(path, page({"title": ", ".join(names), "runs": facts, "compared": comparisons}))
    return path


def destination(runs: Sequence[Run], out: str | Path | None, overwrite: bool) -> Path:
    """Return where the page goes; nothing of the user's is replaced unasked."""
    if not runs:
        raise UserError("say which runs to report on")
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise UserError("a run is given twice")
    if out is None:
        if len(runs) > 1:
            raise UserError("say where the page about several runs should go: set `out`, such as compared.html")
        return runs[0].report
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{path}: the page is written as .html")
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists: choose another `out`, or set `overwrite`")
    return path


def network_of(run: Run) -> tuple[int, Slimmable | None, str | None]:
    """Return the size of a run's images, its network if it has one, and else the reason."""
    try:
        return Preprocessing.of(run.network).size, run.network, None
    except UserError as error:
        return config_of(run).recipe.views.size, None, str(error)


def some_images(data: str, net: Slimmable, root: str | Path | None, progress: Progress) -> ImageSet:
    """Return as many images as take only seconds: held-out ones if there are enough, else any."""
    seen = Preprocessing.of(net)
    macs = cost(net, size=seen.size).macs
    limit = min(MOST, max(LEAST, WORK // macs))
    held_out = load(data, "test", seen.resize, limit, progress, root)
    if len(held_out) >= ENOUGH:
        return held_out
    return load(data, "all", seen.resize, limit, progress, root)
