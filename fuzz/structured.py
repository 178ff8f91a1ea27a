"""Well-formed files that ask for much: parts repeated, nested, or small ones that stand for large ones."""

from __future__ import annotations

import copy
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from PIL import Image

from fuzz.mutate import mutated

TIMES = (2, 10, 100, 1000, 30_000)
LARGE = 0.05  # share of the parts that grow as far as they may: reading those takes most of the time
LARGEST = 2**21  # bytes of a file that is made: what it costs to make counts too


def structured(content: bytes, suffix: str, random: Random) -> bytes:
    """Another content of a file: one part of it repeated, nested or expanded; one in four is then changed a little."""
    grown = GROWTHS[suffix](content, random)
    return mutated(grown, suffix, random) if random.random() < 0.25 else grown


def _some(random: Random, values: tuple[int, ...]) -> int:
    """One of several values, the last and most costly of them seldom."""
    return values[-1] if random.random() < LARGE else random.choice(values[:-1])


def _times(random: Random, size: int) -> int:
    """How often a part of a size in bytes is repeated."""
    return max(2, min(_some(random, TIMES), LARGEST // max(size, 1)))


# Values, in JSON and YAML


def _grown(value: Any, random: Random) -> Any:
    """The same value with a part of it repeated, nested or expanded."""
    if isinstance(value, dict) and value and random.random() < 0.75:
        key = random.choice(list(value))
        if random.random() < 0.15:  # many keys
            times = _times(random, len(repr(value[key])))
            return value | {f"{key}{number}": value[key] for number in range(times)}
        return value | {key: _grown(value[key], random)}
    if isinstance(value, list) and value:
        place = random.randrange(len(value))
        if random.random() < 0.5:
            return [*value[:place], _grown(value[place], random), *value[place + 1 :]]
        return _numbered(value[place], _times(random, len(repr(value[place]))), random)
    return random.choice((_nested, _long, _large))(value, random)


def _numbered(part: Any, times: int, random: Random) -> list[Any]:
    """A part many times, half of the time each with a number of its own."""
    if not isinstance(part, dict) or "id" not in part or random.random() < 0.5:
        return [part] * times
    return [part | {"id": number} for number in range(times)]


def _nested(value: Any, random: Random, depths: tuple[int, ...] = (2, 30, 300, 900)) -> Any:
    for _ in range(random.choice(depths)):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def _long(value: Any, random: Random) -> Any:
    text = value if isinstance(value, str) and value else "0"
    return text * _times(random, len(text))


def _large(value: Any, random: Random) -> Any:
    """A number as large as its type allows, where there was one."""
    return type(value)(random.choice((100, 10**4, 10**6, 10**9, 10**15))) if isinstance(value, int | float) else value


def _json(content: bytes, random: Random) -> bytes:
    return json.dumps(_grown(json.loads(content), random)).encode()


def _lines(content: bytes, random: Random) -> bytes:
    """Of JSON in lines, of a log or a table: lines repeated, or one grown."""
    lines = content.splitlines(keepends=True)
    place = random.randrange(len(lines))
    if random.random() < 0.5:
        lines[place] *= _times(random, len(lines[place]))
    elif lines[place].startswith(b"{"):
        lines[place] = _json(lines[place], random) + b"\n"
    else:
        lines[place] = lines[place].rstrip(b"\n") * _times(random, len(lines[place])) + b"\n"
    return b"".join(lines)


def _yaml(content: bytes, random: Random) -> bytes:
    if random.random() < 0.2:  # each name stands for ten of the one before it
        names = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, random.randint(2, 30)))
        return b"a0: &a0 x\n" + names.encode() + b"\n" + content
    return json.dumps(_grown(yaml.safe_load(content), random)).encode()  # which is YAML too


# Tensors


