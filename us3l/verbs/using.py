"""`us3l.embed`: what one does with a network on the day after training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from us3l.progress import Progress, Told, progress_of
from us3l.run.folder import Product
from us3l.verbs.arguments import AnyRun, borrowed, check_names
from us3l.verbs.pretraining import with_weights
from us3l.width import AnyWidth, given

if TYPE_CHECKING:
    from us3l.data.sources import Data
    from us3l.deploy.embedding import Embedded
    from us3l.slimmable import Slimmable


def embed(
    run: AnyRun | Slimmable,
    data: Data,
    *,
    width: AnyWidth | None = None,
    latency_ms: float | None = None,
    out: str | Path | None = None,
    weights: Product | None = None,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Embedded:
    """Embed every image of a folder, a list, parquet files or shards.

    Args:
        run: a run, the path of its folder or of a bundle, or a network.
        data: images of any kind; see `evaluate`.
        width: of the network (default: the widest).
        latency_ms: take the best width within that time per image instead, as `pick` does.
        out: the file to write: .parquet, .npz or .csv. A call that was stopped goes on with it (default: none; the
            embeddings stay in memory).
        weights: "teacher" or "student", as in `evaluate` (default: those of the run's model).
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l embed`, such as `backend="onnx"` or `split="test"`.

    Returns:
        What was embedded: `embeddings` has names, values and labels; `rows` a dictionary per image.
    """
    from us3l.deploy.embedding import embed_images

    check_names(embed_images, settings)
    told = progress_of(progress)
    chosen = None if width is None else given(width)
    with borrowed(run) as place:
        model = with_weights(place, weights, told).folder
        return embed_images(
            model, data, chosen, latency_ms, None if out is None else Path(out), progress=told, **settings
        )
