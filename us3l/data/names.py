"""Very many strings in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Names:
    """Strings in two arrays: a million file names take 30 MB, as Python's own objects 100 and more.

    Arrays are also what forked processes share without copying, and what a file can hold as it is.

    >>> names = Names.packed(["cat/1.png", "dog/2.png"])
    >>> len(names), names[1], list(names)
    (2, 'dog/2.png', ['cat/1.png', 'dog/2.png'])
    """

    text: np.ndarray
    """uint8: all of them, one after the other; file names may be no valid UTF-8, and are kept as they are."""
    ends: np.ndarray
    """int64: where each ends."""

    @classmethod
    def packed(cls, names: Iterable[str]) -> Names:
        text, ends = bytearray(), array("q")
        for name in names:
            text += name.encode(errors="surrogateescape")
            ends.append(len(text))
        return cls(np.frombuffer(text, np.uint8), np.frombuffer(ends, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        start = self.ends[index - 1] if index > 0 else 0
        return self.text[start : self.ends[index]].tobytes().decode(errors="surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))
