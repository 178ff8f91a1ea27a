"""Small changes to files, drawn from a generator: of bytes, and of what the formats put around their checksums."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, -(2**63))
VALUES: tuple[Any, ...] = (
    *NUMBERS, None, True, False, "", "../../etc/passwd", "/etc/passwd", "x\0y", "\x1b[2J", "\ud800", "é" * 300, [], {},
    [[]], {"a": {}}, 0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), 10**30, 10**400, "1e9", "nan", [0] * 50,
)  # fmt: skip


def mutated(content: bytes, suffix: str, random: Random) -> bytes:
    """Another content of a file, by one to three changes; half of them keep the format's outer form."""
    shaped = FORMS.get(suffix)
    for _ in range(random.choice((1, 1, 2, 3))):
        if shaped and random.random() < 0.5:
            try:
                content = shaped(content, random)
                continue
            except Exception:  # an earlier change has broken the form
                pass
        content = random.choice(BYTE_CHANGES)(content, random)
    return content


# Of bytes


def _place(content: bytes, random: Random) -> int:
    """Anywhere, but more often near the ends, where formats keep what counts."""
    last = max(len(content) - 1, 0)
    near = min(last, int(random.expovariate(1 / 60)))
    return random.choice((random.randint(0, last), near, last - near))


def _flip(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    return (
        content[:place] + bytes([content[place] ^ 1 << random.randrange(8)]) + content[place + 1 :] if content else b""
    )


def _number(content: bytes, random: Random) -> bytes:
    place, order = _place(content, random), random.choice("<>")
    kind, bits = random.choice((("B", 8), ("H", 16), ("I", 32), ("Q", 64)))
    value = struct.pack(order + kind, random.choice(NUMBERS) % 2**bits)
    return content[:place] + value + content[place + len(value) :]


def _cut(content: bytes, random: Random) -> bytes:
    return content[: _place(content, random)]


def _delete(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    return content[:place] + content[place + random.randint(1, 64) :]


def _repeat(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    piece = content[place : place + random.randint(1, 64)]
    return content[:place] + piece * random.choice((2, 3, 1000)) + content[place:]


def _insert(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    return content[:place] + random.randbytes(random.randint(1, 32)) + content[place:]


def _zero(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    length = min(random.choice((4, 64, 1024)), len(content) - place)
    return content[:place] + bytes(length) + content[place + length :]


def _digits(content: bytes, random: Random) -> bytes:
    """Another number where one is written in figures."""
    places = [place for place, byte in enumerate(content[:20_000]) if 48 <= byte < 58]
    if not places:
        return _flip(content, random)
    place = random.choice(places)
    text = random.choice((b"-1", b"1e400", b"9" * 25, b"9" * 5000, b"nan", b"0", b"4294967296", b"-0.0", b""))
    return content[:place] + text + content[place + 1 :]


BYTE_CHANGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    _flip, _number, _cut, _delete, _repeat, _insert, _zero, _digits,
)  # fmt: skip


# Of forms


def _value(value: Any, random: Random) -> Any:
    """The same value with another one somewhere in it."""
    if random.random() < 0.2 or not isinstance(value, dict | list) or not value:
        if random.random() < 0.02:
            deep: Any = 0
            for _ in range(random.choice((50, 5000))):
                deep = [deep]
            return deep
        return random.choice(VALUES)
    if isinstance(value, list):
        place = random.randrange(len(value))
        if random.random() < 0.1:
            return value[:place] + value[place + 1 :]
        return [*value[:place], _value(value[place], random), *value[place + 1 :]]
    key = random.choice(list(value))
    if random.random() < 0.1:
        return {name: one for name, one in value.items() if name != key}
    if random.random() < 0.1:
        return value | {random.choice(("../x", "", "x" * 100, "nan", "0.5")): value[key]}
    return value | {key: _value(value[key], random)}


def _json(content: bytes, random: Random) -> bytes:
    return json.dumps(_value(json.loads(content), random)).encode()


def _yaml(content: bytes, random: Random) -> bytes:
    if random.random() < 0.1:
        return b"a: &a [x, x]\nb: &b [*a, *a]\n" + content.replace(b"0", b"*b", 1)
    return yaml.safe_dump(_value(yaml.safe_load(content), random)).encode(errors="surrogateescape")


def _safetensors(content: bytes, random: Random) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = _json(content[8 : 8 + length], random)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _zip(content: bytes, random: Random) -> bytes:
    """One member changed or compressed, all checksums right."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(written, "w") as new:
        names = old.namelist()
        chosen = random.choice([name for name in names if name.endswith("data.pkl")] * 4 + names)
        for name in names:
            data = old.read(name)
            if name == chosen:
                data = random.choice(BYTE_CHANGES)(data, random)
            packed = random.random() < 0.02
            new.writestr(name, data, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    return written.getvalue()


def _png(content: bytes, random: Random) -> bytes:
    """One chunk changed, its checksum right."""
    chunks, place = [], 8
    while place < len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    chosen = random.randrange(len(chunks))
    kind, data = chunks[chosen]
    if kind == b"IDAT" and random.random() < 0.5:
        data = zlib.compress(random.choice(BYTE_CHANGES)(zlib.decompress(data), random))
    else:
        data = random.choice(BYTE_CHANGES)(data, random)
    chunks[chosen] = kind, data
    return content[:8] + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _tar(content: bytes, random: Random) -> bytes:
    """One field of a header changed, its checksum right."""
    blocks = [place for place in range(0, len(content), 512) if content[place + 257 : place + 262] == b"ustar"]
    place = random.choice(blocks)
    header = bytearray(content[place : place + 512])
    start, length = random.choice(((0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (345, 155)))
    field = random.choice(
        (random.randbytes(length), b"\xff" * length, b"\x80" + bytes(length - 1), b"7" * length, b"LKxgSV15"[:1], b"")
    )
    header[start : start + length] = field[:length].ljust(length, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return content[:place] + bytes(header) + content[place + 512 :]


def _parquet(content: bytes, random: Random) -> bytes:
    """The description at the end changed, its length right."""
    length = int.from_bytes(content[-8:-4], "little")
    footer = random.choice(BYTE_CHANGES)(content[-8 - length : -8], random)
    return content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


FORMS: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": _json,
    ".yaml": _yaml,
    ".safetensors": _safetensors,
    ".pt": _zip,
    ".png": _png,
    ".tar": _tar,
    ".parquet": _parquet,
}
