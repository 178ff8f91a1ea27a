"""`us3l.profile`, `us3l.pick` and `us3l.export`: what widths cost, which one to take, and files of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from us3l.run.folder import Product
from us3l.system.progress import Progress, Told, progress_of
from us3l.verbs.arguments import AnyRun, borrowed, check_names, check_out, several
from us3l.verbs.pretraining import with_weights

if TYPE_CHECKING:
    from us3l.deploy.exporting import Exported
    from us3l.deploy.picking import Picked
    from us3l.deploy.profiling import Profiled
    from us3l.run.bundles import Format
    from us3l.runtime.backends import Backend
    from us3l.slimmable import Slimmable
    from us3l.width import AnyWidth


def profile(
    run: AnyRun | Slimmable,
    *,
    widths: Literal["all"] | Sequence[AnyWidth] | AnyWidth | None = None,
    backends: Sequence[Backend] | Backend = "torch",
    batch_size: Sequence[int] | int = 1,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Profiled:
    """What each width costs, and how fast it is on this device.

    Args:
        run: a run, the path of its folder, or a network; of a network nothing is kept.
        widths: those to time, and sub-networks such as "0.75-0.75-0.5-0.5" (default: the paper's nine, and those that
            were evaluated).
        backends: what runs the networks: "torch", "onnx", "openvino", or several of them.
        batch_size: one or several to time.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l.deploy.profile_run`, such as `threads=4` or `device_profile="phone.csv"`.

    Returns:
        The profile; `rows` has a dictionary per width, backend and batch size.
    """
    from us3l.deploy.profiling import profile_run

    check_names(profile_run, settings)
    if table := settings.get("device_profile"):
        settings["device_profile"] = Path(table)
    chosen: Any = widths if widths is None or widths == "all" else several(widths)
    with borrowed(run) as place:
        return profile_run(
            place,
            chosen,
            several(backends),
            several(batch_size),
            progress=progress_of(progress),
            **settings,
        )


def pick(run: AnyRun | Slimmable, **settings: Any) -> Picked:
    """The best width within all budgets given.

    Args:
        run: a run, the path of its folder, or a network, which has no latencies.
        settings: budgets (`latency_ms`, `macs`, `params`, `size_mb`, `memory_mb`) and what else `us3l pick` takes, such
            as `accuracy_at_least=40`.

    Returns:
        The choice: its `width`, and whether it `fits`; if nothing does, it is the nearest.
    """
    from us3l.deploy.picking import pick_width

    check_names(pick_width, settings)
    with borrowed(run) as place:
        return pick_width(place, **settings)


def export(
    run: AnyRun | Slimmable,
    width: Sequence[AnyWidth] | AnyWidth,
    format: Sequence[Format] | Format = "torch",
    *,
    out: str | Path | None = None,
    weights: Product | None = None,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Exported:
    """Write plain networks of some widths as files, each checked against the network it came from.

    Args:
        run: a run, the path of its folder, or a network, for which `out` is needed.
        width: one or several, also sub-networks such as "0.75-0.75-0.5-0.5".
        format: "torch", "safetensors", "onnx", "openvino" or "executorch", or several of them.
        out: folder for the files (default: export/ in the run's folder); an earlier bundle there is added to.
        weights: "teacher" or "student", as in `evaluate` (default: those of the run's model).
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l export`, such as `int8=True`, `head="probe"` or `data="photos/"`.

    Returns:
        The networks that were written; `files` are those to open.
    """
    from us3l.deploy.exporting import export_run

    check_names(export_run, settings)
    check_out(run, out)
    folder = None if out is None else Path(out)
    with borrowed(run) as place:
        told = progress_of(progress)
        place = with_weights(place, weights, told)
        return export_run(place, several(width), several(format), out=folder, progress=told, **settings)
