"""What a service is allowed to do, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from us3l.setting_types import PYTHON_ONLY
from us3l.system.errors import UserError
from us3l.width import Width


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """How a service keeps its latency, and what it accepts. All times are per image of a request."""

    target_ms: float = 50.0
    """What 95 % of the requests should take at most. Requests that name no width get one that keeps to it."""
    width: Width | None = None
    """Give such requests this width instead, whatever the load."""
    deadline_ms: float = 1000.0
    """Requests that would wait longer are refused, and so are those that named a width and would take longer."""
    workers: int = 1
    """Threads that compute, each on images of its own."""
    batch_size: int = 8
    """Images of several requests that one of them computes at once, where that does not change a bit of the answers."""
    gather_ms: float = 2.0
    """How long the first of them waits for others that are being received."""
    queue: int = 256
    """Images that may wait."""
    max_images: int = 64
    """Images in a request."""
    max_body_mb: float = 32.0
    """Size of a request's body."""
    max_buffered_mb: float = 512.0
    """Size of all bodies that are held at once."""
    max_megapixels: float = 40.0
    """Size of an image."""
    max_request_megapixels: float = 256.0
    """Size of all images of a request together, as their headers give it."""
    body_seconds: float = 10.0
    """Seconds within which a client must have sent its request."""
    send_seconds: float = 30.0
    """Seconds within which a client must have taken its answer."""
    max_connections: int = 512
    """Connections at once, or as many as the process may open."""
    max_connections_per_address: int = 256
    """Connections of one client's address at once."""
    allow_host: tuple[str, ...] = ()
    """More names by which clients reach the service, such as a proxy's, and of web pages that may send it images."""
    token: Annotated[str | None, PYTHON_ONLY] = None
    """What clients must send in the header `Authorization: Bearer TOKEN`."""

    def __post_init__(self) -> None:
        for field in fields(ServiceSettings):
            value = getattr(self, field.name)
            if field.name == "allow_host":
                continue
            if field.name == "token":
                if value is not None and (len(value) < 16 or not value.isascii() or not value.isprintable()):
                    raise UserError("`token` must have at least 16 printable ASCII characters")
            elif value is not None and not (value > 0 or (field.name == "gather_ms" and value == 0)):
                raise UserError(f"`{field.name}` must be above 0, not {value:g}")
        if self.max_images > self.queue:
            raise UserError(f"`queue` has room for {self.queue} images, but a request may have {self.max_images}")
