"""What `us3l publish` does: a model or a bundle, with its card, to the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from us3l.hub import CARD, HEADS, NEEDED, HubName, Upload, upload
from us3l.run import Run
from us3l.run.bundles import MANIFEST, read_bundle
from us3l.run.cards import MARK, bundle_card, model_card, own_card
from us3l.run.linear_maps import list_probes, probes_file, read_probes, read_space
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress


@dataclass(frozen=True)
class Published:
    """A model that is on the Hub."""

    name: str
    """As it can be given in the place of a folder: "hf:USER/NAME"."""
    url: str
    commit: str
    changed: bool
    """Whether anything of it was new there."""
    sizes: dict[str, int]
    """Bytes of each file."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each file."""
        return [{"file": file, "bytes": size} for file, size in self.sizes.items()]


def publish_model(
    run: Run, name: str, private: bool = False, message: str = "", progress: Progress = SILENT
) -> Published:
    """Put a run's model, or a bundle, on the Hub. Everything is read and checked before.

    Args:
        run: the run, or the folder of a model or of a bundle.
        name: USER/NAME, with @BRANCH if it should not go to the main branch.
        private: only its owner may see it; one that is public already is refused.
        message: for the commit.
        progress: told what is sent.
    """
    place = HubName.parse(name.removeprefix("hf:"))
    bundle = (run.folder / MANIFEST).is_file()
    files = bundle_files(run.folder, str(place)) if bundle else model_files(run, str(place))
    sizes = {
        file: len(content) if isinstance(content, bytes) else content.stat().st_size for file, content in files.items()
    }
    progress.say(f"publishing {len(files)} files of {sum(sizes.values()) / 1e6:.1f} MB as {place}")
    done: Upload = upload(place, files, private, message or f"us3l: {run.folder.resolve().name}", MARK)
    return Published(str(place), done.url, done.commit, done.changed, sizes)


def model_files(run: Run, place: str) -> dict[str, Path | bytes]:
    """The files of a model by their names on the Hub, where all lie beside the model: heads, classifiers, the space."""
    network = run.network  # reads all of it
    if not network.calibrated(1.0):
        raise UserError(f"{run.model} is not calibrated, so nobody could use it: us3l.calibrate and save it again")
    files: dict[str, Path | bytes] = {file: run.model / file for file in NEEDED}
    read_space(run)  # of these weights, or an error
    heads = {path.name: path for path in (run.projector, run.classifier, run.space) if path.is_file()}
    assert heads.keys() <= {*HEADS}
    for data in list_probes(run):
        read_probes(run, data)
        path = probes_file(run, data)
        heads[f"eval/{path.name}"] = path
    card = own_card(run.model) or model_card(run, place)
    return {CARD: card.encode(), **files, **heads}


def bundle_files(folder: Path, place: str) -> dict[str, Path | bytes]:
    """The files of a bundle, each as its manifest says."""
    bundle = read_bundle(folder)
    card = own_card(folder) or bundle_card(bundle, place)
    names = [MANIFEST, *bundle.others, *(name for entry in bundle.entries for name in entry.files)]
    return {CARD: card.encode(), **{name: folder / name for name in names}}
