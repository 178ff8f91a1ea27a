"""What `us3l export` does: networks of a run as files in one bundle, each proved before it is added."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from us3l import __version__
from us3l.collection.shared_space import fit_missing, space_of
from us3l.costs import cost
from us3l.data.preprocessing import Preprocessing
from us3l.deploy import example
from us3l.deploy.accuracies import find_accuracy
from us3l.deploy.classifiers import Head, heads_of
from us3l.deploy.deployment_settings import ExportSettings
from us3l.deploy.formats import KEY, KINDS
from us3l.deploy.proof import Evidence, Proof, find_evidence, outputs_of, prove_float, prove_int8, prove_size
from us3l.evaluation.prepare import calibrate_left_out
from us3l.run import Run
from us3l.run.bundles import (
    MANIFEST,
    SHARED,
    Bundle,
    Entry,
    Format,
    add_entry,
    check_same_model,
    encode_floats,
    read_bundle,
)
from us3l.runtime.backends import Forward
from us3l.setting_types import several
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.files import as_plain, checksum, replacing
from us3l.system.progress import SILENT, Progress
from us3l.width import Width

HERE = Path(__file__).parent
COMPANIONS = {name: HERE / name for name in ("example.py", "benchmark.py", "check.png")}
"""Files that go along with those of a bundle: scripts, complete in themselves, and an image to check a device by."""
BROWSER = {name: HERE / name for name in ("browser.html", "browser.js")}
"""A page that runs ONNX files."""


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
    calibrate_left_out(run, net, chosen, data, progress)
    preprocessing = Preprocessing.of(net)
    provenance = {"run": run.folder.resolve().name} | ({"data": Path(run.data).name} if run.data else {})
    source = Source(net, preprocessing.size, provenance, run.weights.weights)
    learned = {head.data for head in heads.values()} & run.evaluations.keys() if head else set[str]()
    evidence = find_evidence(run, preprocessing, settings.int8, data, next(iter(learned), None), progress)
    done, formats = Exported(Path(settings.out or run.export_folder)), several(settings.format)
    with progress.counting("exporting", len(chosen) * len(formats)) as counting, told_after_errors(done, progress):
        for width in chosen:
            layer = heads.get(width)
            accuracy = find_accuracy(run, net, width, layer.data if layer and layer.classes else None)
            for kind in formats:
                written = export_network(
                    source, width, kind, done.folder, evidence, settings.int8, layer, accuracy, settings.overwrite
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


@dataclass(frozen=True)
class Source:
    """Where a network comes from and what is known about it."""

    net: Slimmable
    size: int
    """Side of its images."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Plain values that go into the files, such as the names of the run and its data."""
    weights: str | None = None
    """The sha256 of the model's weights, as its bundle keeps it."""

    @property
    def name(self) -> str:
        return self.net.family.name

    @property
    def preprocessing(self) -> Preprocessing:
        """How images become the network's input."""
        return Preprocessing.of(self.net, self.size)


