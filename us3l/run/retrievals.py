"""How well widths find each other's images: retrieval/NAME.json of a run's folder."""

from __future__ import annotations

from dataclasses import dataclass

from us3l.run.records import Number, StampedRecord, Store, WholeNumber
from us3l.width import Width


@dataclass(frozen=True)
class Retrieval:
    """How well queries of one width find images of their class in a gallery of another, in percent."""

    query: Width
    gallery: Width
    recall: Number
    """Recall@1: the nearest image of the gallery is of the query's class."""
    knn: Number
    """kNN accuracy, as `us3l evaluate` measures it."""


@dataclass(frozen=True)
class RetrievalRecord(StampedRecord):
    """Every query width in every gallery width."""

    data: str
    rows: list[Retrieval]
    gallery_images: WholeNumber
    query_images: WholeNumber


RETRIEVALS = Store(RetrievalRecord, "retrieval_folder", 1, "evaluate")
