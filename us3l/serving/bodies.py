"""From the body of a request to encoded images. Everything in it may be hostile."""

from __future__ import annotations

import asyncio
import binascii
import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from us3l.serving.arrivals import ARRIVAL
from us3l.serving.refusals import Refusal
from us3l.serving.settings import ServiceSettings

LARGE = 2**18  # bytes that are not parsed while other requests wait
KINDS = "image/*, application/octet-stream, multipart/form-data or application/json"


class Bodies:
    """Receives bodies, and holds no more of them than the settings allow.

    Args:
        settings: Those of the service.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.held = 0
        """Bytes of all requests that are not answered yet."""

    @contextmanager
    def holding(self) -> Iterator[list[int]]:
        """Counts what one request holds: a list of sizes, to add to."""
        sizes: list[int] = []
        try:
            yield sizes
        finally:
            self.held -= sum(sizes)

    def fits(self, size: int) -> bool:
        """Whether a body of this many bytes may be held now."""
        most, all_bodies = self.settings.max_body_mb, self.settings.max_buffered_mb
        return size <= 1e6 * most and self.held + size <= 1e6 * all_bodies

    async def images(self, request: Request, sizes: list[int]) -> list[bytes]:
        """The encoded images of a request.

        Args:
            request: As it comes in.
            sizes: From `holding`.

        Raises:
            Refusal: It is too large, too slow, or cannot be understood.
        """
        kind = content_kind(request.scope)
        parse = PARSERS.get(kind)
        if parse is None and not is_image(kind):
            raise Refusal(415, f"the content type must be {KINDS}")
        body = await self._body(request, sizes)
        if parse is None:
            images = [body]
        else:
            arguments = body, request.headers["content-type"], self.settings.max_images
            images = await run_in_threadpool(parse, *arguments) if len(body) > LARGE else parse(*arguments)
        if not images or not all(images):
            raise Refusal(400, "there is no image in the request" if not images else "an image of no bytes")
        return images

    async def _body(self, request: Request, sizes: list[int]) -> bytes:
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > 1e6 * self.settings.max_body_mb:
            raise self._too_large()
        chunks: list[bytes] = []
        try:
            # What has come already needs no clock.
            async with nullcontext() if ARRIVAL in request.scope else asyncio.timeout(self.settings.body_seconds):
                more = True
                while more:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the request was not sent to its end", "cut")
                    chunks.append(message.get("body", b""))
                    self._count(len(chunks[-1]), sizes)
                    more = message.get("more_body", False)
        except TimeoutError:
            reason = f"the request did not arrive within {self.settings.body_seconds:g} s"
            raise Refusal(408, reason, "slow", close=True) from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _count(self, size: int, sizes: list[int]) -> None:
        if self.held + size > 1e6 * self.settings.max_buffered_mb:
            raise Refusal(503, "too many requests are being received", "memory", wait_ms=1000)
        self.held += size
        sizes.append(size)
        if sum(sizes) > 1e6 * self.settings.max_body_mb:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the request is larger than {self.settings.max_body_mb:g} MB")


def decoded(body: bytes, _: str, most: int) -> list[bytes]:
    """Images as JSON: a list of base64 strings, or an object that has it as "images"."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "the request is not JSON") from None
    if isinstance(value, dict):
        if value.keys() != {"images"}:
            raise Refusal(400, 'the object must have "images" and nothing else: a width goes into the address, ?width=')
        value = value["images"]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise Refusal(400, "the images must be a list of base64 strings")
    check_number(len(value), most)
    images = []
    for number, text in enumerate(value):
        try:
            images.append(b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise Refusal(400, f"image {number} is not base64") from None
    return images


def parts(body: bytes, kind: str, most: int) -> list[bytes]:
    """Images as the files of a form."""
    _, options = parse_options_header(kind.encode("latin-1", "replace"))
    boundary = options.get(b"boundary")
    if not boundary or len(boundary) > 100:
        raise Refusal(400, "the form has no boundary, or a very long one")
    found: list[bytearray] = []
    headers: list[list[bytearray]] = []
    ended = False

    def begin() -> None:
        check_number(len(found) + 1, most)
        found.append(bytearray())
        headers.clear()

    def name(data: bytes, start: int, end: int) -> None:
        if not headers or headers[-1][1]:
            headers.append([bytearray(), bytearray()])
        headers[-1][0] += data[start:end]

    def value(data: bytes, start: int, end: int) -> None:
        headers[-1][1] += data[start:end]

    def check_file() -> None:
        about = [bytes(text) for key, text in headers if bytes(key).lower() == b"content-disposition"]
        if not about or b"filename" not in parse_options_header(about[0])[1]:
            raise Refusal(400, "a field of the form is not a file: a width goes into the address, ?width=")

    def content(data: bytes, start: int, end: int) -> None:
        found[-1] += data[start:end]

    def end() -> None:
        nonlocal ended
        ended = True

    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": begin,
                "on_header_field": name,
                "on_header_value": value,
                "on_headers_finished": check_file,
                "on_part_data": content,
                "on_end": end,
            },
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError, IndexError, UnicodeError):
        raise Refusal(400, "the form cannot be read") from None
    if not ended:
        raise Refusal(400, "the form is not complete")
    return [bytes(part) for part in found]


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The first header of that name; empty if there is none."""
    for found, value in headers:
        if found == name:
            return value
    return b""


def content_kind(scope: MutableMapping[str, Any]) -> str:
    """The content type of a request, without its options."""
    kind, _, _ = header(scope["headers"], b"content-type").decode("latin-1").partition(";")
    return kind.strip().lower()


def is_image(kind: str) -> bool:
    """Whether a body of this content type is one image as it is."""
    return kind.startswith("image/") or kind == "application/octet-stream"


PARSERS = {"multipart/form-data": parts, "application/json": decoded}


def check_number(images: int, most: int) -> None:
    if images > most:
        raise Refusal(413, f"a request may have {most} images, not more")
