"""`us3l embed`: every image of a folder as a vector."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from us3l.collection.collection_settings import EmbeddingSettings
from us3l.commands.command import ModelCommand, command
from us3l.setting_types import AnyPath, Model, SomeImages

if TYPE_CHECKING:
    from us3l.collection.embedding import Embedded
    from us3l.commands.screen import CommandScreen


@dataclass(frozen=True)
class Embed(EmbeddingSettings, ModelCommand):
    """Embed every image of a folder, of parquet files or of shards, at one width, into one file.

    FILE is a parquet file with the columns file, embedding and label. A command that was stopped or killed goes on
    where it was when it is typed again, and its file is the same. Images that cannot be read are left out, and named
    in FILE.damaged.txt.

    DATA is a folder, a parquet file, a shard, an image, or a known name; see us3l evaluate.

    examples:
      us3l embed runs/photos photos/ --out photos.parquet
      us3l embed runs/photos photos/ --width 0.25 --out narrow.parquet
      us3l embed runs/photos photos/ --latency-ms 5 --out photos.parquet
      us3l embed runs/photos photos/ --width 0.25 --space shared --out queries.parquet
      us3l embed runs/photos/export photos/ --width 0.37 --backend onnx --out photos.parquet
    """

    run: Model
    """The folder of a run, a model or a bundle."""
    data: SomeImages
    """Images to embed."""
    _: KW_ONLY


@dataclass(frozen=True)
class EmbedLine(Embed):
    __doc__ = Embed.__doc__

    out: AnyPath = field(kw_only=True)
    """The parquet file to write."""


@command(Embed, line=EmbedLine)
def embed(settings: Embed) -> Embedded:
    """Embed every image of a folder, a list, parquet files or shards. A call that was stopped goes on with its file.

    Returns:
        What was embedded: `embeddings` has names, values and labels; `rows` a dictionary per image.
    """
    from us3l.collection.embedding import embed_images
    from us3l.run.unsaved import run_of
    from us3l.system.progress import progress_of

    progress = progress_of(settings.progress)
    return embed_images(run_of(settings.run), settings.data, settings, progress)


def main(settings: EmbedLine, screen: CommandScreen) -> None:
    from us3l.data.sources import tell_damaged

    embedded = embed.with_settings(settings)
    tell_damaged(screen, str(settings.data), embedded.damaged)
    if embedded.computed:
        rows = embedded.images - len(embedded.damaged)
        damaged = f", {len(embedded.damaged):,} are damaged" if embedded.damaged else ""
        screen.say(
            f"{embedded.width:g}x: {rows:,} of {embedded.images:,} images embedded{damaged} "
            f"({embedded.seconds:.1f} s, {embedded.images_per_s:.3g} images/s); written: {embedded.path}"
        )
