"""A model card: README.md in a model's folder, for people and for the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from us3l.description import read_description
from us3l.hub import CARD
from us3l.run.bundles import Bundle
from us3l.run.evaluations import METRICS, EvaluationRecord
from us3l.run.folder import Run
from us3l.system.errors import UserError
from us3l.system.files import read_bytes, write_text

MARK = "<!-- written by us3l; edit freely, and remove this line to keep it -->"


def model_card(run: Run, place: str = "FOLDER") -> str:
    """What there is to say about a model: what it is, how it was trained, how good it is, how to use it.

    Args:
        run: Whose model it is; results of other weights are left out.
        place: What to load it by.
    """
    about = read_description(run.model)
    metadata = about.get("metadata") if isinstance(about.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    size = (metadata.get("preprocessing") or {}).get("size")
    parts = [
        _head(),
        MARK,
        f"# {about.get('backbone', 'A network')}, slimmable",
        "One network, pre-trained without labels, that runs at any width. Made with us3l, a reimplementation of "
        "*Three Guidelines You Should Know for Universally Slimmable Self-Supervised Learning* (CVPR 2023).",
        "## What it is\n\n" + _list(_facts(about, size)),
        "## How it was trained\n\n" + _list(_training(run, metadata)),
    ]
    if tables := [_results(record) for record in _evaluations(run) if record.metric]:
        parts.append("## How good it is\n\n" + "\n\n".join(tables))
    parts.append(
        f'## How to use it\n\n```python\nimport us3l\n\nnet = us3l.load("{place}")'
        f"{'  # this folder' if place == 'FOLDER' else ''}\nhalf = net.carve(0.5)  # a plain nn.Module\n"
        f'features = us3l.Runtime("{place}").embed("photos/", width=0.5)\n```'
    )
    parts.append(
        "## What it is not\n\nIt gives features, not classes. How good they are on other images than those it was "
        "evaluated on is not known, nor what biases its training images have. Its licence follows from these images "
        "and from the weights it began with, if any."
    )
    return "\n\n".join(parts) + "\n"


def bundle_card(bundle: Bundle, place: str) -> str:
    """What there is to say about exported networks: what each costs, how good it is, how to run it."""
    measured = next((entry.accuracy for entry in bundle.entries if entry.accuracy), None)
    metrics = [name for name in METRICS if measured and measured.get(name) is not None]
    rows = [["width", "format", "file", "bytes", "MACs", *(METRICS[name] for name in metrics)]]
    for entry in bundle.entries:
        kind = f"{entry.format}, INT8" if entry.int8 else entry.format
        found = (entry.accuracy or {}).get
        cells = ("" if found(name) is None else f"{found(name):.1f}" for name in metrics)
        file = next(iter(entry.files))
        rows.append([f"{entry.width:g}", kind, file, f"{entry.bytes:,}", f"{entry.macs:,}", *cells])
    table = ["| " + " | ".join(row) + " |" for row in rows]
    table.insert(1, "|" + " --- |" * len(rows[0]))
    on = f" Accuracies are percentages on {measured['data']}." if measured and metrics else ""
    width = json.dumps(bundle.entries[-1].width.as_plain())
    parts = [
        _head(),
        MARK,
        f"# {bundle.name}, exported at several widths",
        f"Plain networks, cut out of one slimmable network by us3l.{on}",
        "\n".join(table),
        f'```python\nimport us3l\n\nus3l.Runtime("{place}").embed("photos/", width={width})\n```',
        "The files also run without us3l: `manifest.json` says how they want their images.",
    ]
    return "\n\n".join(parts) + "\n"


def write_card(run: Run) -> Path:
    """Write the card beside the model; one that somebody has made their own stays."""
    path, text = run.model / CARD, model_card(run)
    if own_card(run.model) is None and (not path.exists() or path.read_text(encoding="utf-8") != text):
        write_text(path, text)
    return path


def own_card(folder: Path) -> str | None:
    """A card that somebody has made their own, if there is one."""
    if not (folder / CARD).exists():
        return None
    text = read_bytes(folder / CARD).decode(errors="replace")
    return None if MARK in text else text


def _head() -> str:
    """What the Hub reads."""
    head = {"library_name": "us3l", "tags": ["self-supervised", "slimmable", "image-feature-extraction"]}
    return "---\n" + "\n".join(f"{name}: {json.dumps(value)}" for name, value in head.items()) + "\n---"


def _facts(about: dict[str, Any], size: Any) -> dict[str, Any]:
    plain = {name: value for name, value in about.items() if name not in ("metadata", "format")}
    return plain | ({"image size": size} if size else {})


def _training(run: Run, metadata: dict[str, Any]) -> dict[str, Any]:
    known = {
        name: value for name, value in (metadata.get("training") or {}).items() if name in ("steps", "images", "seed")
    }
    try:
        settings = run.settings
    except UserError:
        return known
    recipe = settings.get("recipe") or {}
    named = {"data": Path(str(settings.get("data", ""))).name} if settings.get("data") else {}
    chosen = {name: recipe.get(name) for name in ("epochs", "batch_size") if recipe.get(name) is not None}
    return {**named, **chosen, **known}


def _evaluations(run: Run) -> list[EvaluationRecord]:
    try:
        return list(run.evaluations.values())
    except UserError:  # of other weights
        return []


def _results(record: EvaluationRecord) -> str:
    metrics = [name for name in METRICS if record.percent(name)]
    lines = [f"On {record.name}, {record.tested or '?'} test images, in percent:\n"]
    lines += [" | ".join(["| width", "MACs", *(METRICS[name] for name in metrics)]) + " |"]
    lines += ["|".join(["| ---", *[" ---: "] * (1 + len(metrics))]) + "|"]
    for row in record.widths:
        cells = (row.percent(name) for name in metrics)
        shown = ("" if cell is None else f"{cell:.1f}" for cell in cells)
        lines.append(" | ".join([f"| {row.width:g}", f"{row.cost.macs:,}", *shown]) + " |")
    return "\n".join(lines)


def _list(values: dict[str, Any]) -> str:
    return "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in values.items()) or "- not known"
