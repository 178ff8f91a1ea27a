"""What `us3l search` does: the best sub-networks of a run within budgets, judged without labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from us3l.calibration import calibrate
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import Data, Split, open_images
from us3l.deploy.deployment_settings import BUDGETS
from us3l.deploy.latency import latencies
from us3l.evaluation.prepare import NINE_WIDTHS
from us3l.run import Run
from us3l.run.searches import SCORES, SEARCHES, ScoredNetwork, ScoreLog, SearchRecord, search_name, write_search
from us3l.searching.evolution import Evolution
from us3l.searching.judging import Judge
from us3l.searching.pricing import BlockTimes, Prices
from us3l.searching.search_settings import FEWEST, SearchSettings
from us3l.searching.search_space import Genes, Space
from us3l.slimmable import Slimmable
from us3l.storage import write_statistics
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.system.seeds import seeded
from us3l.system.stopping import Interrupted, stop_requests
from us3l.width import FULL, Width

FINALISTS = 5
TURNS = 10  # of each finalist that is timed
KEPT = 40  # networks that the record keeps, beside those on the front


def search_run(
    run: Run,
    budgets: dict[str, float],
    settings: SearchSettings,
    data: Data | None = None,
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> SearchRecord:
    """Search, and keep what was found in the run's folder. A search that was stopped goes on.

    Args:
        run: A run's folder, or a model's.
        budgets: Most of each figure, by the names of `BUDGETS`.
        settings: How it searches.
        data: Unlabelled images (default: those of the training).
        name: Of the result (default: that of the budgets).
        overwrite: Replace an earlier result of that name and start from the beginning.
        progress: Told how far it is.

    Returns:
        The record that was written.

    Raises:
        Interrupted: It was asked to stop; the same call goes on.
    """
    for figure, budget in budgets.items():
        if not budget > 0:
            raise UserError(f"a budget of {budget:g} for {BUDGETS[figure]} must be above 0")
    if not budgets:
        raise UserError(f"give at least one budget: {', '.join(BUDGETS)}")
    chosen = name or search_name(budgets)
    path = SEARCHES.file(run, chosen)
    log_path = path.with_name(path.stem + SCORES)
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists: choose another `name`, or search with `overwrite`")
    if overwrite:
        log_path.unlink(missing_ok=True)
    net = run.network
    preprocessing = Preprocessing.of(net)
    space = Space.of(net, settings.depth)
    exact = {figure: budget for figure, budget in budgets.items() if figure != "latency_ms"}
    check_budgets(Prices(net, preprocessing.size, exact), space)
    first, second, called = unlabelled(run, data, preprocessing, settings, progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"budgets": budgets, **settings.to_plain(), "data": called, "weights": run.weights.weights}
    log = ScoreLog(log_path, about)
    times = BlockTimes(net, preprocessing.size, log.times, log.keep_time) if "latency_ms" in budgets else None
    prices = Prices(net, preprocessing.size, budgets, times)
    try:
        check_budgets(prices, space)
    except UserError:
        if not log.scores:
            log.discard()
        raise
    started = time.monotonic()
    with stop_requests(progress.say) as asked_to_stop:
        scores = KeptScores(Judge(net, first, settings.score), log, asked_to_stop)
        if log.scores:
            progress.say(f"going on with {log_path}: {len(log.scores)} of {settings.candidates} are scored")
        found = searched(net, space, prices, scores, settings, progress)
        finalists = best_of(found, prices)
        judge = Judge(net, second, settings.score)
        again = {width: judge(width) for width in finalists}
        calibrate(net, torch.cat([first, second]), [width for width in finalists if not net.calibrated(width)])
        timed = measured(net, finalists, preprocessing.size, progress) if times else {}
    found = [replace(one, confirmed=again.get(one.width), measured_ms=timed.get(one.width)) for one in found]
    best, fits = choose(found, budgets)
    record = SearchRecord(
        budgets,
        settings.to_plain(),
        called,
        len(first),
        preprocessing.size,
        best.width,
        fits,
        found,
        time.monotonic() - started,
        name=chosen,
    )
    shown = {one.width for one in record.front()} | {one.width for one in record.networks if one.uniform}
    some = [one for one in record.networks if one.width in shown or one.confirmed is not None]
    some += [one for one in record.networks if one not in some][:KEPT]
    write_statistics(net, run.model)  # so that the finalists can be used without images
    written = write_search(run, replace(record, networks=some))
    log_path.unlink()
    return written


@dataclass
class KeptScores:
    """Scores of networks, each computed once, and kept in a file."""

    judge: Judge
    log: ScoreLog
    asked_to_stop: Callable[[], bool]

    def __call__(self, width: Width) -> float:
        name = str(width)
        if name not in self.log.scores:
            if self.asked_to_stop():
                raise Interrupted(f"stopped: {len(self.log.scores)} scores are kept; the same search goes on with them")
            self.log.keep_score(name, self.judge(width))
        return self.log.scores[name]


def check_budgets(prices: Prices, space: Space) -> None:
    """That there is something to search: that the smallest keeps the budgets, and the full network does not."""
    smallest = space.subnet(space.smallest)
    for figure, budget in prices.budgets.items():
        least = prices(smallest)[figure]
        if least > budget:
            raise UserError(
                f"no sub-network keeps a budget of {budget:g} ({BUDGETS[figure]}): "
                f"the smallest, {smallest}, has {least:.4g}"
            )
    if prices.budgets and prices.excess(FULL) <= 1:
        raise UserError("the full network keeps the budget: there is nothing to search")


def unlabelled(
    run: Run, data: Data | None, preprocessing: Preprocessing, settings: SearchSettings, progress: Progress
) -> tuple[Tensor, Tensor, str]:
    """Images to search with and as many others to confirm with, preprocessed; and what they are called."""
    source = run.data if data is None else data
    if source is None:
        raise UserError("this model does not say what it was trained on: name unlabelled images by `data`")
    split: Split = "train" if data is None else "all"
    images = open_images(source, split, preprocessing.resize, stream=True, progress=progress)
    some = images.sample(2 * settings.images, seeded(settings.seed), preprocessing.resize)
    if len(some) < 2 * FEWEST:
        raise UserError(f"{images.name} has {len(some)} images: a search needs at least {2 * FEWEST}")
    first, second = map(preprocessing.apply, some.images.tensor_split(2))
    return first, second, images.name


def searched(
    net: Slimmable, space: Space, prices: Prices, scores: KeptScores, settings: SearchSettings, progress: Progress
) -> list[ScoredNetwork]:
    """All networks that were scored: plain widths, then what slimming and evolution tried."""
    plain = {width: scores(width) for width in uniform(net, prices)}
    with progress.counting("searching", settings.candidates) as count:

        def score(genes: Genes) -> float:
            value = scores(net.canonical(space.subnet(genes)))
            count.more(1)
            return value

        def excess(genes: Genes) -> float:
            return prices.excess(net.canonical(space.subnet(genes)))

        evolution = Evolution(space, score, excess, settings.candidates, settings.seed)
        evolution.run()
    mixed = {net.canonical(space.subnet(genes)): value for genes, value in evolution.scores.items()}
    return [ScoredNetwork(width, value, dict(prices(width))) for width, value in (mixed | plain).items()]


def uniform(net: Slimmable, prices: Prices) -> list[Width]:
    """Plain widths to compare with: the usual ones, and the widest that keeps the budgets."""
    fitting = [width for width in net.widths if prices.excess(width) <= 1]
    return [net.canonical(width) for width in dict.fromkeys([*fitting[-1:], *net.among(NINE_WIDTHS)])]


def best_of(found: Iterable[ScoredNetwork], prices: Prices) -> list[Width]:
    """The networks with the best scores within the budgets, and the best plain width."""
    fitting = sorted((one for one in found if prices.excess(one.width) <= 1), key=lambda one: -one.score)
    plain = [one for one in fitting[FINALISTS:] if one.uniform]
    return [one.width for one in fitting[:FINALISTS] + plain[:1]]


def measured(net: Slimmable, widths: list[Width], size: int, progress: Progress) -> dict[Width, float]:
    """The median latency of each on this machine, for one image."""
    with progress.counting("timing the finalists", len(widths) * (1 + TURNS)) as count:
        rows = latencies(net, size, widths, ("torch",), (1,), torch.get_num_threads(), TURNS, count.more)
    return {row.width: row.p50_ms for row in rows}


def choose(found: list[ScoredNetwork], budgets: dict[str, float]) -> tuple[ScoredNetwork, bool]:
    """The best finalist, and whether it keeps the latency as measured; else the fastest one."""
    finalists = [one for one in found if one.confirmed is not None]
    limit = budgets.get("latency_ms")
    kept = [one for one in finalists if limit is None or (one.measured_ms or 0.0) <= limit]
    if kept:
        return max(kept, key=lambda one: one.confirmed or 0.0), True
    return min(finalists, key=lambda one: one.measured_ms or 0.0), False
