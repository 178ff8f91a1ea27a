"""What is known about a run, as plain values: everything that its page shows, but for the images.

A table is a dictionary with `columns` (`name`, and `kind` of number) and `rows`; for charts see `records`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from us3l.deploy.profile import all_costs, pareto
from us3l.objective.methods import METHODS
from us3l.reporting.advice import advise, longer_run
from us3l.reporting.curves import Facts, chart, gauge_curves, loss_curves
from us3l.reporting.profile_tables import NAMES
from us3l.reporting.search_tables import search_facts
from us3l.reporting.tables import comparison
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
    """All facts about a run. Sections without facts are None or empty.

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
    found, stale = evaluations(run, config.recipe.network.individual)
    figures, widths, profile = [], [], None
    if net is not None:
        profile = newest_profile(run)
        costs = profile.costs if profile else all_costs(net, size)
        costs = [row for row in costs if row.width.plain]
        widths = sorted(row.width for row in costs)
        figures = width_figures(costs, profile.latencies if profile else [], found, net.canonical)
        if (alone := config.recipe.network.individual) is not None:
            widths = [Width(alone)]
    return {
        "name": name,
        "lead": lead(config, widths, run.finished),
        "headlines": headlines(found),
        "summary": [*summary(run, config, history, steps), *(["Left out", why] for why in stale)],
        "problem": problem,
        "widths": widths,
        "figures": figures,
        "trade_offs": trade_offs(figures),
        "evaluations": [evaluation_facts(one) for one in found],
        "searches": searches(run),
        "advice": advice_facts(run, config, records, typed),
        "curves": loss_curves(steps, config.recipe) + gauge_curves(records),
        "config": read_bytes(run.config_file).decode(errors="replace"),
        "provenance": provenance(run, config, net, profile),
    }


# What it is


def lead(config: RunConfig, widths: Sequence[Width], finished: bool) -> str:
    """The run in a sentence."""
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
    """The name of the method, unless it is a composition of its own."""
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
    objective = recipe.objective
    full, subs = (" + ".join(losses) for losses in (objective.base_losses, objective.sub_losses))
    return f"base loss {full}, sub-networks' loss {subs} through head {objective.head}"


def headlines(found: Sequence[EvaluationRecord]) -> list[Facts]:
    """The accuracies that matter most, of the first evaluation: at its widest and its narrowest width."""
    for metric, what in METRICS.items():
        for one in found:
            measured = [result for result in one.widths if metric in result.scores]
            measured.sort(key=lambda result: result.width, reverse=True)
            if not measured:
                continue
            ends = measured[:1] + measured[1:][-1:]
            tiles = []
            for result in ends:
                floor, score = result.untrained.get(metric), result.scores[metric]
                note = f"{what} on {one.name}" + (f", untrained {floor:.1f} %" if floor is not None else "")
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
    rows = [["Folder", str(run.folder)], ["Seed", str(config.recipe.seed)]]
    if net is not None:
        rows.append(["Weights, SHA-256", checksum(run.model / "weights.safetensors")])
        rows += [[f"Model: {name}", _inline(value)] for name, value in net.metadata.items()]
    if profile:
        rows += [[f"Latencies: {name}", _inline(value)] for name, value in profile.machine.items()]
    made = {"us3l": version("us3l"), "torch": version("torch"), "python": platform.python_version()}
    return [*rows, ["Page made", f"{datetime.now():%Y-%m-%d %H:%M} by {_inline(made)}"]]


def _titled(name: str) -> str:
    """As it begins a line."""
    return name if name.startswith("kNN") else name[0].upper() + name[1:]


def _inline(value: Any) -> str:
    return ", ".join(f"{name} {item}" for name, item in value.items()) if isinstance(value, dict) else str(value)


def advice_facts(
    run: Run, config: RunConfig, records: Sequence[Record], typed: Callable[[str], str] = str
) -> Facts | None:
    """Whether to train longer, by gauges that need no labels, and how."""
    found = advise(records, run.finished)
    if found is None:
        return None
    recipe = config.recipe
    call = longer_run(run.folder, run.config_file, recipe.epochs, recipe.max_steps)
    command = typed(call).strip("`") if found.longer else None
    return {"verdict": found.verdict, "text": found.text, "command": command}


# What it is worth and what it costs


def evaluations(run: Run, individual: float | None = None) -> tuple[list[EvaluationRecord], list[str]]:
    """All there are, and why some are left out. A network that was trained alone goes by its width in the family."""
    found, stale = [], []
    for name in EVALUATIONS.names(run):
        EVALUATIONS.read(run, name, check=False)  # damage is an error
        try:
            record = EVALUATIONS.read(run, name)
        except UserError as error:  # of other weights
            stale.append(str(error))
            continue
        if individual is not None:
            record = replace(record, widths=[replace(row, width=Width(individual)) for row in record.widths])
        found.append(record)
    return found, stale


QUALITY_KINDS = {"rankme": "number", "lidar": "number", "agreement": "percent"}


def evaluation_facts(one: EvaluationRecord) -> Facts:
    names = {"width": ("width", "width"), "params": ("parameters", "count"), "macs": ("MACs", "count")}
    for metric, name in METRICS.items():
        names |= {
            metric: (name, "percent"),
            f"{metric}_untrained": (f"{name}, untrained", "percent"),
            f"{metric}_top5": (f"{name}, top 5", "percent"),
        }
    names |= {name: (title, QUALITY_KINDS[name]) for name, title in QUALITIES.items()}
    rows = [
        {name: result.row.get(name) for name in names} | {"width": result.width.as_plain()} for result in one.widths
    ]
    shown = [name for name in names if any(row[name] is not None for row in rows)]
    columns = [{"name": names[name][0], "kind": names[name][1]} for name in shown]
    table = {"columns": columns, "rows": [[row[name] for name in shown] for row in rows]}
    return {"name": one.name, "about": trust(one), "table": table, "classes": by_class(one)}


