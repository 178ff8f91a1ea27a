"""Agreement of widths with the full network, against a count by loops."""

import pytest
import torch

import us3l
from us3l.deploy.agreement import agreement
from us3l.evaluation.unlabelled import FEWEST, NEIGHBOURS


def test_agreement_is_the_share_of_common_neighbours(small):
    images = torch.randn(60, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    counted = []
    found = agreement(small, [0.25, 0.5, 1.0], images, counted.append)
    assert found[1.0] == 100
    assert sum(counted) == 3
    for width in (0.25, 0.5):
        sets = []
        for network in (small.carve(width), small.carve(1.0)):
            with torch.no_grad():
                features = network(images)
            near = []
            for i, one in enumerate(features):
                others = [(torch.cosine_similarity(one, features[j], dim=0).item(), j) for j in range(60) if j != i]
                near.append({j for _, j in sorted(others, reverse=True)[:NEIGHBOURS]})
            sets.append(near)
        shared = sum(len(a & b) for a, b in zip(*sets, strict=True))
        assert found[width] == pytest.approx(100 * shared / (60 * NEIGHBOURS), abs=0.2)
    assert found[0.25] < 100


def test_it_needs_some_images(small):
    with pytest.raises(us3l.UserError, match=f"at least {FEWEST} images"):
        agreement(small, [1.0], torch.randn(5, 3, 16, 16))
