"""Models on the Hugging Face Hub: `hf:USER/NAME`, with `@REVISION` if need be, wherever a model's folder may be given.

A model is fetched into a folder of its own, whole or not at all, and is then read as any folder is: no code in it runs.
Only the files that a model or a bundle of ours has are fetched. huggingface_hub, an optional package, is imported when
it is first needed, and reports nothing; it finds the token, the address and the cache folder by its usual settings.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from us3l.builtin import NAME as BUILTIN
from us3l.builtin import builtin_folder
from us3l.description import NAME, read_description
from us3l.system.errors import Caution, UserError
from us3l.system.files import LARGEST_TEXT, checksum, locked, read_bytes, write_text
from us3l.system.optional import missing

if TYPE_CHECKING:
    from torch import nn

    from us3l.families.family import Family
    from us3l.slimmable import Slimmable

PREFIXES = ("hf:", "hf-hub:")  # the second is timm's
CARD = "README.md"
MANIFEST = "manifest.json"  # of a bundle
NEEDED = (NAME, "weights.safetensors", "statistics.safetensors")
HEADS = ("projector.safetensors", "classifier.safetensors", "space.safetensors")
PROBES = re.compile(r"eval/[A-Za-z0-9_][\w.\-]*\.probes\.safetensors", re.ASCII)
EXPORTED = re.compile(r"[A-Za-z0-9_][\w.\-]*\.(onnx|xml|bin|pt2|pte|safetensors|py|html|js|png)", re.ASCII)
LARGEST = 4 * 2**30  # bytes of all files of a model
MOST_FILES = 1000
PATIENCE = 600.0  # seconds to wait for another process that fetches the same model
SECONDS = 20.0  # that the Hub has to answer


@dataclass(frozen=True)
class HubName:
    """A model on the Hub.

    >>> str(HubName.of("hf:anna/birds@v2")), HubName.of("runs/birds")
    ('hf:anna/birds@v2', None)
    """

    user: str
    name: str
    revision: str | None = None
    """A branch, a tag or a commit; None is the main branch."""

    @property
    def id(self) -> str:
        return f"{self.user}/{self.name}"

    def __str__(self) -> str:
        return f"hf:{self.id}" + (f"@{self.revision}" if self.revision else "")

    @classmethod
    def of(cls, path: object) -> HubName | None:
        """Return what a path names, if it begins as names on the Hub do."""
        text = str(path)
        prefix = next((prefix for prefix in PREFIXES if text.startswith(prefix)), None)
        return None if prefix is None else cls.parse(text.removeprefix(prefix))

    @classmethod
    def parse(cls, text: str) -> HubName:
        """Return the model that USER/NAME or USER/NAME@REVISION names."""
        part = r"[A-Za-z0-9_](?:[\w.\-]{0,94}[A-Za-z0-9_])?"
        match = re.fullmatch(rf"({part})/({part})(?:@([^\s@]{{1,200}}))?", text, re.ASCII)
        if match is None or ".." in text or "--" in f"{match[1]}{match[2]}":
            raise UserError(f"{text!r:.200} does not name a model on the Hub: write USER/NAME or USER/NAME@REVISION")
        return cls(*match.groups())


def local_folder(path: str | Path) -> Path:
    """Return the folder that a path leads to: that of a model on the Hub, which is fetched unless it was before; that
    of the built-in network; or the path itself.
    """
    if str(path) == BUILTIN:
        return builtin_folder()
    name = HubName.of(path)
    return Path(path) if name is None else fetch(name)


def load(path: str | Path, family: Family | Callable[[Any], nn.Module] | None = None) -> Slimmable:
    """Read a model's folder, or fetch it from the Hugging Face Hub first. No code in it is run.

    Statistics that do not belong to the weights beside them are kept, and refused when used: see `Slimmable`.

    Args:
        path: The folder of a model, or that of a run; "hf:USER/NAME" is one on the Hub, "builtin" the one in the box.
        family: What the network was made of, if that was a function of the user's own.

    Returns:
        The network as it was saved, on the CPU.
    """
    from us3l import storage

    return storage.load(local_folder(path), family)


def fetch(name: HubName) -> Path:
    """Return a folder with a model or a bundle of the Hub, as it is there now.

    Without a connection it is the one that was fetched last, with a caution.

    Raises:
        UserError: There is none, it may not be read, or it is not one of ours.
    """
    library = hub(f"{name}")
    home = Path(library.constants.HF_HOME) / "us3l" / f"{name.user}--{name.name}"
    note = home / "revisions" / quote(name.revision or "main", safe="")
    exact = home / (name.revision or "")
    if re.fullmatch("[0-9a-f]{40}", name.revision or "") and exact.is_dir():
        return exact
    try:
        with explained(library, name):
            info = client(library).model_info(name.id, revision=name.revision, timeout=SECONDS, files_metadata=True)
    except Unreachable as error:
        folder = home / read_bytes(note, 100).decode(errors="replace") if note.is_file() else home
        if folder == home or not folder.is_dir():
            raise
        warnings.warn(f"{error}; the copy that was fetched earlier is used", Caution, stacklevel=3)
        return folder
    if not re.fullmatch("[0-9a-f]{40}", info.sha or ""):
        raise UserError(f"{name}: the Hub does not say which commit it is")
    files = wanted(name, {file.rfilename: file for file in info.siblings or ()})
    folder = home / str(info.sha)
    if not folder.is_dir():
        with alone(home / f"{info.sha}.part") as part:
            if not folder.is_dir():
                download(library, name, files, part, str(info.sha))
                part.rename(folder)
    write_text(note, str(info.sha))
    return folder


def wanted(name: HubName, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return, of all files there, those that a model or a bundle of ours has."""
    if not files.keys() & {NAME, MANIFEST}:
        raise UserError(f"{name} is not a model of us3l: there is no {NAME} in it, and no {MANIFEST}")
    if missing := [file for file in NEEDED if NAME in files and file not in files]:
        raise UserError(f"{name} is not whole: there is no {missing[0]} in it")
    chosen = {file: about for file, about in files.items() if ours(file, NAME in files)}
    sizes = {file: about.size for file, about in chosen.items()}
    if unknown := [file for file, size in sizes.items() if not isinstance(size, int) or size < 0]:
        raise UserError(f"{name}: the Hub does not say how large {unknown[0]} is")
    if long := [file for file, size in sizes.items() if file.endswith((".json", ".md")) and size > LARGEST_TEXT]:
        raise UserError(f"{name} is not a model of us3l: {long[0]} is larger than {LARGEST_TEXT / 2**20:g} MiB")
    if sum(sizes.values()) > LARGEST or len(sizes) > MOST_FILES:
        raise UserError(
            f"{name} is larger than a model of us3l can be: {len(sizes)} files of {sum(sizes.values()) / 2**30:.1f} GiB"
        )
    return chosen


