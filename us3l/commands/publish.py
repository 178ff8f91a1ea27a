"""`us3l publish`: a model or a bundle to the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from us3l.commands.command import ModelCommand, command
from us3l.setting_types import Model, Positional

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.deploy.publishing import Published


@dataclass(frozen=True)
class Publish(ModelCommand):
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

    run: Model
    """The folder of a run, a model or a bundle."""
    name: Annotated[str, Positional("NAME")]
    """Where it goes: USER/NAME, with @BRANCH if not to the main branch."""
    _: KW_ONLY
    private: bool = False
    """Only its owner may see it. One that is public already is refused."""
    message: str = ""
    """For the commit (default: the name of the folder)."""


@command(Publish)
def publish(settings: Publish) -> Published:
    """Put a model or a bundle on the Hugging Face Hub, in one commit: all of its files or none.

    The token is the one that huggingface_hub finds: HF_TOKEN, or that of `hf auth login`.

    Returns:
        What is there: its `name`, which `us3l.load` takes, its `url` and `commit`; `rows` has a dictionary per file.
    """
    from us3l.deploy.publishing import publish_model
    from us3l.run.unsaved import in_files, run_of
    from us3l.system.progress import progress_of

    progress = progress_of(settings.progress)
    with in_files(run_of(settings.run)) as run:
        return publish_model(run, settings.name, settings.private, settings.message, progress)


def main(settings: Publish, screen: CommandScreen) -> None:
    published = publish.with_settings(settings)
    what = "published" if published.changed else "nothing has changed since it was last published"
    screen.say(f"{what}: {published.url}, commit {published.commit[:12]}; load it as {published.name}")
