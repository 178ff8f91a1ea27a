"""Which images a data set has, byte by byte: a hash of each, taken while it is read anyway.

A file whose status (times, inode, size) is the one that it had when its bytes were hashed is not hashed again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
from PIL import Image
from safetensors.numpy import save_file

from us3l.data.decode import Damaged, Deep, Encoded, fetch
from us3l.system.errors import UserError
from us3l.system.files import replacing

UNKNOWN = 0
"""The hash of an image that has not been read, and the status of one that lies in no file."""
MIXING = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xFF51AFD7ED558CCD], np.uint64)
"""Odd numbers of many bits, which make one number of the four of a status."""


@dataclass(frozen=True)
class Contents:
    """What is known of the bytes of N images. Arrays that are filled as images are read."""

    hashes: np.ndarray
    """N, int64, above 0; `UNKNOWN` of images that have not been read."""
    statuses: np.ndarray
    """N, int64: of their files before they were read, see `status_numbers`; or `UNKNOWN`."""

    @classmethod
    def unread(cls, count: int) -> Contents:
        """Of images of which nothing is known."""
        return cls(np.zeros(count, np.int64), np.zeros(count, np.int64))

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def complete(self) -> bool:
        """Whether all images have been read."""
        return bool((self.hashes != UNKNOWN).all())

    def __getitem__(self, chosen: np.ndarray) -> Contents:
        """Return a copy for some of the images."""
        return Contents(self.hashes[chosen], self.statuses[chosen])

    def hash_of(self, index: int, status: int, encoded: Encoded) -> int:
        """Return the hash of an image that was just read; its bytes are hashed if its file's status is a new one."""
        if status != UNKNOWN and status == self.statuses[index] and self.hashes[index] != UNKNOWN:
            return int(self.hashes[index])
        value = content_hash(encoded)
        if value != UNKNOWN:
            self.hashes[index], self.statuses[index] = value, status
        return value

    def note(self, indices: np.ndarray, hashes: np.ndarray, statuses: np.ndarray) -> np.ndarray:
        """Take note of images that were read; return those of the indices whose bytes are not what they were."""
        read = hashes != UNKNOWN
        indices, hashes, statuses = indices[read], hashes[read], statuses[read]
        before = self.hashes[indices]
        self.hashes[indices], self.statuses[indices] = hashes, statuses
        return indices[(before != UNKNOWN) & (before != hashes)]

    def digest(self) -> str | None:
        """Return one checksum of all images in their order; None unless all have been read."""
        return hashlib.sha256(self.hashes.astype("<i8").tobytes()).hexdigest() if self.complete else None

    def save(self, path: Path) -> None:
        """Write them to a file."""
        with replacing(path) as temporary:
            save_file({"hashes": self.hashes, "statuses": self.statuses}, temporary)

    @classmethod
    def load(cls, path: Path) -> Contents:
        """Read what `save` wrote.

        Raises:
            UserError: It is damaged.
        """
        try:
            with safetensors.safe_open(path, "np") as file:
                arrays = [file.get_tensor(name) for name in ("hashes", "statuses")]
        except (OSError, safetensors.SafetensorError, TypeError, ValueError) as error:
            raise UserError(f"cannot read {path}: it is damaged, or not a list of hashes ({error!s:.200})") from None
        if any(array.dtype != np.int64 or array.shape != (arrays[0].size,) for array in arrays):
            raise UserError(f"cannot read {path}: it is damaged, or not a list of hashes")
        return cls(*arrays)


def content_hash(encoded: Encoded) -> int:
    """Return 63 bits of the SHA-256 of an image's bytes, or of its pixels; `UNKNOWN` of one that cannot be read."""
    if isinstance(encoded, Deep):
        encoded = encoded.encoded
    if isinstance(encoded, Path):
        try:
            encoded = fetch(encoded)
        except Damaged:
            return UNKNOWN
    if isinstance(encoded, bytes):
        digest = hashlib.sha256(encoded)
    elif isinstance(encoded, np.ndarray | Image.Image):
        about = (encoded.shape, encoded.dtype) if isinstance(encoded, np.ndarray) else (encoded.size, encoded.mode)
        digest = hashlib.sha256(repr(about).encode())
        digest.update(np.ascontiguousarray(encoded).data if isinstance(encoded, np.ndarray) else encoded.tobytes())
    else:
        return UNKNOWN
    return int.from_bytes(digest.digest()[:8], "little") >> 1 or 1


def status_numbers(statuses: np.ndarray) -> np.ndarray:
    """Return one number, above 0, for each row of `us3l.data.index.status`; N x 4 to N, int64."""
    mixed = np.zeros(len(statuses), np.uint64)
    for column, factor in zip(statuses.astype(np.uint64).T, MIXING, strict=True):
        mixed = (mixed ^ column) * factor
        mixed ^= mixed >> np.uint64(29)
    return np.maximum((mixed >> np.uint64(1)).astype(np.int64), 1)


def differing(before: Contents, now: Contents) -> np.ndarray:
    """Return the places of images whose bytes were known before, and are known to be others now.

    Raises:
        UserError: They are not of the same number of images.
    """
    if len(before) != len(now):
        raise UserError(f"there are {len(now):,} images, and there were {len(before):,}")
    return np.flatnonzero((before.hashes != UNKNOWN) & (now.hashes != UNKNOWN) & (before.hashes != now.hashes))


def duplicates(first: Contents, second: Contents) -> list[tuple[int, int]]:
    """Return pairs of positions of images with the same bytes: one in the first set, one in the second.

    Of several equal images in a set, the first stands for all in the first set; in the second each is listed.

    >>> from numpy import array
    >>> train = Contents(array([11, 12, 13]), array([0, 0, 0]))
    >>> duplicates(train, Contents(array([13, 0, 11, 13]), array([0, 0, 0, 0])))
    [(2, 0), (0, 2), (2, 3)]
    """
    values, places = np.unique(first.hashes, return_index=True)
    near = np.searchsorted(values, second.hashes).clip(max=max(0, len(values) - 1))
    equal = np.flatnonzero((values[near] == second.hashes) & (second.hashes != UNKNOWN)) if len(values) else []
    return [(int(places[near[position]]), int(position)) for position in equal]
