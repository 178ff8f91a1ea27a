"""What `us3l export` does: networks of a run as proved files in one bundle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from us3l.collection.shared_space import fit_missing, space_of
from us3l.data.preprocessing import Preprocessing
from us3l.deploy.deployment_settings import ExportSettings
from us3l.deploy.evaluated import Head, classifier_heads, find_accuracy, find_heads, finetuned_head
from us3l.deploy.evidence import calibrate_rest, find_evidence
from us3l.deploy.export import Source, export
from us3l.deploy.proof import Proof
from us3l.run import Run
from us3l.run.bundles import Entry
from us3l.setting_types import several
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.width import Width


@dataclass
class Exported:
    """A bundle's folder, and the networks that were added to it, each with its proof."""

    folder: Path
    networks: list[tuple[Entry, Proof]] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        """The file of each network to open."""
        return [self.folder / next(iter(entry.files)) for entry, _ in self.networks]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each network."""
        names = ("width", "format", "int8", "head", "params", "macs", "bytes", "features")
        return [
            {"file": next(iter(entry.files))} | {name: getattr(entry, name) for name in names} | vars(proof)
            for entry, proof in self.networks
        ]


def export_run(run: Run, settings: ExportSettings, progress: Progress = SILENT) -> Exported:
    """Write networks of a run as files, each proved to be the network it came from.

    Args:
        run: A run, a model's folder, or a network in memory, for which `out` is needed.
        settings: Which networks, and as what.
        progress: Told how far it is, and after an error which networks are written nevertheless.
    """
    net, head, data, space = run.network, settings.head, settings.data, settings.space
    chosen = [net.check(width) for width in several(settings.width)]
    if space_of(space) == "shared" and head:
        raise UserError("a file gives classes or embeddings: `head` and `space='shared'` do not go together")
    heads = heads_of(run, net, chosen, head) if head else {}
    if space == "shared":
        fitted = fit_missing(run, net, chosen, data, progress)
        heads = {width: fitted[net.canonical(width)] for width in chosen}
    calibrate_rest(run, net, chosen, data, progress)
    preprocessing = Preprocessing.of(net)
    provenance = {"run": run.folder.resolve().name} | ({"data": Path(run.data).name} if run.data else {})
    source = Source(net, preprocessing.size, provenance, run.weights.weights)
    evidence = find_evidence(run, preprocessing, settings.int8, data, progress)
    done, formats = Exported(Path(settings.out or run.export_folder)), several(settings.format)
    with progress.counting("exporting", len(chosen) * len(formats)) as counting, told_after_errors(done, progress):
        for width in chosen:
            given = heads.get(width)
            accuracy = find_accuracy(run, net, width, given.data if given and given.classes else None)
            for kind in formats:
                written = export(
                    source, width, kind, done.folder, evidence, settings.int8, given, accuracy, settings.overwrite
                )
                done.networks.append(written)
                counting.more(1)
    return done


@contextmanager
def told_after_errors(done: Exported, progress: Progress) -> Iterator[None]:
    """Tell which networks are written and proved although a later one failed."""
    try:
        yield
    except BaseException:
        for file in done.files:
            progress.say(f"proved and written nevertheless: {file}")
        raise


def heads_of(run: Run, net: Slimmable, widths: Sequence[Width], name: str) -> dict[Width, Head]:
    """The classifier of each width."""
    kind, _, data = name.partition(":")
    if kind == "finetuned":
        return {width: finetuned_head(run, net, width, data or None) for width in widths}
    if kind == "classifier":
        return classifier_heads(run, net, widths)
    known = find_heads(run, net, None if name == "probe" else name)
    if missing := [width for width in widths if net.canonical(width) not in known]:
        learned_on = next(iter(known.values())).data
        raise UserError(f"{run.folder} has no classifier for width {missing[0]:g}: evaluate that width on {learned_on}")
    return {width: known[net.canonical(width)] for width in widths}
