"""The facts about a run, as plain values: everything that its page shows, but for the images.

A table is a dictionary with `columns` (`name`, and `kind` of number) and `rows`; for charts see `curves`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from us3l.costs import pareto
from us3l.deploy.profiling import all_costs
from us3l.objective.methods import METHODS
from us3l.reporting.advice import advise, longer_run
from us3l.reporting.curves import Facts, chart, gauge_curves, loss_curves
from us3l.reporting.deploy_tables import BACKEND_NAMES
from us3l.reporting.search_tables import search_facts
from us3l.reporting.tables import KINDS, shown_columns
from us3l.run import Run
from us3l.run.evaluations import EVALUATIONS, METRICS, QUALITIES, EvaluationRecord
from us3l.run.profiles import Costs, Latency, Profile, newest_profile
from us3l.run.records import by_date
from us3l.run.searches import SEARCHES
from us3l.run.training_log import History, Record, StepRecord, read_history, read_records
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.files import checksum, read_bytes
from us3l.system.progress import clock
from us3l.training.recipes import Recipe
from us3l.training.run_config import RunConfig, config_of
from us3l.width import Width


def run_facts(
    run: Run,
    name: str,
    net: Slimmable | None,
    size: int,
    problem: str | None = None,
    typed: Callable[[str], str] = str,
) -> Facts:
    """Return all facts about a run. Sections without facts are None or empty.

    Args:
        run: Finished or not.
        name: What it is called on the page.
        net: Its network, if it has one.
        size: Side of its images.
        problem: Why there is no network.
        typed: Shows a call in backquotes as one types it.
    """
    config, history, records = config_of(run), read_history(run), read_records(run)
    steps = [record for record in records if isinstance(record, StepRecord)]
    evaluated, stale = evaluations(run, config.recipe.network.individual)
    figures, widths, profile = [], [], None
    if net is not None:
        profile = newest_profile(run)
        costs = profile.costs if profile else all_costs(net, size)
        costs = [row for row in costs if row.width.plain]
        widths = sorted(row.width for row in costs)
        figures = width_figures(costs, profile.latencies if profile else [], evaluated, net.canonical)
        if (alone := config.recipe.network.individual) is not None:
            widths = [Width(alone)]
    return {
        "name": name,
        "lead": lead(config, widths, run.finished),
        "headlines": headlines(evaluated),
        "summary": [*summary(run, config, history, steps), *(["Left out", why] for why in stale)],
        "problem": problem,
        "widths": widths,
        "figures": figures,
        "trade_offs": trade_offs(figures),
        "evaluations": [evaluation_facts(record) for record in evaluated],
        "searches": searches(run),
        "advice": advice_facts(run, config, records, typed),
        "curves": loss_curves(steps, config.recipe) + gauge_curves(records),
        "config": read_bytes(run.config_file).decode(errors="replace"),
        "provenance": provenance(run, config, net, profile),
    }


# What it is


def lead(config: RunConfig, widths: Sequence[Width], finished: bool) -> str:
    """Return the run in a sentence."""
    recipe = config.recipe
    data = Path(config.data).name
    what = "with labels" if recipe.objective.supervised else "without labels"
    if not finished:
        return f"A {recipe.network.backbone} whose training on {data}, {what}, has not ended."
    if recipe.network.individual is not None:
        return f"A {recipe.network.backbone} of width {recipe.network.individual:g}, trained alone on {data}, {what}."
    reach = f", and runs at {len(widths)} widths, from {widths[0]:g}x to {widths[-1]:g}x" if len(widths) > 1 else ""
    return f"One {recipe.network.backbone}: it was trained once on {data}, {what}{reach}."


def summary(run: Run, config: RunConfig, history: History | None, steps: Sequence[StepRecord]) -> list[list[str]]:
    """Return what the run is, each with its name."""
    recipe = config.recipe.resolved()
    network = recipe.network
    method = method_of(recipe)
    rows = [
        ["Data", config.data + (f", {history.images:,} images" if history else "")],
        ["Network", f"{network.backbone}, base {network.base}, {network.stem} stem, images of {recipe.views.size} px"],
        ["Method", f"{method}: {METHODS[method].about}" if method else composition(recipe)],
        ["Schedule", f"{recipe.epochs} epochs, batches of {recipe.batch_size}, learning rate {recipe.optimiser.lr:g}"],
    ]
    if history:
        rows += [
            ["Trained", f"{history.started:%Y-%m-%d %H:%M} to {history.ended:%Y-%m-%d %H:%M}"],
            ["Cost", f"{clock(history.seconds)} on {history.device}{history.in_parts}"],
        ]
    done = steps[-1].step + 1 if steps else 0
    total = f" of {history.steps:,}" if history else ""
    rows.append(["State", "finished" if run.finished else f"not finished: {done:,}{total} steps"])
    return rows


def method_of(recipe: Recipe) -> str | None:
    """Return the name of the method; None if it is a composition of its own."""
    for name, method in METHODS.items():
        fits = all(getattr(recipe.objective, setting) == value for setting, value in method.objective.items())
        alone = method.network["individual"] is not None
        if (
            fits
            and alone == (recipe.network.individual is not None)
            and method.network["switchable"] == recipe.network.switchable
        ):
            return name
    return None


def composition(recipe: Recipe) -> str:
    """Return the losses of a method that has no name."""
    objective = recipe.objective
    full, subs = (" + ".join(term.name for term in terms) for terms in (objective.base_terms, objective.sub_terms))
    return f"base loss {full}, sub-networks' loss {subs} through head {objective.head}"


def headlines(evaluated: Sequence[EvaluationRecord]) -> list[Facts]:
    """Return the accuracies that matter most, of the first evaluation: at its widest and its narrowest width."""
    for metric, what in METRICS.items():
        for record in evaluated:
            measured = [result for result in record.widths if metric in result.scores]
            measured.sort(key=lambda result: result.width, reverse=True)
            if not measured:
                continue
            ends = measured[:1] + measured[1:][-1:]
            tiles = []
            for result in ends:
                floor, score = result.untrained.get(metric), result.scores[metric]
                note = f"{what} on {record.name}" + (f", untrained {floor:.1f} %" if floor is not None else "")
                note += f"; 95 % interval {score.low:.1f} to {score.high:.1f} %"
                value = f"{score.top1:.1f} %"
                tiles.append({"label": f"Accuracy at {result.width:g}x", "value": value, "note": note})
            if len(ends) == 2 and ends[0].cost.macs > ends[1].cost.macs:
                less = f"{ends[0].cost.macs / ends[1].cost.macs:.2g} times"
                note = f"and {ends[0].cost.params / ends[1].cost.params:.2g} times fewer parameters"
                tiles.append({"label": f"Fewer MACs at {ends[1].width:g}x", "value": less, "note": note})
            return tiles
    return []


def provenance(run: Run, config: RunConfig, net: Slimmable | None, profile: Profile | None) -> list[list[str]]:
    """Return what the page was made from and with, each with its name."""
    rows = [["Folder", str(run.folder)], ["Seed", str(config.recipe.seed)]]
    if net is not None:
        rows.append(["Weights, SHA-256", checksum(run.model / "weights.safetensors")])
        rows += [[f"Model: {name}", _inline(value)] for name, value in net.metadata.items()]
    if profile:
        rows += [[f"Latencies: {name}", _inline(value)] for name, value in profile.machine.items()]
    made = {"us3l": version("us3l"), "torch": version("torch"), "python": platform.python_version()}
    return [*rows, ["Page made", f"{datetime.now():%Y-%m-%d %H:%M} by {_inline(made)}"]]


def _titled(name: str) -> str:
    """Return a name as it begins a line."""
    return name if name.startswith("kNN") else name[0].upper() + name[1:]


def _inline(value: Any) -> str:
    return ", ".join(f"{name} {item}" for name, item in value.items()) if isinstance(value, dict) else str(value)


def advice_facts(
    run: Run, config: RunConfig, records: Sequence[Record], typed: Callable[[str], str] = str
) -> Facts | None:
    """Return whether to train longer, by gauges that need no labels, and how; None without such gauges."""
    advice = advise(records, run.finished)
    if advice is None:
        return None
    recipe = config.recipe
    call = longer_run(run.folder, run.config_file, recipe.epochs, recipe.max_steps)
    command = typed(call).strip("`") if advice.longer else None
    return {"verdict": advice.verdict, "text": advice.text, "command": command}


# What it is worth and what it costs


def evaluations(run: Run, individual: float | None = None) -> tuple[list[EvaluationRecord], list[str]]:
    """Return all evaluations, and why some are left out.

    A network that was trained alone goes by its width in the family.
    """
    evaluated, stale = [], []
    for name in EVALUATIONS.names(run):
        EVALUATIONS.read(run, name, check=False)  # damage is an error
        try:
            record = EVALUATIONS.read(run, name)
        except UserError as error:  # of other weights
            stale.append(str(error))
            continue
        if individual is not None:
            record = replace(record, widths=[replace(row, width=Width(individual)) for row in record.widths])
        evaluated.append(record)
    return evaluated, stale


def evaluation_facts(record: EvaluationRecord) -> Facts:
    """Return an evaluation with the columns that the terminal shows, and accuracies by class."""
    columns = shown_columns(record.widths)
    rows = [[column.value(result) for column in columns] for result in record.widths]
    table = {"columns": [{"name": column.title, "kind": column.kind} for column in columns], "rows": rows}
    return {"name": record.name, "about": trust(record), "table": table, "classes": by_class(record)}


def searches(run: Run) -> list[Facts]:
    """Return the searches of the present weights, the newest first."""
    present = run.weights if run.model.is_dir() else None
    newest_first = reversed(by_date(SEARCHES.read_all(run, check=False).values()))
    return [
        search_facts(record)
        for record in newest_first
        if present and record.weights and not record.weights.differences(present)
    ]


def trust(record: EvaluationRecord) -> str:
    """Return how the accuracies came about, and how far they can be trusted."""
    if record.metric is None:
        return "without labels"
    parts = [f"protocol {record.protocol}"] if record.protocol else []
    if record.train_images is not None and record.test_images is not None:
        parts.append(f"{record.train_images:,} images to learn from, {record.test_images:,} to test")
    scores = [score for row in record.widths for score in row.scores.values()]
    if scores:
        parts.append(f"95 % intervals within ±{max(score.high - score.low for score in scores) / 2:.1f} points")
    return "; ".join(parts)


def by_class(record: EvaluationRecord) -> Facts | None:
    """Return a table of the accuracy for each class at each width, by the first kind of accuracy there is."""
    for metric, name in METRICS.items():
        columns = {row.width: row.scores[metric].per_class for row in record.widths if metric in row.scores}
        if columns and record.classes:
            heads = [{"name": "class", "kind": "text"}]
            heads += [{"name": f"{width:g}x, {name}", "kind": "percent"} for width in columns]
            return {
                "columns": heads,
                "rows": [list(row) for row in zip(record.classes, *columns.values(), strict=True)],
            }
    return None


def width_figures(
    costs: Sequence[Costs],
    latencies: Sequence[Latency],
    evaluated: Sequence[EvaluationRecord],
    canonical: Callable[[Width], Width],
) -> list[Facts]:
    """Return what was measured of every distinct width, narrowest first; None where nobody measured.

    Accuracies come first, then costs, then quality without labels. `role` tells them apart.
    """
    rows = sorted(costs, key=lambda row: row.width)
    alone = len(rows) == 1

    def figure(label: str, kind: str, values: Mapping[Width, float], missing: str = "", role: str = "cost") -> Facts:
        by_row = [values.get(row.width) for row in rows]
        return {"label": label, "kind": kind, "values": by_row, "missing": missing, "role": role}

    def measured(names: Mapping[str, str], role: str) -> Iterator[Facts]:
        for name, title in names.items():
            for record in evaluated:
                values = {
                    rows[0].width if alone else canonical(width): value
                    for width, value in by_width(record, name).items()
                }
                if values:
                    label = f"{_titled(title)}, {record.name}"
                    yield figure(label, KINDS[name], values, "not evaluated", role)

    figures = [
        *measured(METRICS, "accuracy"),
        figure("Parameters", "count", {row.width: row.params for row in rows}),
        figure("MACs per image", "count", {row.width: row.macs for row in rows}),
        figure("Size of the weights", "bytes", {row.width: row.bytes for row in rows}),
        figure("Memory of activations", "bytes", {row.width: row.memory for row in rows}),
    ]
    batch = min((latency.batch for latency in latencies), default=1)
    for backend in dict.fromkeys(latency.backend for latency in latencies):
        timed = {row.width: row.p50_ms for row in latencies if (row.backend, row.batch) == (backend, batch)}
        label = f"Latency, {BACKEND_NAMES.get(backend, backend)}" + (f", {batch} images" if batch > 1 else "")
        figures.append(figure(label, "ms", timed, "not timed"))
    return [*figures, *measured(QUALITIES, "quality")]


def trade_offs(figures: Sequence[Facts]) -> list[Facts]:
    """Return, for each accuracy and each cost in `figures`, by their places, which widths are on the Pareto front."""
    fronts = []
    for accuracy, worth in enumerate(figures):
        for cost, price in enumerate(figures):
            if (worth["role"], price["role"]) != ("accuracy", "cost"):
                continue
            points = {
                index: (x, y)
                for index, (x, y) in enumerate(zip(price["values"], worth["values"], strict=True))
                if x is not None and y is not None
            }
            if points:
                front = [list(points)[place] for place in pareto(list(points.values()))]
                fronts.append({"accuracy": accuracy, "cost": cost, "front": front})
    return fronts


def compared(runs: Mapping[str, Sequence[EvaluationRecord]]) -> list[Facts]:
    """Return each accuracy and quality that several runs have on the same data, as a chart and as a table."""
    charts = []
    for data in dict.fromkeys(record.name for records in runs.values() for record in records):
        having = {name: record for name, records in runs.items() for record in records if record.name == data}
        for metric, what in (METRICS | QUALITIES).items():
            columns = {name: values for name, record in having.items() if (values := by_width(record, metric))}
            if len(columns) < 2:
                continue
            unequal = [
                setting.replace("_", " ")
                for setting in ("train_images", "test_images", "training")
                if len({str(getattr(having[name], setting)) for name in columns}) > 1
            ]
            care = f"Take care: the evaluations differ in {', '.join(unequal)}." if unequal else ""
            title, kind = f"{_titled(what)} on {data}", KINDS[metric]
            y = {"label": QUALITIES.get(metric, "top-1 accuracy"), "kind": kind}
            series = [
                {"name": name, "points": [list(point) for point in sorted(values.items())]}
                for name, values in columns.items()
            ]
            widths = sorted({width for values in columns.values() for width in values}, reverse=True)
            heads = [{"name": "width", "kind": "width"}, *({"name": name, "kind": kind} for name in columns)]
            rows = [[width, *(values.get(width) for values in columns.values())] for width in widths]
            picture = chart(title, care, {"label": "width", "kind": "width"}, y, series)
            charts.append(picture | {"table": {"columns": heads, "rows": rows}})
    return charts


def by_width(record: EvaluationRecord, name: str) -> dict[Width, float]:
    """Return a figure of `WidthResult.row` at each width where it was measured."""
    return {result.width: value for result in record.widths if (value := result.row.get(name)) is not None}
