"""How good a sub-network is, without labels: how far it agrees with the full network about unlabelled images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from us3l.calibration import calibrated_networks
from us3l.evaluation.unlabelled import linear_cka, predicted_share, shared_neighbours
from us3l.searching.search_settings import ScoreName
from us3l.slimmable import Slimmable
from us3l.width import FULL, Width

SCORES: dict[ScoreName, Callable[[Tensor, Tensor], float]] = {
    "prediction": predicted_share,
    "neighbours": shared_neighbours,
    "cka": linear_cka,
}
CALIBRATED = 256
"""Images on which a sub-network's batch-norm statistics are collected before it is judged."""
BATCH = 64


class Judge:
    """Scores sub-networks on a few images, as percentages; the full network has 100.

    Args:
        net: The network, which stays as it is.
        images: Preprocessed, N x 3 x S x S, on the network's device.
        score: "prediction" is the share of the full network's features that a linear map predicts; "neighbours" is that
            of the nearest neighbours that are the same; "cka" is linear CKA.
    """

    def __init__(self, net: Slimmable, images: Tensor, score: ScoreName = "prediction") -> None:
        self.net, self.images, self.compare = net, images, SCORES[score]
        self.full = self.features(FULL)

    def __call__(self, width: Width) -> float:
        return self.compare(self.features(width), self.full)

    @torch.no_grad()
    def features(self, width: Width) -> Tensor:
        """N x C, with statistics of these very images; those that the network has itself stay as they are."""
        few = self.images[:CALIBRATED]
        (network,) = calibrated_networks(self.net, few, [width], batch_size=CALIBRATED).values()
        return torch.cat([network(part) for part in self.images.split(BATCH)])
