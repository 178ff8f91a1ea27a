"""`us3l find`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from us3l.commands.parse import parse
from us3l.width import Width

if TYPE_CHECKING:
    from us3l.collection.finding import Finding

IndexArgument = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INDEX")]
QueryArgument = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="QUERY")]
SHOWN = 20  # queries in the terminal


@dataclass(frozen=True)
class Find:
    """Find the images of an embedded collection that are most like others, or those that are alike.

    INDEX is a file that us3l embed wrote. QUERY is an image, a folder of images, or another such file. Without QUERY,
    near-duplicates in the collection are found. The similarity is the cosine of the embeddings.

    examples:
      us3l find photos.parquet query.jpg --run runs/photos
      us3l find photos.parquet queries/ --run runs/photos --count 5 --page found.html
      us3l find gallery.parquet queries/ --run runs/photos --width 0.25
      us3l find photos.parquet --at-least 0.99 --page duplicates.html
    """

    index: IndexArgument
    """A file of embeddings."""
    query: QueryArgument = None
    """An image, a folder of images, or a file of embeddings (default: find near-duplicates)."""
    run: Path | None = None
    """The run or bundle that INDEX was made with, to embed images with."""
    width: Width | None = None
    """Width to embed QUERY at (default: that of INDEX; another one if INDEX is of the shared space)."""
    count: int = 10
    """Images to find for each query."""
    at_least: float = 0.98
    """Cosine from which on two images are near-duplicates."""
    engine: Literal["auto", "numpy", "faiss"] = "auto"
    """What searches; the results are the same."""
    page: Path | None = None
    """Also write a page with pictures."""
    overwrite: bool = False
    """Replace an earlier page."""


def main(arguments: list[str]) -> None:
    command = parse(Find, "find", arguments)
    from us3l.commands.screen import CommandScreen
    from us3l.reporting.tables import found_table
    from us3l.verbs import find

    screen = CommandScreen()
    found = find(**vars(command), progress=screen)
    screen.console.print(found_table(found.rows, SHOWN))
    screen.say(summary(found, command.query is None))
    if command.page:
        screen.say(f"written: {command.page}")


def summary(found: Finding, duplicates: bool) -> str:
    count = len(found.gallery)
    if duplicates:
        images = sum(map(len, found.matches)) + len(found.matches)
        return f"{images:,} of {count:,} images are near-duplicates, in {len(found.matches):,} groups"
    return f"{len(found.queries):,} queries in {count:,} images"
