"""What `us3l find` does: the images of an embedded collection that are most like others, and those that are alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from us3l.collection.collection_settings import EmbeddingSettings, FindSettings
from us3l.collection.embedding import embed_images
from us3l.collection.neighbours import groups_of, near_duplicates, nearest
from us3l.collection.vectors import SUFFIX, Embeddings, read_embeddings
from us3l.data.contents import duplicates
from us3l.data.sources import Data, ImageFiles, ImageSet, find
from us3l.run import Run
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.width import Width

MOST_PAIRS = 1_000_000
"""Pairs of near-duplicates; a threshold that gives more is too low to mean anything."""


@dataclass(frozen=True)
class Finding:
    """Images that were found."""

    gallery: Embeddings
    queries: list[str]
    """The name of each query; of near-duplicates the first image of each group."""
    matches: list[list[tuple[int, float]]]
    """For each query, the places of images in the gallery, with their cosines; the most similar first."""
    source: str | None = None
    """Where the pictures of the gallery are, if its file says."""
    query_source: str | None = None
    """Where those of the queries are; None of near-duplicates."""
    asked: int = 0
    """Across parts: how many images of the second were looked for in the first."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each image found."""
        labels = self.gallery.labels
        return [
            {"query": query, "rank": rank, "file": self.gallery.files[place], "similarity": cosine}
            | ({} if labels is None else {"label": labels[place]})
            for query, found in zip(self.queries, self.matches, strict=True)
            for rank, (place, cosine) in enumerate(found, start=1)
        ]


def find_images(
    index: Data,
    query: Data | None = None,
    run: Run | None = None,
    settings: FindSettings | None = None,
    progress: Progress = SILENT,
) -> Finding:
    """Search a file of embeddings.

    Args:
        index: The file that `us3l embed` wrote; with `across`, images.
        query: Images, or another file of embeddings (default: none, near-duplicates in the collection are found).
        run: The run or bundle that the file was made with; needed where queries are images.
        settings: What is found, and how.
        progress: Told how far it is.
    """
    settings = settings or FindSettings()
    if settings.across is not None:
        if query is not None:
            raise UserError("`across` compares two parts of one source: leave out the query")
        return find_across(index, settings, run, progress)
    if not isinstance(index, str | Path):
        raise UserError("a collection is searched by the file of its embeddings: `us3l.embed` writes it")
    gallery, index = read_embeddings(index), Path(index)
    source = (gallery.about or {}).get("data", {}).get("source")
    if query is None:
        return near_duplicate_groups(gallery, settings.at_least, source)
    width = None if settings.width is None else Width(settings.width)
    asked, query_source = query_embeddings(gallery, index, query, run, width, progress)
    places, cosines = nearest(gallery.values, asked.values, settings.count, settings.engine)
    matches = [
        [(int(place), float(cosine)) for place, cosine in zip(*row, strict=True)]
        for row in zip(places, cosines, strict=True)
    ]
    return Finding(gallery, asked.files, matches, source, query_source)


def near_duplicate_groups(gallery: Embeddings, at_least: float, source: str | None) -> Finding:
    """Return near-duplicates in a collection: each group with its first image as the query."""
    pairs = near_duplicates(gallery.values, at_least)
    if len(pairs) > MOST_PAIRS:
        raise UserError(f"{len(pairs):,} pairs have a cosine of {at_least:g} or more: raise `at_least`")
    best_cosine: dict[int, float] = {}
    for first, second, cosine in pairs:
        for image in (first, second):
            best_cosine[image] = max(cosine, best_cosine.get(image, -1.0))
    groups = groups_of(pairs)
    matches = []
    for _, *others in groups:
        best = {image: best_cosine[image] for image in others}
        matches.append(sorted(best.items(), key=lambda item: (-item[1], item[0])))
    return Finding(gallery, [gallery.files[group[0]] for group in groups], matches, source, source)


