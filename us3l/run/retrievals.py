"""How well widths find each other's images: retrieval/NAME.json of a run's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from us3l.run.checks import check_version
from us3l.run.folder import Run
from us3l.run.identity import clean
from us3l.run.weights import Weights, check_weights
from us3l.system.errors import UserError
from us3l.system.files import finite, read_json, write_json

VERSION = 1


@dataclass(frozen=True)
class Retrievals:
    """Recall@1 and kNN of every query width in every gallery width."""

    data: str
    rows: list[dict[str, Any]]
    """Each with `query`, `gallery`, `recall` and `knn`, in percent."""
    gallery_images: int
    query_images: int
    weights: Weights | None = None


def retrieval_file(run: Run, name: str) -> Path:
    return run.retrieval_folder / f"{clean(name)}.json"


def write_retrievals(run: Run, found: Retrievals, name: str) -> Path:
    path = retrieval_file(run, name)
    write_json(path, {"version": VERSION, **asdict(found)})
    return path


def read_retrievals(run: Run, name: str) -> Retrievals:
    """What `us3l evaluate --retrieval` found; of other weights than the model's it is a `UserError`."""
    path = retrieval_file(run, name)
    content = read_json(path)
    check_version(path, content.pop("version", None), (VERSION,), VERSION)
    try:
        found = Retrievals(**content | {"weights": Weights.of(content["weights"])})
        good = all(
            finite(row["recall"]) and finite(row["knn"]) and {"query", "gallery"} < row.keys() for row in found.rows
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        good = False
    if not good:
        raise UserError(f"{path} is damaged: evaluate again")
    check_weights(path, found.weights, run.weights, "evaluate again")
    return found
