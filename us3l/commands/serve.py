"""`us3l serve`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from us3l.commands.parse import RunArgument, parse
from us3l.serving.settings import ServiceSettings
from us3l.width import Width


@dataclass(frozen=True)
class Serve:
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

    run: RunArgument
    """The folder of a run, a model or a bundle."""
    backend: Literal["auto", "torch", "onnx", "openvino"] = "auto"
    """What computes; onnx and openvino need exported files."""
    target_ms: float = 50.0
    """What 95 % of the requests should take at most, per image."""
    width: Width | None = None
    """Always this one, instead of the width that keeps the target."""
    deadline_ms: float = 1000.0
    """Nothing waits longer than this, per image."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines connect."""
    port: int = 8000
    """0 takes one that is free."""
    token_file: Path | None = None
    """A file with a token that clients must send as "Authorization: Bearer TOKEN"."""
    workers: int | None = None
    """Threads that compute, each on images of its own (default: one for each processor)."""
    threads: int | None = None
    """Processors that compute one image together (default: all with ONNX Runtime, else one)."""
    batch_size: int = 8
    """Images of several requests computed at once, if that does not change a bit of the answers."""
    gather_ms: float = 2.0
    """How long an image waits for others that are being received."""
    queue: int = 256
    """Images that may wait."""
    max_images: int = 64
    """Images in a request."""
    max_body_mb: float = 32.0
    """Size of a request."""
    max_megapixels: float = 40.0
    """Size of an image."""
    int8: bool | None = None
    """Choose between the files of a bundle that has both."""
    head: str | None = None
    """The classifier, by the name of its data, if there are several."""
    space: Literal["own", "shared"] = "own"
    """"shared" for features that can be compared across widths: see us3l embed --space."""
    log_requests: bool = False
    """A line for each request, on standard error; never what is in it."""


def main(arguments: list[str]) -> None:
    command = parse(Serve, "serve", arguments)
    import logging

    from us3l.commands.screen import CommandScreen
    from us3l.serving.start import listening, processors

    logging.basicConfig(format="%(asctime)s us3l: %(message)s", level=logging.WARNING)
    logging.getLogger("us3l.serving.requests").setLevel(logging.INFO if command.log_requests else logging.WARNING)
    given = vars(command) | {"workers": command.workers or processors()}
    settings = ServiceSettings(**{name: given[name] for name in vars(ServiceSettings()) if name in given})
    names = ("backend", "threads", "int8", "head", "space", "host", "port", "token_file")
    service = listening(command.run, settings, **{name: given[name] for name in names})
    screen = CommandScreen()
    screen.say(f"measuring the widths of {command.run}")
    service.run(lambda: screen.say(f"serving on {service.address}; Ctrl-C ends it"))
    screen.say("all that was accepted is answered")
