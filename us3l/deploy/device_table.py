"""Latencies that were measured on another device, as a table."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from us3l.run.profiles import Latency
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.files import parse_json, read_bytes
from us3l.width import Width


def read_device_profile(net: Slimmable, path: Path) -> list[Latency]:
    """Latencies measured elsewhere: a CSV table, a JSON list of rows, or another profile's file of either kind."""
    rows = _json_rows(path) if path.suffix.lower() == ".json" else _csv_rows(path)
    names = [column.name for column in fields(Latency)]
    found = []
    for number, row in enumerate(rows, start=1):
        if missing := [name for name in names if name not in row]:
            raise UserError(f"{path} lacks the column {', '.join(missing)}: it needs {', '.join(names)}")
        if row["backend"] in ("", None):  # another profile's width that was not timed there
            continue
        try:
            width = Width(str(row["width"]))
            p50, p95 = (_positive(row[name]) for name in ("p50_ms", "p95_ms"))
            batch = int(row["batch"])
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"{path}, row {number}: width, batch, p50_ms and p95_ms must be numbers above 0: {row}"
            ) from None
        if batch < 1 or p95 < p50:
            raise UserError(f"{path}, row {number}: batch must be at least 1, and p95_ms not below p50_ms: {row}")
        found.append(Latency(net.canonical(width), str(row["backend"]), batch, p50, p95))
    if not found:
        raise UserError(f"{path} holds no latency: it needs rows of {', '.join(names)}")
    keys = Counter((latency.width, latency.backend, latency.batch) for latency in found)
    if twice := next((key for key, count in keys.items() if count > 1), None):
        raise UserError(f"{path} has two rows for the network of width {twice[0]:g} on {twice[1]}, batch {twice[2]}")
    return found


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    try:
        return list(csv.DictReader(io.StringIO(read_bytes(path).decode())))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _json_rows(path: Path) -> list[dict[str, Any]]:
    text = read_bytes(path)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}") from None
    rows = content.get("latencies") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} must hold a list of rows, or an object with one named latencies")
    return rows


def _positive(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(value)
    return number
