"""Sets of images decoded into memory, and how much of it there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from us3l.data.contents import UNKNOWN, Contents, content_hash
from us3l.data.crops import square
from us3l.data.decode import Damaged, Encoded, decode, fetch, weight
from us3l.data.images import ImageSet
from us3l.system.devices import available_memory, usable_cores
from us3l.system.errors import UserError

if TYPE_CHECKING:
    from us3l.data.streamed import ImageFiles

DECODED_AT_ONCE = 256
HELD_BYTES = 2**26  # of encoded images that wait to be decoded
Counter = Callable[[int, int], None]
T = TypeVar("T")


def decode_all(
    files: ImageFiles, size: int | None = None, progress: Counter | None = None, exact: bool = False
) -> ImageSet:
    """The images in memory, without the damaged ones.

    Args:
        files: What to decode.
        size: Side to bring the images to (shorter side resized, centre cropped); None if they all are squares of one
            size already.
        progress: Called with the number of images decoded so far, and of all.
        exact: Resize as `us3l.data.decode.decode` does, to the bit, not as `us3l.data.crops.square`.
    """
    if size is not None and size < 1:
        raise UserError(f"size must be at least 1, not {size}")
    images, kept, skipped = _decode_all(files, size, progress, exact)
    places = torch.from_numpy(kept)
    good = files.subset(places)
    return ImageSet(files.name, images, good.labels, good.classes, skipped, places if skipped else None, files)


def _decode_all(
    files: ImageFiles, size: int | None, progress: Counter | None, exact: bool
) -> tuple[Tensor, np.ndarray, list[str]]:
    """The images as one tensor, the positions of those that were good, and the names of the others."""
    images: np.ndarray | None = None
    kept: list[int] = []
    skipped: list[str] = []
    contents = Contents.unread(len(files))
    if files.source.statuses:
        contents.statuses[:] = files.source.statuses(files.chosen)
    encoded = files.source.read(files.chosen)
    attempts = in_threads(lambda image: _attempt(image, size, exact), encoded)
    for position, (pixels, content) in enumerate(attempts):
        contents.hashes[position] = content
        name = files.source.name(files.chosen[position])
        if isinstance(pixels, Damaged):
            skipped.append(f"{name}: {pixels}")
        else:
            height, width, _ = pixels.shape
            if images is None:
                check_memory(len(files) * pixels.nbytes, files.name)
                images = np.empty((len(files), 3, height, width), np.uint8)
            if height != width or images.shape[-1] != width:
                raise UserError(
                    f"{files.name}: images are not squares of one size ({name}: {width}x{height}); give a size"
                )
            images[len(kept)] = pixels.transpose(2, 0, 1)
            kept.append(position)
        done = position + 1
        if progress and (done % DECODED_AT_ONCE == 0 or done == len(files)):
            progress(done, len(files))
    files.source.contents.note(files.chosen, contents.hashes, contents.statuses)
    if images is None:
        raise UserError(f"{files.name}: none of the {len(files)} images can be read; the first is {skipped[0]}")
    return torch.from_numpy(images[: len(kept)]), np.array(kept), skipped


def in_threads(decoding: Callable[[Encoded], T], encoded: Iterable[Encoded]) -> Iterator[T]:
    """What is made of each image, in the order given, by all cores; only a few images are held at a time."""
    encoded = iter(encoded)
    cores = usable_cores()

    def several(images: list[Encoded]) -> list[T]:
        return [decoding(image) for image in images]

    with ThreadPoolExecutor(cores) as pool:
        while some := _some(encoded):
            share = max(1, len(some) // (8 * cores))  # handing over a small image takes as long as decoding it
            shares = [some[first : first + share] for first in range(0, len(some), share)]
            yield from chain.from_iterable(pool.map(several, shares))


def _attempt(encoded: Encoded, size: int | None, exact: bool) -> tuple[np.ndarray | Damaged, int]:
    """The pixels of an image, H x W x 3, or why there are none; and the hash of its bytes."""
    content = UNKNOWN
    try:
        encoded = fetch(encoded)
        content = content_hash(encoded)
        if size is None or exact:
            return decode(encoded, size), content
        return square(encoded, size).permute(1, 2, 0).numpy(), content
    except Damaged as error:
        return error, content


def _some(encoded: Iterator[Encoded]) -> list[Encoded]:
    """The next images, few enough that what they take is bounded; none at the end."""
    some: list[Encoded] = []
    held = 0
    for one in islice(encoded, DECODED_AT_ONCE):
        some.append(one)
        held += weight(one)
        if held > HELD_BYTES:
            break
    return some


def check_memory(needed: int, name: str) -> int:
    """Return the bytes that decoded images may take: half of the memory available.

    Raises:
        UserError: They are fewer than needed.
    """
    available = available_memory()
    if needed > available // 2:
        raise UserError(
            f"{name}: the images need {needed / 2**30:.1f} GiB, more than half of the {available / 2**30:.1f} GiB of "
            "memory available; lower the size, limit the number of images, or read them as they are needed "
            "(`stream=True`)"
        )
    return available // 2
