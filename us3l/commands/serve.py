"""`us3l serve`: answers over HTTP, at the width that keeps the latency."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from us3l.commands.command import ModelCommand, command
from us3l.deploy.deployment_settings import Backend, SpaceName
from us3l.serving.settings import ServiceSettings
from us3l.setting_types import AnyPath, Model
from us3l.system.devices import usable_cores
from us3l.system.errors import UserError

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.serving.server import Listening

PACKAGES = ("starlette", "uvicorn", "h11", "python_multipart", "prometheus_client")


@dataclass(frozen=True)
class Serve(ServiceSettings, ModelCommand):
    """Answer requests over HTTP: features and classes of images, at the width that keeps the latency.

    Open the address that it prints in a browser to try it and to watch it. POST /embed and /predict take images; a
    request may name its width or its time (?width=0.5, ?latency_ms=20), else the width follows the load. What cannot be
    answered in time is refused at once. SIGHUP loads the model again; Ctrl-C or SIGTERM answers what was accepted, and
    ends. Needs pip install 'us3l[serve]', and 'us3l[deploy]' for the backends onnx and openvino.

    examples:
      us3l serve runs/photos
      us3l serve runs/photos --backend onnx --target-ms 20
      us3l serve bundle/ --host 0.0.0.0 --port 80 --token-file secret.txt
    """

    run: Model
    """The folder of a run, a model or a bundle."""
    _: KW_ONLY
    backend: Literal["auto"] | Backend = "auto"
    """What computes; onnx and openvino need exported files."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines connect."""
    port: int = 8000
    """0 takes one that is free."""
    token_file: AnyPath | None = None
    """A file with a token that clients must send as "Authorization: Bearer TOKEN"."""
    workers: int = field(default_factory=usable_cores)
    """Threads that compute, each on images of its own (default: one for each processor)."""
    threads: int | None = None
    """Processors that compute one image together (default: all with ONNX Runtime, else one)."""
    int8: bool | None = None
    """Choose between the files of a bundle that has both."""
    head: str | None = None
    """The classifier, by the name of its data, if there are several."""
    space: SpaceName = "own"
    """"shared" for features that can be compared across widths: see us3l embed --space."""
    log_requests: bool = False
    """A line for each request, on standard error; never what is in it."""


@command(Serve)
def serve(settings: Serve) -> Listening:
    """Return a service that listens, and answers as soon as its `run` is called."""
    import logging

    from us3l.run.unsaved import run_of
    from us3l.system.files import read_bytes
    from us3l.system.optional import need

    for package in PACKAGES:
        need(package)
    from us3l.serving.model import ServedModel, usual_threads
    from us3l.serving.server import Listening
    from us3l.serving.service import Service

    logging.getLogger("us3l.serving.requests").setLevel(logging.INFO if settings.log_requests else logging.WARNING)
    folder = run_of(settings.run).folder
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give that of a run, a model or a bundle")
    if settings.token_file is not None:
        token = read_bytes(Path(settings.token_file)).decode(errors="replace").strip()
        settings = replace(settings, token=token)
    threads = settings.threads or usual_threads(folder, settings.backend)

    def load() -> ServedModel:
        return ServedModel(folder, settings, settings.backend, threads, settings.int8, settings.head, settings.space)

    return Listening(Service(load, settings), settings.host, settings.port)


def main(settings: Serve, screen: CommandScreen) -> None:
    import logging

    logging.basicConfig(format="%(asctime)s us3l: %(message)s", level=logging.WARNING)
    service = serve.with_settings(settings)
    if several := unchosen(settings):
        screen.say(
            f"no classes, only features: {settings.run} has classifiers for {', '.join(several)}; choose one, "
            f"`head={several[0]!r}`",
            style="yellow",
        )
    screen.say(f"measuring the widths of {settings.run}")
    service.run(lambda: screen.say(f"serving on {service.address}; Ctrl-C ends it"))
    screen.say("all that was accepted is answered")


def unchosen(settings: Serve) -> list[str]:
    """Return the names of the classifiers if there are several, and none was chosen."""
    from us3l.run.linear_maps import list_probes
    from us3l.run.unsaved import run_of

    names = list_probes(run_of(settings.run)) if settings.head is None else []
    return names if len(names) > 1 else []