def find_across(data: Data, settings: FindSettings, run: Run | None, progress: Progress) -> Finding:
    """Return which images of the second part of some data are in the first as well: the leaks between them.

    Args:
        data: Images that have both parts, of their own or by `us3l.data.splits`.
        settings: The parts, and from which cosine on images are near-duplicates.
        run: What embeds them (default: only images of the same bytes are found).
        progress: Told how far it is.
    """
    images = data.images if isinstance(data, ImageSet) else data
    first, second = (find(images, part, None, None, progress) for part in settings.across or ())
    cosines = dict.fromkeys(duplicates(first.read_contents(), second.read_contents()), 1.0)
    if run is not None:
        cosines = similar_pairs(first, second, run, settings, progress) | cosines
    matches: dict[int, list[tuple[int, float]]] = {}
    for (place, query), cosine in sorted(cosines.items(), key=lambda pair: (pair[0][1], -pair[1], pair[0][0])):
        matches.setdefault(query, []).append((place, cosine))
    names, codes = image_names(first), first.source.labels[first.chosen].tolist()
    labels = [first.source.classes[code] if code >= 0 else None for code in codes] if max(codes) >= 0 else None
    gallery = Embeddings(names, np.zeros((len(names), 0), np.float32), labels)
    queries, source = image_names(second), str(data) if isinstance(data, str | Path) else None
    return Finding(gallery, [queries[query] for query in matches], [*matches.values()], source, source, len(second))


def similar_pairs(
    first: ImageFiles, second: ImageFiles, run: Run, settings: FindSettings, progress: Progress
) -> dict[tuple[int, int], float]:
    """Return the cosines of near-duplicates, by their places in both parts."""
    width = EmbeddingSettings(width=settings.width)
    gallery, asked = (embed_images(run, files, width, progress).embeddings for files in (first, second))
    in_first, in_second = ({name: place for place, name in enumerate(image_names(files))} for files in (first, second))
    places, cosines = nearest(gallery.values, asked.values, settings.count, settings.engine)
    return {
        (in_first[gallery.files[places[row, rank]]], in_second[asked.files[row]]): float(cosines[row, rank])
        for row, rank in np.argwhere(cosines >= settings.at_least).tolist()
    }


def image_names(files: ImageFiles) -> list[str]:
    """Return what the images are called."""
    return [files.source.name(number) for number in files.chosen]


def query_embeddings(
    gallery: Embeddings, index: Path, query: Data, run: Run | None, width: Width | None, progress: Progress
) -> tuple[Embeddings, str | None]:
    """The embeddings of the queries, comparable with those of the gallery, and where their pictures are."""
    if isinstance(query, str | Path) and is_embedded(Path(query)):
        asked = read_embeddings(query)
        check_comparable(gallery, asked, index, Path(query))
        return asked, (asked.about or {}).get("data", {}).get("source")
    if run is None:
        raise UserError(f"say which network embeds the queries: `run=RUN`, the one that {index} was made with")
    about = gallery.about
    if about is None:
        raise UserError(f"{index} does not say how it was made: embed the queries yourself, and give their file")
    shared = about.get("space") == "shared"
    if width is not None and not shared and Width(width).as_plain() != about["width"]:
        raise UserError(
            f"{index} has embeddings of {about['width']}x, which those of {width:g}x cannot be compared with: embed "
            "it again with `space='shared'`, or leave out `width`"
        )
    network = about["network"]
    chosen = about["width"] if width is None else width
    settings = EmbeddingSettings(width=chosen, backend=network["backend"], space="shared" if shared else "own")
    embedded = embed_images(run, query, settings, progress)
    check_comparable(gallery, embedded.embeddings, index, run.folder)
    return embedded.embeddings, str(query) if isinstance(query, str | Path) else None


def is_embedded(path: Path) -> bool:
    """Return whether a file holds embeddings; a parquet file may hold images instead."""
    if path.suffix.lower() != SUFFIX:
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return "embedding" in pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return False


def check_comparable(gallery: Embeddings, asked: Embeddings, index: Path, other: Path) -> None:
    """That both are of the same model, and of one space."""
    one, two = gallery.about, asked.about
    if one is None or two is None:
        return
    weights = [about["network"].get("weights") for about in (one, two)]
    if None not in weights and weights[0] != weights[1]:
        raise UserError(f"{index} and {other} are of different models: embed both with the same one")
    if one.get("space") != two.get("space") or (one.get("space") != "shared" and one["width"] != two["width"]):
        raise UserError(
            f"{index} has embeddings of {one['width']}x, {other} of {two['width']}x, and they cannot be compared: "
            "embed both with `space='shared'`"
        )
