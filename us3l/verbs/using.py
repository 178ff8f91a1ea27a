"""`us3l.embed`, `us3l.find` and `us3l.predict`: what one does with a network on the day after training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from us3l.run.folder import Product
from us3l.system.errors import UserError
from us3l.system.progress import Progress, Told, progress_of
from us3l.verbs.arguments import AnyRun, borrowed, check_names, run_of
from us3l.verbs.pretraining import with_weights
from us3l.width import AnyWidth, Width

if TYPE_CHECKING:
    from us3l.collection.embedding import Embedded
    from us3l.collection.finding import Finding
    from us3l.collection.predicting import Predicted
    from us3l.data.sources import Data
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
    from us3l.collection.embedding import embed_images

    check_names(embed_images, settings)
    told = progress_of(progress)
    chosen = None if width is None else Width(width)
    with borrowed(run) as place:
        model = with_weights(place, weights, told).folder
        return embed_images(
            model, data, chosen, latency_ms, None if out is None else Path(out), progress=told, **settings
        )


def find(
    index: str | Path,
    query: Data | None = None,
    *,
    run: AnyRun | None = None,
    page: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Finding:
    """The images of an embedded collection that are most like others, or near-duplicates in it.

    Args:
        index: a file that `embed` wrote.
        query: images, or another such file (default: none, near-duplicates are found).
        run: the run, or the path of its folder or of a bundle, that the file was made with, to embed images with.
        page: also write a page with pictures to this file.
        overwrite: replace an earlier page.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l find`, such as `count=5`, `at_least=0.99` or `width=0.25`.

    Returns:
        What was found: `rows` has a dictionary per image.
    """
    from us3l.collection.finding import find_images
    from us3l.reporting.picture_page import found_rows
    from us3l.reporting.picture_page import page as page_of
    from us3l.system.files import write_text

    check_names(find_images, settings)
    if page is not None:
        check_page(Path(page), overwrite)
    found = find_images(
        Path(index), query, None if run is None else run_of(run), progress=progress_of(progress), **settings
    )
    if page is not None:
        rows = found_rows(found.queries, found.query_source, found.gallery.files, found.source, found.matches)
        title = "Near-duplicates" if query is None else "Nearest images"
        intro = f"{len(found.gallery):,} images of {index}; the numbers are cosines of embeddings."
        write_text(Path(page), page_of(title, intro, rows))
    return found


def check_page(page: Path, overwrite: bool) -> None:
    """That a page can be written, before the work."""
    if page.exists() and not overwrite:
        raise UserError(f"{page} already exists: choose another `page`, or replace it with `overwrite`")
    if not page.parent.is_dir():
        raise UserError(f"{page.parent} is not a folder: the page has no place there")


def predict(
    run: AnyRun,
    data: Data,
    *,
    width: AnyWidth | None = None,
    threshold: float = 0.0,
    out: str | Path | None = None,
    page: str | Path | None = None,
    weights: Product | None = None,
    overwrite: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Predicted:
    """The class of every image, with a probability, by the classifier that `evaluate` learned.

    Args:
        run: a run that was evaluated, the path of its folder, or of a bundle with classifiers.
        data: images of any kind; see `evaluate`.
        width: of the network (default: the widest that has a classifier).
        threshold: probability below which it abstains, from 0 to 1.
        out: a csv file to write.
        page: a page with pictures to write, the least sure first.
        weights: "teacher" or "student", as in `evaluate` (default: those of the run's model).
        overwrite: replace files of these names.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l predict`, such as `coverage=True` or `head="pets"`.

    Returns:
        Classes and probabilities: `rows` has a dictionary per image; `confidence` what abstaining is worth.
    """
    from us3l.collection.predicting import predict_images
    from us3l.reporting.picture_page import page as page_of
    from us3l.reporting.picture_page import predicted_rows
    from us3l.system.files import write_text

    check_names(predict_images, settings)
    told = progress_of(progress)
    if page is not None:
        check_page(Path(page), overwrite)
    predicted = predict_images(
        with_weights(run_of(run), weights, told).folder,
        data,
        None if width is None else Width(width),
        threshold=threshold,
        out=None if out is None else Path(out),
        overwrite=overwrite,
        progress=told,
        **settings,
    )
    if page is not None:
        intro = f"{len(predicted.files):,} images at {predicted.width:g}x, the least sure first."
        write_text(
            Path(page), page_of("Classes", intro, predicted_rows(predicted.rows, predicted.source), marked=False)
        )
    return predicted
