"""Tables about deploying: what a width needs within budgets, and what was exported."""

from __future__ import annotations

from rich import box
from rich.table import Table

from us3l.deploy.exporting import Exported
from us3l.deploy.pick import BUDGETS
from us3l.deploy.picking import Picked
from us3l.deploy.proof import Proof
from us3l.reporting.tables import human


def picked_table(picked: Picked) -> Table:
    """What the chosen width needs, the budgets, and what is left of them."""
    found, accuracies = picked.to_plain(), picked.accuracies
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("", "needs", "budget", "margin"):
        table.add_column(header, justify="right" if header else "left")
    for name, budget in found["budgets"].items():
        share = found["margins"][name] / budget
        style = "red" if share < 0 else ""
        table.add_row(BUDGETS[name], figure(found["figures"][name]), figure(budget), f"{share:+.1%}", style=style)
    if found["accuracy"] is not None:
        least = found["accuracy_at_least"]
        gap = [f"at least {least:g}", f"{found['accuracy'] - least:+.1f}"] if least is not None else ["", ""]
        name = "agreement, %" if accuracies and accuracies.metric == "agreement" else "accuracy, %"
        table.add_row(name, f"{found['accuracy']:.1f}", *gap, style="red" if gap[1].startswith("-") else "")
    return table


def figure(value: float) -> str:
    return human(value) if value >= 1000 else f"{value:.3g}"


def exported_table(exported: Exported) -> Table:
    """The files, what they cost, and how they were proved."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("file", overflow="fold")  # names may be long, but numbers must not be cut
    for header in ("size", "params", "MACs"):
        shown.add_column(header, no_wrap=True)
    shown.add_column("proof", min_width=len("differs by 0e-00"))
    for entry, proof in exported.networks:
        costs = (f"{entry.bytes / 1e6:.2f} MB", human(entry.params), human(entry.macs))
        shown.add_row(next(iter(entry.files)), *costs, describe(proof))
    return shown


def describe(proof: Proof) -> str:
    """A proof in a few words."""
    if proof.difference is not None:
        return f"differs by {proof.difference:.0e}"
    accuracy = f", {proof.judge} {proof.float_accuracy:.1f} -> {proof.int8_accuracy:.1f} %" if proof.judge else ""
    return f"cosine {proof.cosine:.4f}{accuracy}"
