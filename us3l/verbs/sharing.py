"""`us3l.publish`: a model to the Hugging Face Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from us3l.run.folder import Product
from us3l.system.progress import Progress, Told, progress_of
from us3l.verbs.arguments import AnyRun, borrowed
from us3l.verbs.pretraining import with_weights

if TYPE_CHECKING:
    from us3l.deploy.publishing import Published
    from us3l.slimmable import Slimmable


def publish(
    run: AnyRun | Slimmable,
    name: str,
    *,
    private: bool = False,
    message: str = "",
    weights: Product | None = None,
    progress: Progress | Told | None = None,
) -> Published:
    """Put a model or a bundle on the Hugging Face Hub, in one commit: all of its files or none.

    The token is the one that huggingface_hub finds: HF_TOKEN, or that of `hf auth login`.

    Args:
        run: a run, the path of its folder, of a model or of a bundle, or a network.
        name: USER/NAME, or USER/NAME@BRANCH. It is made if it does not exist.
        private: only its owner may see it. One that is public already is refused.
        message: for the commit (default: the name of the folder).
        weights: "teacher" or "student", as in `evaluate` (default: those of the run's model).
        progress: "silent" (the default), "lines", "live", or an object of your own.

    Returns:
        What is there: its `name`, which `us3l.load` takes, its `url` and `commit`; `rows` has a dictionary per file.
    """
    from us3l.deploy.publishing import publish_model

    told = progress_of(progress)
    with borrowed(run) as place:
        return publish_model(with_weights(place, weights, told), name, private, message, told)
