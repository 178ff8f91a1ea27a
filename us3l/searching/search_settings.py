"""Settings of a search, without torch so that the command line can read them at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from us3l.system.errors import UserError

ScoreName = Literal["prediction", "neighbours", "cka"]
FEWEST = 50  # images


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """What decides where a search goes."""

    depth: bool = False
    """Also leave out blocks."""
    candidates: int = 150
    """Sub-networks to score."""
    images: int = 512
    """Unlabelled images to score them on; as many others confirm the best."""
    score: ScoreName = "prediction"
    """What counts: how well a linear map predicts the full network's features from a sub-network's; the nearest
    neighbours that both share; or linear CKA of the two."""
    seed: int = 0
    """Of the choice of images, and of all draws."""

    def to_plain(self) -> dict[str, Any]:
        """Return these settings alone, for the record of a search."""
        return {field.name: getattr(self, field.name) for field in fields(SearchSettings)}

    def __post_init__(self) -> None:
        if self.candidates < 10:
            raise UserError(f"candidates={self.candidates} must be at least 10")
        if self.images < FEWEST:
            raise UserError(f"images={self.images} must be at least {FEWEST}")