def ours(file: str, model: bool) -> bool:
    """Return whether a file is one that models, or else bundles, have."""
    if model:
        return file in (*NEEDED, *HEADS, CARD) or PROBES.fullmatch(file) is not None
    return file in (MANIFEST, CARD) or EXPORTED.fullmatch(file) is not None


def download(library: Any, name: HubName, files: Mapping[str, Any], part: Path, commit: str) -> None:
    """Put files into a folder, and check that they are what the Hub says they are."""
    api = client(library)
    with explained(library, name), quiet(library):
        for file in files:
            api.hf_hub_download(name.id, file, revision=commit, local_dir=part)
    try:
        for file, about in files.items():
            path, lfs = part / file, getattr(about, "lfs", None)
            if path.stat().st_size != about.size or (lfs and checksum(path) != lfs.sha256):
                raise UserError(f"{name}: {file} did not arrive as it is on the Hub: try again")
        if NAME in files:
            read_description(part)
    except UserError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(part / ".cache", ignore_errors=True)  # huggingface_hub's notes


@contextmanager
def alone(part: Path) -> Iterator[Path]:
    """Keep other processes out of a folder; wait for one that is in it."""
    with locked(part, PATIENCE):
        yield part
        for folder in (part, part.with_suffix("")):  # wherever the lock's file is now
            (folder / ".lock").unlink(missing_ok=True)
        with suppress(OSError):
            part.rmdir()


@dataclass(frozen=True)
class Upload:
    """What the Hub has after a model was put there."""

    url: str
    commit: str
    changed: bool
    """Whether anything was new."""


