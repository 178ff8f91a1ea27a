"""Which weights a result belongs to: every file that was derived from a model names them."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from us3l.system.errors import Caution, UserError
from us3l.system.files import check_regular, checksum, open_regular, parse_json

LARGEST_HEADER = 100 * 2**20  # bytes, as in safetensors itself


@dataclass(frozen=True)
class Weights:
    """The state of a model that something was measured with."""

    weights: str
    """The SHA-256 of weights.safetensors."""
    statistics: dict[str, str]
    """For each calibrated width, the start of the SHA-256 of its batch-norm statistics: widths may be added later."""

    def differences(self, present: Weights) -> list[str]:
        """What of the present state is not as it was."""
        same = all(present.statistics.get(width) == digest for width, digest in self.statistics.items())
        return ["weights"] * (self.weights != present.weights) + ["statistics"] * (not same)


def weights_of(model: Path) -> Weights:
    """Those of the model in a folder."""
    key: list[Any] = []
    for name in ("weights", "statistics"):
        path = check_regular(model / f"{name}.safetensors")
        found = path.stat()
        key.append((path.resolve(), found.st_mtime_ns, found.st_size, found.st_ino))
    return _weights(*key)


@lru_cache(maxsize=64)  # for as long as the files stay as they are
def _weights(weights: tuple[Path, int], statistics: tuple[Path, int]) -> Weights:
    return Weights(checksum(weights[0]), _digests(statistics[0]))


def _digests(path: Path) -> dict[str, str]:
    """The digest of each width's tensors, without making tensors of them."""
    digests: dict[str, Any] = {}
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, LARGEST_HEADER):
                raise ValueError("its header is too long")
            header = parse_json(file.read(length))
            header.pop("__metadata__", None)
            for key in sorted(header):
                start, end = header[key]["data_offsets"]
                if not 0 <= start <= end <= size:
                    raise ValueError("a tensor lies outside of it")
                file.seek(8 + length + start)
                digest = digests.setdefault(key.partition("/")[0], hashlib.sha256())
                digest.update(json.dumps([key, header[key]["dtype"], header[key]["shape"]]).encode())
                digest.update(file.read(end - start))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"cannot read {path}: the file is cut short or damaged ({error})") from None
    return {width: digest.hexdigest()[:16] for width, digest in digests.items()}


def check_weights(path: Path, measured: Weights | None, present: Weights, again: str) -> None:
    """That a result belongs to the weights that are there now. Results of earlier versions do not say.

    Args:
        path: the file of the result, for messages.
        measured: what the result was found with.
        present: those of the model.
        again: what to do about a mismatch.
    """
    if measured is None:
        text = f"{path} does not say which weights it belongs to: {again}, if in doubt"
        warnings.warn(text, Caution, stacklevel=3)
    elif changed := measured.differences(present):
        raise UserError(f"{path} belongs to another model, whose {' and '.join(changed)} differ: {again}")
