"""A small page with pictures: the results of `us3l find` or `us3l predict`."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from us3l.data.decode import Damaged, decode
from us3l.data.sources import find
from us3l.data.streamed import ImageFiles
from us3l.system.errors import UserError
from us3l.system.streams import printable

SIDE = 112
MOST = 200  # rows on a page
ACROSS = 8
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
body { color: #1a1a1a; background: #fff }
section { border-top: 1px solid #ddd; padding: 1rem 0; display: flex; flex-wrap: wrap; gap: .8rem }
figure { margin: 0; width: 7.2rem } figure.query { border-right: 3px solid #2b6cb0; padding-right: .8rem }
img, .none { width: 112px; height: 112px; border-radius: 4px; display: block; background: #eee }
figcaption { font-size: 12px; overflow-wrap: anywhere; margin-top: .25rem } b { font-variant-numeric: tabular-nums }
@media (prefers-color-scheme: dark) {
  body { color: #eee; background: #161616 } section { border-color: #333 } img, .none { background: #333 }
}
"""


@dataclass(frozen=True)
class Card:
    """A picture and what to say of it."""

    file: str
    lines: Sequence[str] = ()
    """The first is set in bold."""
    source: str | None = None
    """Where the picture is."""


def page(title: str, intro: str, rows: Sequence[Sequence[Card]], marked: bool = True) -> str:
    """Return a page that needs no other file.

    Args:
        title: Above all.
        intro: A sentence.
        rows: Cards side by side.
        marked: Whether the first card of a row is the query.
    """
    shown = rows[:MOST]
    pictures = thumbnails(card for row in shown for card in row)
    sections = "\n".join(
        "<section>"
        + "".join(_figure(card, pictures, marked and place == 0) for place, card in enumerate(row))
        + "</section>"
        for row in shown
    )
    more = f"<p>and {len(rows) - MOST:,} more rows</p>" if len(rows) > MOST else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_safe(title)}</title><style>{STYLE}</style>'
        f"<h1>{_safe(title)}</h1><p>{_safe(intro)}</p>\n{sections}{more}</html>\n"
    )


def _figure(card: Card, pictures: Mapping[tuple[str | None, str], str], query: bool) -> str:
    uri = pictures.get((card.source, card.file))
    image = f'<img alt="{_safe(card.file)}" src="{uri}">' if uri else '<div class="none"></div>'
    first, *rest = [*card.lines, card.file] if card.lines else [card.file]
    text = "<br>".join([f"<b>{_safe(first)}</b>" if card.lines else _safe(first), *map(_safe, rest)])
    return f"<figure{' class=query' if query else ''}>{image}<figcaption>{text}</figcaption></figure>"


def _safe(text: str) -> str:
    return escape(printable(text))


def thumbnails(cards: Iterable[Card]) -> dict[tuple[str | None, str], str]:
    """Return the pictures that can be read, as data URIs, by their source and name."""
    wanted: dict[str, set[str]] = {}
    for card in cards:
        if card.source is not None:
            wanted.setdefault(card.source, set()).add(card.file)
    uris: dict[tuple[str | None, str], str] = {}
    for source, names in wanted.items():
        try:
            files = find(source, "every")
        except UserError:  # it was moved since
            continue
        places = [index for index in files.chosen if files.source.name(index) in names]
        for index, uri in zip(places, _uris(files, places), strict=True):
            if uri is not None:
                uris[source, files.source.name(index)] = uri
    return uris


def _uris(files: ImageFiles, places: Sequence[int]) -> Iterable[str | None]:
    for encoded in files.source.read(np.array(places, np.int64)) if len(places) else ():
        try:
            pixels = decode(encoded, SIDE)
        except Damaged:
            yield None
            continue
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=80)
        yield "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def match_rows(
    queries: Sequence[str],
    query_source: str | None,
    files: Sequence[str],
    source: str | None,
    matches: Sequence[Sequence[tuple[int, float]]],
) -> list[list[Card]]:
    """Return a row for each query: its picture, then those of its matches."""
    return [
        [Card(query, (), query_source), *(Card(files[place], (f"{cosine:.3f}",), source) for place, cosine in nearest)]
        for query, nearest in zip(queries, matches, strict=True)
    ]


def prediction_rows(rows: Sequence[Mapping[str, Any]], source: str | None) -> list[list[Card]]:
    """Return pictures with their classes, the least sure first, some to a row."""
    cards = [
        Card(row["file"], (row["class"] or "not sure", f"{row['probability']:.3f}", *_true_class(row)), source)
        for row in sorted(rows, key=lambda row: row["probability"])
    ]
    return [cards[start : start + ACROSS] for start in range(0, len(cards), ACROSS)]


def _true_class(row: Mapping[str, Any]) -> list[str]:
    label = row.get("label")
    return [f"is {label}"] if label and row["class"] and label != row["class"] else []