def upload(name: HubName, files: Mapping[str, Path | bytes], private: bool, message: str, mark: str) -> Upload:
    """Put a model on the Hub, in one commit: all of its files or none.

    Files of a model that was there before are removed if the new one does not have them. Other files stay.

    Args:
        name: Where. It is made if there is nothing; a revision is a branch.
        files: Their contents, by their names there.
        private: Make it so that only its owner sees it. What is public already is refused.
        message: For the commit.
        mark: A line of cards that us3l wrote. One on the Hub without it was edited by somebody, and stays.
    """
    library = hub(f"publishing {name}")
    api, place = client(library), name.revision or "main"
    add, remove = library.CommitOperationAdd, library.CommitOperationDelete
    with explained(library, name, writing=True), quiet(library):
        api.create_repo(name.id, private=private or None, exist_ok=True)
        if private and not api.model_info(name.id, timeout=SECONDS).private:
            raise UserError(f"{name.id} is there already, and everybody can see it: make it private on its page first")
        if name.revision is not None:
            api.create_branch(name.id, branch=place, exist_ok=True)
        before = api.model_info(name.id, revision=place, timeout=SECONDS)
        there = {file.rfilename for file in before.siblings or ()}
        kept = set[str]()
        if CARD in there:
            with TemporaryDirectory() as folder:
                card = read_bytes(Path(api.hf_hub_download(name.id, CARD, revision=before.sha, local_dir=folder)))
            kept = set() if mark.encode() in card else {CARD}
        marks = there & {NAME, MANIFEST}
        old = marks | {file for file in there if marks and ours(file, NAME in marks)}
        operations = [add(file, content) for file, content in files.items() if file not in kept]
        operations += [remove(file) for file in sorted(old - {CARD, *files})]
        done = api.create_commit(name.id, operations, commit_message=message, revision=place)
    return Upload(f"{api.endpoint}/{name.id}", done.oid, done.oid != before.sha)


def hub(reason: str) -> Any:
    """Return the package huggingface_hub, which reports nothing then, unless HF_HUB_DISABLE_TELEMETRY is "0"."""
    silent = silence()
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise missing("huggingface_hub", reason) from None
    if silent:  # another library may have imported it before
        huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    return huggingface_hub


def silence() -> bool:
    """Return whether huggingface_hub, if it is imported from now on, reports nothing."""
    return os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1") == "1"


def client(library: Any) -> Any:
    from us3l import __version__

    return library.HfApi(library_name="us3l", library_version=__version__)


class Unreachable(UserError):
    """The Hub does not answer, or may not be asked."""


@contextmanager
def explained(library: Any, name: HubName, writing: bool = False) -> Iterator[None]:
    """Turn errors of huggingface_hub into one line each; those of the disk stay."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        message = explanation(library, name, error, writing)
        if message is None:
            raise
        raise message from None


def explanation(library: Any, name: HubName, error: BaseException, writing: bool) -> UserError | None:
    """Return what to say about an error; None if it has nothing to do with the Hub."""
    errors, place = library.errors, library.constants.ENDPOINT
    log_in = "set HF_TOKEN, or log in with `hf auth login`"
    reason = (getattr(error, "server_message", None) or str(error) or type(error).__name__).splitlines()[0][:200]
    if isinstance(error, errors.GatedRepoError):
        return UserError(f"{name} is open only to those who were granted access: ask on its page, then {log_in}")
    if isinstance(error, errors.RevisionNotFoundError):
        return UserError(f"{name.id} has no revision {name.revision or 'main'!r}: its page lists those it has")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return Unreachable(f"{name} is on the Hub, and HF_HUB_OFFLINE forbids connections: unset it, or give a folder")
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if writing and status in (401, 403, 404):
            return UserError(f"you may not publish {name.id}: {log_in}, with a token that may write there")
        if status in (401, 403, 404):
            return UserError(f"there is no model {name.id} on {place}, or you may not see it: check it, or {log_in}")
        kind = Unreachable if status >= 500 or status == 429 else UserError
        return kind(f"{name}: {place} answers with error {status} ({reason}): try again later")
    if isinstance(error, errors.HTTPError | errors.LocalEntryNotFoundError):  # no connection, or none that lasts
        return Unreachable(f"{name}: {place} cannot be reached ({reason}): connect, or give a folder")
    if isinstance(error, errors.HFValidationError):
        return UserError(f"{name}: {reason}")
    if isinstance(error, RuntimeError | ValueError):  # the sending of one file
        cause = None if error.__cause__ is None else explanation(library, name, error.__cause__, writing)
        return cause or UserError(f"{name} could not be sent ({reason}): try again; nothing of it was published")
    return None


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Show bars of huggingface_hub on a terminal only, and none of its remarks."""
    logs, utils = library.utils.logging, library.utils
    before, hide = logs.get_verbosity(), not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    logs.set_verbosity_error()
    if hide:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        logs.set_verbosity(before)
        if hide:
            utils.enable_progress_bars()