def _safetensors(content: bytes, random: Random) -> bytes:
    """Tensors without values but of large shapes, many tensors, and growth of what the metadata say."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    metadata = header.get("__metadata__", {})
    choice = random.random()
    if metadata and choice < 0.4:
        key = random.choice(list(metadata))
        values = metadata[key].startswith("{")
        metadata[key] = _json(metadata[key].encode(), random).decode() if values else _long(metadata[key], random)
    elif choice < 0.7:
        empty = {"dtype": "F32", "shape": [0, random.choice((1, 2**31, 2**52))], "data_offsets": [0, 0]}
        header |= {f"{random.choice(names)}{number}": empty for number in range(_times(random, 100))}
    else:
        chosen = header[random.choice(names)]
        chosen["shape"] = [1] * random.choice((30, 3000)) + chosen["shape"]
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + content[8 + length :]


def _checkpoint(content: bytes, random: Random) -> bytes:
    """Tensors that are expanded from one value, lists nested or repeated."""
    state = torch.load(io.BytesIO(content), weights_only=True)

    def grown(value: Any) -> Any:
        if isinstance(value, dict) and value:
            key = random.choice(list(value))
            return value | {key: grown(value[key])}
        if isinstance(value, list) and value and random.random() < 0.7:
            return [grown(value[0])] * _some(random, TIMES)
        if isinstance(value, torch.Tensor):
            side = _some(random, (2, 100, 10**5, 10**7))
            return value.flatten()[:1].expand(side, random.choice((1, 100))) if value.numel() else value
        return _nested(value, random, (2, 30, 200)) if random.random() < 0.5 else _large(value, random)

    buffer = io.BytesIO()
    torch.save(grown(state), buffer)
    return buffer.getvalue()


# Images


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _image(content: bytes, random: Random) -> bytes:
    """The same kind of image with many more pixels, of one colour; chunks, scans or frames that are repeated."""
    with Image.open(io.BytesIO(content)) as image:
        kind, mode = image.format or "PNG", image.mode
    if kind == "PNG" and random.random() < 0.5:
        packed = zlib.compress(bytes(_some(random, (10**4, 10**6, 10**8))))
        what = random.choice((b"tEXt" + b"a\0b", b"zTXt" + b"a\0\0" + packed, b"iCCP" + b"a\0\0" + packed, b"IDAT"))
        extra = _chunk(what[:4], what[4:])
        return content[:33] + extra * _times(random, len(extra)) + content[33:]
    if kind == "JPEG" and random.random() < 0.5:
        return _many_scans(random)
    width, height = _some(random, (1, 16, 200, 1000, 9000)), _some(random, (1, 16, 200, 1000, 7000))
    options: dict[str, Any] = (
        {"compression": random.choice((None, "tiff_deflate", "tiff_lzw"))} if kind == "TIFF" else {}
    )
    if kind == "GIF":
        options = {"save_all": True, "append_images": [Image.new("L", (width, height), 1)] * random.choice((1, 5, 20))}
    if kind == "WEBP":
        width, height, options = min(width, 2000), min(height, 2000), {"method": 0}
    if kind in ("BMP", "PPM") or options.get("compression", 1) is None:  # which are as long as they are large
        width, height = min(width, 1000), min(height, 700)
    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, kind, **options)
    return buffer.getvalue()


def _many_scans(random: Random) -> bytes:
    buffer, side = io.BytesIO(), _some(random, (16, 200, 4000))
    Image.new("L", (side, side)).save(buffer, "JPEG", progressive=True)
    whole = buffer.getvalue()
    first = whole.index(b"\xff\xda")
    second = whole.index(b"\xff\xda", first + 2)
    return whole[:first] + whole[first:second] * _times(random, second - first) + whole[second:]


def _tar(content: bytes, random: Random) -> bytes:
    """Many members, long names, descriptions that are longer than what they describe, holes."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive if member.isfile()]  # type: ignore[union-attr]
    member, data = random.choice(members)
    choice, buffer = random.random(), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for known, its in members:
            archive.addfile(known, io.BytesIO(its))
        for number in range(_times(random, 2000) if choice < 0.5 else 2):
            new = copy.copy(member)
            new.name = f"{number}/{member.name}" if choice < 0.4 else "a/" * random.choice((10, 5000)) + member.name
            if choice > 0.7:
                new.pax_headers = {"comment" + str(n): "x" * 1000 for n in range(random.choice((1, 500)))}
            archive.addfile(new, io.BytesIO(data))
    return buffer.getvalue()


def _parquet(content: bytes, random: Random) -> bytes:
    """Values that are kept once and repeated, many columns or groups of rows, nested columns."""
    table = pq.read_table(io.BytesIO(content))
    choice, times = random.random(), _some(random, (10, 1000, 5000))
    if choice < 0.5:
        table = table.take(pa.array([random.randrange(len(table))] * times))
    elif choice < 0.75:
        for number in range(min(times, 1000)):
            table = table.append_column(f"c{number}", table.column(-1))
    else:
        nested: pa.Array = table.column("image").combine_chunks()
        for _ in range(random.choice((1, 20, 100))):
            nested = pa.StructArray.from_arrays([nested], ["bytes"])
        table = table.set_column(0, "image", nested)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=random.choice((1, 100, 10**6)))
    return buffer.getvalue()


def _xml(content: bytes, random: Random) -> bytes:
    """Elements repeated, nested, or long; numbers made large."""
    start, end = content.index(b"<object>"), content.rindex(b"</annotation>")
    part = random.choice((content[start:end], b"<part/>", b"<a b='c'>d</a>", b"<name>" + b"x" * 1000 + b"</name>"))
    if random.random() < 0.3:
        depth = _some(random, (10, 1000, 100_000))
        return content[:start] + b"<a>" * depth + part + b"</a>" * depth + content[start:]
    if random.random() < 0.3:
        return content.replace(b">12<", b">%d<" % random.choice((10**3, 10**4, 10**6, 10**12)))
    return content[:start] + part * _times(random, len(part)) + content[start:]


def _text(content: bytes, random: Random) -> bytes:
    return content * _times(random, len(content))


GROWTHS: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": _json,
    ".jsonl": _lines,
    ".log": _lines,
    ".csv": _lines,
    ".txt": _lines,
    ".yaml": _yaml,
    ".safetensors": _safetensors,
    ".pt": _checkpoint,
    ".tar": _tar,
    ".parquet": _parquet,
    ".xml": _xml,
    ".onnx": _text,
    ".py": _text,
    **dict.fromkeys((".png", ".jpg", ".gif", ".webp", ".tif", ".bmp", ".ppm"), _image),
}
