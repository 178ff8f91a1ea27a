"""Nearest neighbours by cosine, exactly: plain NumPy in blocks, or FAISS where it is installed; the same results."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from us3l.collection.collection_settings import Engine
from us3l.system.errors import UserError
from us3l.system.optional import need

BLOCK = 2**22
"""Similarities that are held at a time."""
LARGE = 50_000
"""Images from which on FAISS is used, if it is there: what it saves on fewer is not worth importing it."""
SPARE = 16
"""Candidates beyond those asked for: in float32 two libraries may rank near ties differently."""


def unit(values: np.ndarray) -> np.ndarray:
    """Rows of length 1; those of zeros stay."""
    length = np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True)
    return (values / np.maximum(length, 1e-12)).astype(np.float32)


def nearest(
    gallery: np.ndarray, queries: np.ndarray, count: int, engine: Engine = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """The images of a gallery that are most similar to each query.

    Args:
        gallery: N x C.
        queries: M x C.
        count: How many for each query; no more than there are.
        engine: What searches: "auto" is FAISS for large galleries, if it is installed.

    Returns:
        Indices and cosines, M x count, the most similar first; of equals the one that comes first in the gallery.

    >>> places, cosines = nearest(np.eye(3), np.array([[0.0, 2.0, 1.0]]), 2)
    >>> places.tolist(), cosines.round(2).tolist()
    ([[1, 2]], [[0.89, 0.45]])
    """
    if gallery.ndim != 2 or queries.ndim != 2 or gallery.shape[1] != queries.shape[1]:
        raise UserError(
            f"embeddings of {queries.shape[-1]} numbers cannot be compared with those of {gallery.shape[-1]}: they are "
            "of another model or width; embed both with `space='shared'`"
        )
    if count < 1:
        raise UserError(f"count={count} must be at least 1")
    gallery, queries = unit(gallery), unit(queries)
    wanted = min(count + SPARE, len(gallery))
    search = _faiss if _with_faiss(engine, len(gallery)) else _numpy
    places, cosines = [], []
    for block in _blocks(queries, len(gallery)):
        candidates = np.sort(search(gallery, block, wanted), axis=1)
        exact = np.einsum("qc,qkc->qk", block.astype(np.float64), gallery[candidates].astype(np.float64))
        order = np.argsort(-exact, axis=1, kind="stable")[:, :count]
        places.append(np.take_along_axis(candidates, order, axis=1))
        cosines.append(np.take_along_axis(exact, order, axis=1))
    return np.concatenate(places), np.concatenate(cosines)


def near_duplicates(values: np.ndarray, at_least: float) -> list[tuple[int, int, float]]:
    """All pairs of images whose cosine is at least a number, the most similar first.

    Args:
        values: N x C.
        at_least: From -1 to 1.
    """
    if not -1 <= at_least <= 1:
        raise UserError(f"at_least={at_least:g} is not a cosine: it is from -1 to 1, such as 0.95")
    values = unit(values)
    pairs: list[tuple[int, int, float]] = []
    start = 0
    for block in _blocks(values, len(values)):
        rows, columns = np.nonzero(block @ values[start:].T >= at_least - 1e-6)
        later = rows < columns  # each pair once, and none with itself
        rows, columns = rows[later] + start, columns[later] + start
        exact = np.einsum("pc,pc->p", values[rows].astype(np.float64), values[columns].astype(np.float64))
        pairs += [
            (int(one), int(other), float(cosine))
            for one, other, cosine in zip(rows, columns, exact, strict=True)
            if cosine >= at_least
        ]
        start += len(block)
    return sorted(pairs, key=lambda pair: (-pair[2], pair[:2]))


def groups_of(pairs: list[tuple[int, int, float]]) -> list[list[int]]:
    """Images that pairs connect, each group in order, the largest first.

    >>> groups_of([(0, 1, 1.0), (4, 5, 1.0), (1, 3, 0.99)])
    [[0, 1, 3], [4, 5]]
    """
    leader: dict[int, int] = {}

    def root(image: int) -> int:
        while leader.setdefault(image, image) != image:
            image = leader[image]
        return image

    for one, other, _ in pairs:
        leader[max(root(one), root(other))] = min(root(one), root(other))
    groups: dict[int, list[int]] = {}
    for image in sorted(leader):
        groups.setdefault(root(image), []).append(image)
    return sorted(groups.values(), key=lambda group: (-len(group), group))


def _blocks(queries: np.ndarray, count: int) -> Iterator[np.ndarray]:
    size = max(1, BLOCK // count)
    return (queries[start : start + size] for start in range(0, len(queries), size))


def _with_faiss(engine: Engine, count: int) -> bool:
    if engine not in ("auto", "numpy", "faiss"):
        raise UserError(f"engine={engine!r} must be 'auto', 'numpy' or 'faiss'")
    return engine == "faiss" or (engine == "auto" and count >= LARGE and find_spec("faiss") is not None)


def _numpy(gallery: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    similar = queries @ gallery.T
    return np.argpartition(-similar, count - 1, axis=1)[:, :count]


def _faiss(gallery: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    index = need("faiss").IndexFlatIP(gallery.shape[1])
    index.add(gallery)
    return index.search(queries, count)[1]
