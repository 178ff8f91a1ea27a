import sys

import numpy as np
import pytest

from us3l.collection import neighbours as search
from us3l.collection.neighbours import groups_of, near_duplicates, nearest
from us3l.system.errors import UserError

DRAW = np.random.default_rng(0)
GALLERY = DRAW.normal(size=(300, 8)).astype(np.float32)
QUERIES = DRAW.normal(size=(40, 8)).astype(np.float32) * 5


def by_hand(gallery, query, count):
    cosines = [float(np.dot(query, one) / np.linalg.norm(query) / np.linalg.norm(one)) for one in gallery.astype(float)]
    return sorted(range(len(gallery)), key=lambda place: (-round(cosines[place], 6), place))[:count], cosines


@pytest.mark.parametrize("block", [2**22, 700])
def test_the_nearest_are_those_of_a_loop(monkeypatch, block):
    monkeypatch.setattr(search, "BLOCK", block)
    places, cosines = nearest(GALLERY, QUERIES, 5)
    for query, found, similar in zip(QUERIES.astype(float), places, cosines, strict=True):
        wanted, every = by_hand(GALLERY, query, 5)
        assert found.tolist() == wanted
        np.testing.assert_allclose(similar, [every[place] for place in wanted], rtol=1e-5, atol=1e-6)


def test_faiss_finds_the_same():
    pytest.importorskip("faiss", reason="faiss is not installed")
    ties = np.concatenate([GALLERY, GALLERY[:50]])
    for found, wanted in zip(nearest(ties, QUERIES, 7, "faiss"), nearest(ties, QUERIES, 7, "numpy"), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_no_more_are_found_than_there_are():
    places, _ = nearest(GALLERY[:3], QUERIES, 10)
    assert places.shape == (40, 3)


@pytest.mark.parametrize("block", [2**22, 400])
def test_near_duplicates_are_all_pairs_above_the_threshold(monkeypatch, block):
    monkeypatch.setattr(search, "BLOCK", block)
    values = np.concatenate([GALLERY[:20], GALLERY[:3] * 2, -GALLERY[:1]])
    assert {pair[:2] for pair in near_duplicates(values, 0.999)} == {(0, 20), (1, 21), (2, 22)}
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    wanted = {(i, j) for i in range(24) for j in range(i + 1, 24) if unit[i].astype(float) @ unit[j] >= 0.5}
    assert {pair[:2] for pair in near_duplicates(values, 0.5)} == wanted
    assert groups_of(near_duplicates(values, 0.999)) == [[0, 20], [1, 21], [2, 22]]


def test_what_cannot_be_searched_is_told(monkeypatch):
    with pytest.raises(UserError, match="embed both with `space='shared'`"):
        nearest(GALLERY, QUERIES[:, :4], 1)
    with pytest.raises(UserError, match="count=0"):
        nearest(GALLERY, QUERIES, 0)
    with pytest.raises(UserError, match="is not a cosine"):
        near_duplicates(GALLERY, 95)
    with pytest.raises(UserError, match="engine='annoy'"):
        nearest(GALLERY, QUERIES, 1, "annoy")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r"us3l\[search\]"):
        nearest(GALLERY, QUERIES, 1, "faiss")