def searches(run: Run) -> list[Facts]:
    """What was found by searches of the present weights, the newest first."""
    present = run.weights if run.model.is_dir() else None
    known = reversed(by_date(SEARCHES.read_all(run, check=False).values()))
    return [search_facts(one) for one in known if present and one.weights and not one.weights.differences(present)]


def trust(one: EvaluationRecord) -> str:
    """How the accuracies came about, and how far they can be trusted."""
    if one.metric is None:
        return "without labels"
    parts = [f"protocol {one.protocol}"] if one.protocol else []
    if one.train_images is not None and one.test_images is not None:
        parts.append(f"{one.train_images:,} images to learn from, {one.test_images:,} to test")
    scores = [score for row in one.widths for score in row.scores.values()]
    if scores:
        parts.append(f"95 % intervals within ±{max(score.high - score.low for score in scores) / 2:.1f} points")
    return "; ".join(parts)


def by_class(one: EvaluationRecord) -> Facts | None:
    """A table of the accuracy for each class at each width, by the first kind of accuracy there is."""
    for metric, name in METRICS.items():
        columns = {row.width: row.scores[metric].per_class for row in one.widths if metric in row.scores}
        if columns and one.classes:
            heads = [{"name": "class", "kind": "text"}]
            heads += [{"name": f"{width:g}x, {name}", "kind": "percent"} for width in columns]
            return {"columns": heads, "rows": [list(row) for row in zip(one.classes, *columns.values(), strict=True)]}
    return None


def width_figures(
    costs: Sequence[Costs],
    latencies: Sequence[Latency],
    found: Sequence[EvaluationRecord],
    canonical: Callable[[Width], Width],
) -> list[Facts]:
    """What is known of every distinct width, narrowest first; None where nobody measured.

    Accuracies come first, then costs, then quality without labels. `role` tells them apart.
    """
    rows = sorted(costs, key=lambda row: row.width)
    alone = len(rows) == 1

    def figure(label: str, kind: str, values: Mapping[Width, float], missing: str = "", role: str = "cost") -> Facts:
        known = [values.get(row.width) for row in rows]
        return {"label": label, "kind": kind, "values": known, "missing": missing, "role": role}

    def evaluated(metric: str, name: str, kind: str, role: str) -> list[Facts]:
        shown = []
        for one in found:
            values = {
                rows[0].width if alone else canonical(result.width): value
                for result in one.widths
                if (value := result.row.get(metric)) is not None
            }
            if values:
                shown.append(figure(f"{_titled(name)}, {one.name}", kind, values, "not evaluated", role))
        return shown

    figures = [one for metric, name in METRICS.items() for one in evaluated(metric, name, "percent", "accuracy")]
    figures += [
        figure("Parameters", "count", {row.width: row.params for row in rows}),
        figure("MACs per image", "count", {row.width: row.macs for row in rows}),
        figure("Size of the weights", "bytes", {row.width: row.bytes for row in rows}),
        figure("Memory of activations", "bytes", {row.width: row.memory for row in rows}),
    ]
    batch = min((latency.batch for latency in latencies), default=1)
    for backend in dict.fromkeys(latency.backend for latency in latencies):
        timed = {row.width: row.p50_ms for row in latencies if (row.backend, row.batch) == (backend, batch)}
        label = f"Latency, {NAMES.get(backend, backend)}" + (f", {batch} images" if batch > 1 else "")
        figures.append(figure(label, "ms", timed, "not timed"))
    for quality, name in QUALITIES.items():
        figures += evaluated(quality, name, QUALITY_KINDS[quality], "quality")
    return figures


def trade_offs(figures: Sequence[Facts]) -> list[Facts]:
    """For each accuracy and each cost, by their places in `figures`: the places of the widths on the Pareto front."""
    found = []
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
                found.append({"accuracy": accuracy, "cost": cost, "front": front})
    return found


def compared(runs: Mapping[str, Sequence[EvaluationRecord]]) -> list[Facts]:
    """Each accuracy and quality that several runs have on the same data: over width as a chart, and as a table."""
    found = []
    for data in dict.fromkeys(one.name for some in runs.values() for one in some):
        having = {name: one for name, some in runs.items() for one in some if one.name == data}
        for metric, what in (METRICS | QUALITIES).items():
            results = {
                name: one.widths
                for name, one in having.items()
                if any(result.row.get(metric) is not None for result in one.widths)
            }
            if len(results) < 2:
                continue
            rows = comparison(results, metric)
            series = [
                {
                    "name": name,
                    "points": [[width, row[name]] for width, row in reversed(rows.items()) if row[name] is not None],
                }
                for name in results
            ]
            unequal = [
                one.replace("_", " ")
                for one in ("train_images", "test_images", "training")
                if len({str(getattr(having[name], one)) for name in results}) > 1
            ]
            care = f"Take care: the evaluations differ in {', '.join(unequal)}." if unequal else ""
            title = f"{_titled(what)} on {data}"
            kind = QUALITY_KINDS.get(metric, "percent")
            y = {"label": QUALITIES.get(metric, "top-1 accuracy"), "kind": kind}
            columns = [{"name": "width", "kind": "width"}, *({"name": name, "kind": kind} for name in results)]
            table = {"columns": columns, "rows": [[width, *row.values()] for width, row in rows.items()]}
            found.append(chart(title, care, {"label": "width", "kind": "width"}, y, series) | {"table": table})
    return found
