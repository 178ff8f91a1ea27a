"""`us3l find`: nearest images in a collection, and near-duplicates."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from us3l.collection.collection_settings import FindSettings
from us3l.commands.command import Command, command
from us3l.setting_types import AnyRun, Data, Positional
from us3l.system.errors import UserError

if TYPE_CHECKING:
    from us3l.collection.finding import Finding
    from us3l.commands.screen import CommandScreen

SHOWN = 20  # queries in the terminal


@dataclass(frozen=True)
class Find(FindSettings, Command):
    """Find the images of an embedded collection that are most like others, or those that are alike.

    INDEX is a file that us3l embed wrote. QUERY is an image, a folder of images, or another such file. Without QUERY,
    near-duplicates in the collection are found. The similarity is the cosine of the embeddings. With --across, INDEX
    stands for images as us3l evaluate takes them, and test images that are training images too are found.

    examples:
      us3l find photos.parquet query.jpg --run runs/photos
      us3l find photos.parquet queries/ --run runs/photos --count 5 --page found.html
      us3l find gallery.parquet queries/ --run runs/photos --width 0.25
      us3l find photos.parquet --at-least 0.99 --page duplicates.html
      us3l find photos/ --across train test
    """

    index: Annotated[Data, Positional("INDEX")]
    """A file of embeddings; with --across images: a folder, a parquet file or a known name."""
    query: Annotated[Data | None, Positional("QUERY")] = None
    """An image, a folder of images, or a file of embeddings (default: find near-duplicates)."""
    _: KW_ONLY
    run: AnyRun | None = None
    """The run or bundle that INDEX was made with, to embed images with."""


@command(Find)
def find(settings: Find) -> Finding:
    """Find the images of an embedded collection that are most like others, or near-duplicates in it.

    Returns:
        What was found: `rows` has a dictionary per image.
    """
    from us3l.collection.finding import find_images
    from us3l.reporting.picture_page import match_rows
    from us3l.reporting.picture_page import page as page_of
    from us3l.run.unsaved import run_of
    from us3l.system.files import write_text
    from us3l.system.progress import progress_of

    if settings.page is not None:
        check_page(Path(settings.page), settings.overwrite)
    run = None if settings.run is None else run_of(settings.run)
    found = find_images(settings.index, settings.query, run, settings, progress_of(settings.progress))
    if settings.page is not None:
        rows = match_rows(found.queries, found.query_source, found.gallery.files, found.source, found.matches)
        title = "Nearest images" if settings.query is not None else "In both" if settings.across else "Near-duplicates"
        intro = f"{len(found.gallery):,} images of {settings.index}; the numbers are cosines of embeddings."
        write_text(Path(settings.page), page_of(title, intro, rows))
    return found


def check_page(page: Path, overwrite: bool) -> None:
    """Raise a `UserError` if a page could not be written after the work."""
    if page.exists() and not overwrite:
        raise UserError(f"{page} already exists: choose another `page`, or replace it with `overwrite`")
    if not page.parent.is_dir():
        raise UserError(f"{page.parent} is not a folder: the page has no place there")


def main(settings: Find, screen: CommandScreen) -> None:
    from us3l.reporting.tables import matches_table

    found = find.with_settings(settings)
    screen.console.print(matches_table(found.rows, SHOWN))
    screen.say(summary(found, settings))
    if settings.page:
        screen.say(f"written: {settings.page}")


def summary(found: Finding, settings: Find) -> str:
    """Return what was found in one line."""
    count = len(found.gallery)
    if settings.across is not None:
        first, second = settings.across
        how = f"the same bytes, or a cosine of {settings.at_least:g}" if settings.run else "the same bytes"
        return f"{len(found.queries):,} of {found.asked:,} images of {second} are among the {count:,} of {first}: {how}"
    if settings.query is None:
        images = sum(map(len, found.matches)) + len(found.matches)
        return f"{images:,} of {count:,} images are near-duplicates, in {len(found.matches):,} groups"
    return f"{len(found.queries):,} queries in {count:,} images"
