"""The network in the box: `builtin`, wherever the folder of a run or a model may be given.

It is a model's folder like any other. Results are written beside a model, so it is copied to the cache once, and the
installed package stays as it is. `tools/builtin` makes it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from us3l.description import NAME as DESCRIPTION
from us3l.system.files import cache_folder, checksum, replacing

NAME = "builtin"
WEIGHTS = "weights.safetensors"
FILES = ("README.md", WEIGHTS, "statistics.safetensors", DESCRIPTION)
"""Of the model; the description comes last: a folder that has it is whole."""
PACKAGED = Path(__file__).parent


def builtin_folder() -> Path:
    """Return a folder with the built-in network to which results can be added: a copy in the cache, if there is one."""
    cache = cache_folder()
    if cache is None:
        return PACKAGED
    folder = cache / f"{NAME}-{checksum(PACKAGED / WEIGHTS)[:12]}"
    try:
        for name in FILES:
            if not (folder / name).exists():
                with replacing(folder / name) as temporary:
                    shutil.copyfile(PACKAGED / name, temporary)
    except OSError:  # no space, not allowed: the model can be read where it is
        return PACKAGED
    return folder
