"""A model card: README.md in a model's folder, for people and for the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from us3l.description import read_description
from us3l.errors import UserError
from us3l.files import write_text
from us3l.run.evaluations import METRICS, EvaluationRecord
from us3l.run.folder import Run

CARD = "README.md"
MARK = "<!-- written by us3l; edit freely, and remove this line to keep it -->"


def model_card(run: Run) -> str:
    """What there is to say about a model: what it is, how it was trained, how good it is, how to use it.

    Args:
        run: Whose model it is; results of other weights are left out.
    """
    about = read_description(run.model)
    metadata = about.get("metadata") if isinstance(about.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    size = (metadata.get("preprocessing") or {}).get("size")
    head = {"library_name": "us3l", "tags": ["self-supervised", "slimmable", "image-feature-extraction"]}
    parts = [
        "---\n" + "\n".join(f"{name}: {json.dumps(value)}" for name, value in head.items()) + "\n---",
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
        '## How to use it\n\n```python\nimport us3l\n\nnet = us3l.load("FOLDER")  # this folder\n'
        'half = net.carve(0.5)  # a plain nn.Module\nfeatures = us3l.Runtime("FOLDER").embed("photos/", width=0.5)\n```'
    )
    parts.append(
        "## What it is not\n\nIt gives features, not classes. How good they are on other images than those it was "
        "evaluated on is not known, nor what biases its training images have. Its licence follows from these images "
        "and from the weights it began with, if any."
    )
    return "\n\n".join(parts) + "\n"


def write_card(run: Run) -> Path:
    """Write the card beside the model; one that somebody has made their own stays."""
    path, text = run.model / CARD, model_card(run)
    there = path.read_text(encoding="utf-8", errors="replace") if path.exists() else MARK
    if MARK in there and there != text:
        write_text(path, text)
    return path


def _facts(about: dict[str, Any], size: Any) -> dict[str, Any]:
    plain = {name: value for name, value in about.items() if name not in ("metadata", "format")}
    return plain | ({"image size": size} if size else {})


def _training(run: Run, metadata: dict[str, Any]) -> dict[str, Any]:
    known = {
        name: value for name, value in (metadata.get("training") or {}).items() if name in ("steps", "images", "seed")
    }
    try:
        settings = run.origin.settings
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
    lines = [f"On {record.name}, {record.test_images or '?'} test images, in percent:\n"]
    lines += [" | ".join(["| width", "MACs", *(METRICS[name] for name in metrics)]) + " |"]
    lines += ["|".join(["| ---", *[" ---: "] * (1 + len(metrics))]) + "|"]
    for row in record.widths:
        cells = (getattr(row, name) for name in metrics)
        shown = ("" if cell is None else f"{cell:.1f}" for cell in cells)
        lines.append(" | ".join([f"| {row.width:g}", f"{row.macs:,}", *shown]) + " |")
    return "\n".join(lines)


def _list(values: dict[str, Any]) -> str:
    return "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in values.items()) or "- not known"
