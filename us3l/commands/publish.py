"""`us3l publish`"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from us3l.commands.parse import RunArgument, parse
from us3l.run.folder import Product


@dataclass(frozen=True)
class Publish:
    """Put a model or a bundle on the Hugging Face Hub, in one commit: all of its files or none.

    Of a run, its model goes there (safetensors and JSON), its card as README.md, and the classifiers and the shared
    space that belong to these weights; no settings, records or images. Afterwards hf:USER/NAME can be given wherever a
    run or a model can. The token is HF_TOKEN, or that of `hf auth login`. Needs pip install 'us3l[hub]'.

    examples:
      us3l publish runs/photos anna/photos --private
      us3l publish runs/photos/export anna/photos-onnx
      us3l publish runs/photos anna/photos@v2
      us3l embed hf:anna/photos photos/ --width 0.5 --out photos.parquet
    """

    run: RunArgument
    """The folder of a run, a model or a bundle."""
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME")]
    """Where it goes, with @BRANCH if not to the main branch."""
    private: bool = False
    """Only its owner may see it. One that is public already is refused."""
    message: str = ""
    """For the commit (default: the name of the folder)."""
    weights: Product | None = None
    """Which weights: "student" or "teacher" (default: those of the run's model). See us3l evaluate."""


def main(arguments: list[str]) -> None:
    command = parse(Publish, "publish", arguments)
    from us3l.commands.screen import CommandScreen
    from us3l.verbs import publish

    screen = CommandScreen()
    published = publish(**vars(command), progress=screen)
    what = "published" if published.changed else "nothing has changed since it was last published"
    screen.say(f"{what}: {published.url}, commit {published.commit[:12]}; load it as {published.name}")
