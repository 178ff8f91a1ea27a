"""Settings of a search, without torch so that the command line can read them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from us3l.errors import UserError

ScoreName = Literal["neighbours", "cka"]
FEWEST = 50  # images


@dataclass(frozen=True)
class SearchSettings:
    """What decides where a search goes."""

    depth: bool = False
    """Also leave out blocks."""
    candidates: int = 150
    """Sub-networks to score."""
    images: int = 512
    """Unlabelled images to score them on; as many others confirm the best."""
    score: ScoreName = "neighbours"
    """What counts: the nearest neighbours that a sub-network shares with the full network, or linear CKA with it."""
    seed: int = 0
    """Of the choice of images, and of all draws."""

    def __post_init__(self) -> None:
        if self.candidates < 10:
            raise UserError(f"candidates={self.candidates} must be at least 10")
        if self.images < FEWEST:
            raise UserError(f"images={self.images} must be at least {FEWEST}")
