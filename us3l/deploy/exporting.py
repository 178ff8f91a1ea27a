"""What `us3l export` does: networks of a run as proved files in one bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from us3l.collection.shared_space import SpaceName, fit_missing, space_of
from us3l.data.preprocessing import Preprocessing
from us3l.deploy.evaluated import Head, classifier_heads, find_accuracy, find_heads, finetuned_head
from us3l.deploy.evidence import calibrate_rest, find_evidence
from us3l.deploy.export import Source, export
from us3l.deploy.proof import Proof
from us3l.run import Run
from us3l.run.bundles import Entry, Format
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.width import AnyWidth, Width


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


def export_run(
    run: Run,
    widths: Sequence[AnyWidth],
    formats: Sequence[Format] = ("torch",),
    int8: bool = False,
    head: str | None = None,
    data: str | None = None,
    space: SpaceName = "own",
    out: Path | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
    exported: Exported | None = None,
) -> Exported:
    """Write networks of a run as files, each proved to be the network it came from.

    Args:
        run: a run's folder, or a model's.
        widths: one or several.
        formats: kinds of files.
        int8: quantise to INT8 (ONNX and OpenVINO).
        head: add the classifier that evaluation learned: "probe", or the name of the data if there are several;
            "finetuned" takes the network that fine-tuning made, with "finetuned:NAME" if there are several;
            "classifier" adds the one that the run was trained with, at any width.
        space: "shared" writes encoders whose features can be compared across widths.
        data: images to calibrate INT8 and to prove the files on (default: those of the training).
        out: folder for the files (default: export/ in the run's folder); an earlier bundle there is added to.
        overwrite: replace files of the same name.
        progress: what to tell while it works.
        exported: where to note each network as it is done, for those who want to know of them after an error.

    Returns:
        What was written.
    """
    net = run.network
    chosen = [net.check(width) for width in widths]
    if space_of(space) == "shared" and head:
        raise UserError("a file gives classes or embeddings: `head` and `space='shared'` do not go together")
    heads = heads_of(run, net, chosen, head) if head else {}
    if space == "shared":
        fitted = fit_missing(run, net, chosen, data, progress)
        heads = {width: fitted[net.canonical(width)] for width in chosen}
    calibrate_rest(run, net, chosen, data, progress)
    preprocessing = Preprocessing.of(net)
    provenance = {"run": run.origin.folder.resolve().name} | ({"data": Path(run.data).name} if run.data else {})
    if run.product == "teacher":
        provenance["product"] = "teacher"
    source = Source(net, preprocessing.size, provenance, run.weights.weights)
    evidence = find_evidence(run, preprocessing, int8, data, progress)
    done = exported or Exported(Path())
    done.folder = out or run.export_folder
    with progress.counting("exporting", len(chosen) * len(formats)) as counting:
        for width in chosen:
            given = heads.get(width)
            accuracy = find_accuracy(run, net, width, given.data if given and given.classes else None)
            for kind in formats:
                done.networks.append(
                    export(source, width, kind, done.folder, evidence, int8, given, accuracy, overwrite)
                )
                counting.more(1)
    return done


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
