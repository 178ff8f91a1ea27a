"""`us3l.search`: the best sub-networks within a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from us3l.system.progress import Progress, Told, progress_of
from us3l.verbs.arguments import AnyRun, built, run_of

if TYPE_CHECKING:
    from us3l.data.sources import Data
    from us3l.run.searches import SearchRecord


def search(
    run: AnyRun,
    data: Data | None = None,
    *,
    macs: float | None = None,
    latency_ms: float | None = None,
    params: float | None = None,
    size_mb: float | None = None,
    memory_mb: float | None = None,
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> SearchRecord:
    """Find the best sub-network within a budget, with a width for each stage, without labels.

    A search that was stopped goes on when it is called again.

    Args:
        run: a run, the path of its folder, or of a model's.
        data: images to judge by, which need no labels (default: those that the run was trained on).
        macs: most multiply-accumulates per image.
        latency_ms: most milliseconds for one image, on PyTorch here.
        params: most parameters.
        size_mb: most megabytes of the weights, in 32 bits.
        memory_mb: most megabytes of the activations of one image at any time.
        name: of the result, search/NAME.json (default: the budgets).
        overwrite: replace an earlier result of that name.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l search`, such as `depth=True`, `candidates=300` or `seed=1`.

    Returns:
        The record that was kept: `best` goes wherever a width goes; `rows` has a dictionary per network.
    """
    from us3l.searching.searcher import search_run
    from us3l.searching.settings import SearchSettings

    given = {"macs": macs, "latency_ms": latency_ms, "params": params, "size_mb": size_mb, "memory_mb": memory_mb}
    budgets = {figure: float(budget) for figure, budget in given.items() if budget is not None}
    chosen = built(SearchSettings, settings, "search")
    return search_run(run_of(run), budgets, chosen, data, name, overwrite, progress_of(progress))
