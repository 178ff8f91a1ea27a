"""What a path holds: an image, a folder of images, parquet files or WebDataset shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from us3l.data.catalogue import IMAGE_SUFFIXES, Catalogue
from us3l.data.folder import is_image, open_folder, open_image
from us3l.data.parquet import open_parquet
from us3l.data.shards import open_shards
from us3l.system.errors import UserError

SoFar = Callable[[int, int], None]


def open_path(path: Path, progress: SoFar | None = None) -> Catalogue:
    """The images at a path; `progress` is called with the number of shards looked through, and of all."""
    if path.is_dir():
        for folder in (path, path / "data"):
            if files := _files(folder, "*.parquet"):
                return open_parquet(files)
        if images := open_folder(path):
            return images
        if shards := _files(path, "*.tar") or _files(path, "*/*.tar"):
            return open_shards(path, shards, progress)
        raise UserError(
            f"{path}: no images in this folder or below it (looked for {' '.join(IMAGE_SUFFIXES)}), "
            "and neither *.parquet nor *.tar in it"
        )
    if path.suffix.lower() == ".parquet":
        return open_parquet([path])
    if path.suffix.lower() == ".tar":
        return open_shards(path.parent, [path], progress)
    if is_image(path.name):
        return open_image(path)
    raise UserError(
        f"{path}: neither a folder, a parquet file, a WebDataset shard nor an image; give a folder of images, a "
        ".parquet or a .tar file"
    )


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith(".") and path.is_file())
