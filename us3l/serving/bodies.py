"""From the body of a request to encoded images. Everything in it may be hostile."""

from __future__ import annotations

import asyncio
import binascii
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from us3l.data.decode import Damaged, declared_pixels
from us3l.serving.refusals import Refusal
from us3l.serving.settings import ServiceSettings

LARGE = 2**18  # bytes that are not looked at while other requests wait
CHUNK = 2**16  # bytes of a form that are parsed at once
KINDS = "image/*, application/octet-stream, multipart/form-data or application/json"


class ReceivedImage(NamedTuple):
    """An image as it was sent, and how large it is once it is decoded."""

    content: bytes
    megapixels: float
    """By its header; 0 if that cannot be read."""


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
        """Count what one request holds, in a list of sizes to add to."""
        sizes: list[int] = []
        try:
            yield sizes
        finally:
            self.held -= sum(sizes)

    async def images(self, request: Request, sizes: list[int]) -> list[ReceivedImage]:
        """Return the encoded images of a request.

        Args:
            request: As it comes in.
            sizes: From `holding`.

        Raises:
            Refusal: It is too large, too slow, or cannot be understood.
        """
        kind = content_kind(request.headers)
        if kind not in ("multipart/form-data", "application/json") and not is_image(kind):
            raise Refusal(415, f"the content type must be {KINDS}")
        body = await self._body(request, sizes)
        if kind == "multipart/form-data":
            contents = await uploaded(request, body, self.settings.max_images)
        elif kind == "application/json":
            contents = await unhurried(body, decoded, body, self.settings.max_images)
        else:
            contents = [body]
        if not contents or not all(contents):
            raise Refusal(400, "an image of no bytes" if contents else "there is no image in the request")
        images = await unhurried(body, measured, contents)
        if sum(image.megapixels for image in images) > (most := self.settings.max_request_megapixels):
            raise Refusal(413, f"the images of a request may have {most:g} million pixels together, not more")
        return images

    async def _body(self, request: Request, sizes: list[int]) -> bytes:
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > 1e6 * self.settings.max_body_mb:
            raise self._too_large()
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                async for chunk in request.stream():
                    chunks.append(chunk)
                    self._count(len(chunk), sizes)
        except ClientDisconnect:
            raise Refusal(400, "the request was not sent to its end", "cut") from None
        except TimeoutError:
            reason = f"the request did not arrive within {self.settings.body_seconds:g} s"
            raise Refusal(408, reason, "slow", close=True) from None
        return b"".join(chunks)

    def _count(self, size: int, sizes: list[int]) -> None:
        if self.held + size > 1e6 * self.settings.max_buffered_mb:
            raise Refusal(503, "too many requests are being received", "memory", wait_ms=1000)
        self.held += size
        sizes.append(size)
        if sum(sizes) > 1e6 * self.settings.max_body_mb:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the request is larger than {self.settings.max_body_mb:g} MB")


async def unhurried(body: bytes, function: Any, *arguments: Any) -> Any:
    """Call a function, in another thread if the body is so large that others would have to wait."""
    return await run_in_threadpool(function, *arguments) if len(body) > LARGE else function(*arguments)


def measured(contents: list[bytes]) -> list[ReceivedImage]:
    """Return images with the sizes that their headers give; nothing is decoded."""
    images = []
    for content in contents:
        try:
            pixels = declared_pixels(content)
        except Damaged:  # decoding says what is wrong with it
            pixels = 0
        images.append(ReceivedImage(content, pixels / 1e6))
    return images


def decoded(body: bytes, most: int) -> list[bytes]:
    """Return images sent as JSON: a list of base64 strings, or an object that has it as "images"."""
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


async def uploaded(request: Request, body: bytes, most: int) -> list[bytes]:
    """Return images sent as the files of a form."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), CHUNK):
            yield body[start : start + CHUNK]
            await asyncio.sleep(0)  # others may have their turn

    parser = MultiPartParser(request.headers, chunks(), max_files=most + 1, max_fields=most)  # type: ignore[arg-type]
    parser.spool_max_size = len(body)  # in memory: the body is there already
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, IndexError):
        raise Refusal(400, "the form cannot be read") from None
    try:
        files = [file for _, file in form.multi_items() if isinstance(file, UploadFile)]
        if len(files) < len(form.multi_items()):
            raise Refusal(400, "a field of the form is not a file: a width goes into the address, ?width=")
        check_number(len(files), most)
        if not body.rstrip().endswith(b"--"):  # the mark after the last part: else its end was cut off
            raise Refusal(400, "the form is not complete")
        return [await file.read() for file in files]
    finally:
        await form.close()


def content_kind(headers: Headers) -> str:
    """Return the content type of a request, without its options."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_image(kind: str) -> bool:
    """Return whether a body of this content type is one image as it is."""
    return kind.startswith("image/") or kind == "application/octet-stream"


def check_number(images: int, most: int) -> None:
    """Raise a `Refusal` if a request has too many images."""
    if images > most:
        raise Refusal(413, f"a request may have {most} images, not more")
