"""Sets of images decoded into memory, and how much of it there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from us3l.data.contents import UNKNOWN, Contents, content_hash
from us3l.data.crops import square, unreadable
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
    """Return the images in memory, without the damaged ones.

    Args:
        files: What to decode.
        size: Side to bring the images to (shorter side resized, centre cropped); None if they all are squares of one
            size already.
        progress: Called with the number of images decoded so far, and of all.
        exact: Resize as `us3l.data.decode.decode` does, to the bit, not as `us3l.data.crops.square`.
    """
    if size is not None and size < 1:
        raise UserError(f"size must be at least 1, not {size}")

    def decoded(encoded: Encoded) -> np.ndarray:
        if size is None or exact:
            return decode(encoded, size)
        return square(encoded, size).permute(1, 2, 0).numpy()

    images: np.ndarray | None = None
    kept: list[int] = []
    skipped: list[str] = []
    for position, pixels in enumerate(made_of_each(files, decoded)):
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
    if images is None:
        raise unreadable(files.name, skipped)
    places, tensor = torch.tensor(kept), torch.from_numpy(images[: len(kept)])
    good = files.subset(places)
    return ImageSet(files.name, tensor, good.labels, good.classes, skipped, places if skipped else None, files)


def made_of_each(files: ImageFiles, work: Callable[[Encoded], T]) -> Iterator[T | Damaged]:
    """What is made of the bytes of each image, in order, by all cores; the images' hashes are taken note of."""
    source = files.source
    contents = Contents.unread(len(files))
    if source.statuses:
        contents.statuses[:] = source.statuses(files.chosen)

    def attempt(encoded: Encoded) -> tuple[T | Damaged, int]:
        content = UNKNOWN
        try:
            encoded = fetch(encoded)
            content = content_hash(encoded)
            return work(encoded), content
        except Damaged as error:
            return error, content

    for place, (result, content) in enumerate(in_threads(attempt, source.read(files.chosen))):
        contents.hashes[place] = content
        yield result
    source.contents.note(files.chosen, contents.hashes, contents.statuses)


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