def export_network(
    source: Source,
    width: Width,
    kind: Format,
    folder: Path,
    evidence: Evidence,
    int8: bool = False,
    head: Head | None = None,
    accuracy: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> tuple[Entry, Proof]:
    """Write the network of one width in one format, prove it, and only then add it to the bundle in the folder.

    "torch" is a program of torch.export, "safetensors" the plain network's state dict; see `us3l.deploy.formats`.

    Args:
        source: The slimmable network, and what files say about where it came from.
        width: Of the network to write.
        kind: The format.
        folder: Of the bundle.
        evidence: Images to prove the file on, and to calibrate INT8.
        int8: Quantise it.
        head: A classifier to add, or a map into the space that all widths share.
        accuracy: What evaluation found of the float network, for the manifest.
        overwrite: Replace files of the same name.

    Returns:
        The network's entry in the manifest, and its proof.

    Raises:
        UserError: The proof failed, or the network cannot be written; then nothing is left behind.
    """
    net = source.net
    label = head.name if head else None
    stem = "-".join([source.name, f"{width:g}x", *([label] if label else []), *(["int8"] if int8 else [])])
    names = [stem + suffix for suffix in KINDS[kind].suffixes]
    check(source, width, kind, folder, evidence, int8, names, overwrite)
    network = (head.encoder(width, net.carve) if head else net.carve(width)).cpu()
    price = cost(network, (3, source.size, source.size))
    features = outputs_of(network, evidence.test[:1]).shape[1]
    if head:
        if head.probe.weight.shape[1] != features:
            raise UserError(f"the classifier for {head.data} does not fit width {width:g}: evaluate this run again")
        network = head.on(network)
    about = {
        KEY: __version__,
        "width": width,
        "int8": int8,
        **net.family.describe(),
        **net.metadata,
        "preprocessing": source.preprocessing.to_plain(),
        **source.provenance,
        **({"classes": head.classes, "head": head.data} if head and head.classes else {}),
        **({"space": SHARED} if label == SHARED else {}),
    }
    with staging(folder) as temporary:
        files = write(
            network,
            kind,
            source.size,
            temporary / names[0],
            about,
            evidence.train if int8 else None,
            net.family.transformer,
        )
        compute = read_back(files[0], reader(net, width, head) if kind == "safetensors" else None)
        classes = head.classes if head else None
        proof = prove_int8(network, compute, evidence, classes) if int8 else prove_float(network, compute, evidence)
        prove_size(network, files[-1], KINDS[kind].graph, int8)
        reference = compute(example.preprocess(COMPANIONS["check.png"], about))[0].tolist()
        if not all(map(math.isfinite, reference)):
            raise UserError(f"at width {width:g} the network or its classifier gives infinities or not-a-numbers")
        entry = Entry(
            width,
            kind,
            int8,
            {file.name: checksum(file) for file in files},
            params=price.params,
            macs=price.macs,
            bytes=sum(file.stat().st_size for file in files),
            features=len(head.probe.bias) if head else features,
            accuracy=None if int8 else accuracy,
            classes=classes,
            head=label,
            threshold=head.probe.threshold if head else None,
            weights=source.weights,
            reference=encode_floats(reference),
        )
        for file in files:
            os.replace(file, folder / file.name)
    add_entry(Bundle(folder, source.name, source.preprocessing, [entry], place_companions(folder, kind)))
    return entry, proof


def convert(network: nn.Module, kind: Format, size: int, stem: Path) -> Path:
    """Write any plain network, unproved, to the file that `stem` and the format's ending name."""
    return write(network, kind, size, stem.with_name(stem.name + KINDS[kind].suffixes[0]), {})[0]


def write(
    network: nn.Module,
    kind: Format,
    size: int,
    path: Path,
    about: dict[str, Any],
    calibration: Tensor | None = None,
    transformer: bool = False,
) -> list[Path]:
    """The files written, the one to open first; in INT8 if there are images to calibrate on."""
    chosen, text = KINDS[kind], json.dumps(about, default=as_plain)
    if calibration is None:
        chosen.write(network, size, path, text)
    else:
        assert chosen.write_int8 is not None
        chosen.write_int8(network, size, path, text, calibration, transformer)
    return [path.with_name(path.name.removesuffix(chosen.suffixes[0]) + suffix) for suffix in chosen.suffixes]


def reader(net: Slimmable, width: Width, head: Head | None) -> Any:
    """A function like those of `example`, for state dicts, which cannot be run without their network."""

    def open_state(path: Path) -> tuple[dict[str, Any], Forward]:
        network = net.blank(width)
        if head:
            network = head.on(network if head.beside is None else head.encoder(width, net.blank))
        network.load_state_dict(load_file(path))
        network.eval().requires_grad_(False)
        return {}, lambda images: network(torch.from_numpy(images)).numpy()

    return open_state


def read_back(path: Path, opener: Any) -> Forward:
    """The network in a file that was just written, by the example's own code unless there is another opener."""
    try:
        return (opener or example.OPENERS[path.suffix])(path)[1]
    except RuntimeError as error:  # OpenVINO does not tell when it cannot write
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"{path.name} cannot be read back: is the disk full? ({reason:.200})") from None


def check(
    source: Source,
    width: Width,
    kind: Format,
    folder: Path,
    evidence: Evidence,
    int8: bool,
    names: list[str],
    overwrite: bool,
) -> None:
    """Refuse an export that cannot succeed, before any work is done."""
    if not source.net.calibrated(width):
        raise UserError(f"width {width:g} is not calibrated: call us3l.calibrate(net, images) and save the model again")
    if int8 and KINDS[kind].write_int8 is None:
        able = " and ".join(name for name, known in KINDS.items() if known.write_int8)
        raise UserError(f"there is no INT8 for format={kind!r}: choose {able}")
    if int8 and evidence.name is None:
        raise UserError("INT8 is calibrated on images, and there are none: name some by `data`")
    for name in names:
        if (folder / name).exists() and not overwrite:
            raise UserError(f"{folder / name} already exists: move it, or export with `overwrite`")
    if (folder / MANIFEST).exists():
        there = read_bundle(folder, check=False)
        check_same_model(there, source.name, source.preprocessing, {source.weights})


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A place inside the folder for files that may yet fail; what is left in it goes, and so does a folder made new."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(prefix=".export-", dir=folder) as temporary:
            yield Path(temporary)
    except BaseException as error:
        if made:
            folder.rmdir()
        if isinstance(error, OSError):  # disk full, not allowed
            raise UserError(f"cannot write to {folder}: {error.strerror or error}; nothing was exported") from None
        raise


def place_companions(folder: Path, kind: Format) -> dict[str, str]:
    """Put the scripts beside the files, with an ONNX file the page too; names and checksums, for the manifest.

    One that us3l did not write, or that was edited, stays as it is, and the manifest does not name it.
    """
    written = read_bundle(folder, check=False).others if (folder / MANIFEST).exists() else {}
    placed = {}
    for name, source in (COMPANIONS | BROWSER).items():
        path, ours = folder / name, checksum(source)
        if not path.exists() and name in BROWSER and kind != "onnx":
            continue
        if not path.exists() or checksum(path) == written.get(name):
            with replacing(path) as temporary:
                shutil.copyfile(source, temporary)
        if checksum(path) == ours:
            placed[name] = ours
    return placed
