"""Facts as one HTML page that needs nothing else: page.html with the style, the scripts and the facts put in."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from us3l.system.errors import UserError
from us3l.system.files import as_plain

COLOURS = (
    "#0072B2",  # the first seven are Okabe and Ito's
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8A2BE2",
    "#882255",
    "#654321",
)
"""Ten that people tell apart on a white ground, whatever their colour vision."""


def page(report: dict[str, Any]) -> str:
    """Return the page for `{"title": ..., "runs": [...], "compared": [...]}`.

    All names in it may be hostile: the script, which is the only one that may run, sets them as text.
    """
    script = part("draw.js") + part("page.js")
    try:
        data = json.dumps(report, allow_nan=False, default=as_plain)
        data = data.replace("<", "\\u003c")  # nothing in it can end the element
    except ValueError:
        raise UserError(
            "a number in the run's metrics or profile is not finite; profile it again if it is there"
        ) from None
    text = Template(part("page.html")).substitute(
        title=escape(report["title"]),
        digest=script_digest(script),
        style=style(),
        script=script,
        data=data,
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # names of files need not be text


def style() -> str:
    """Return the style of every page."""
    return Template(part("page.css")).substitute({f"c{n}": colour for n, colour in enumerate(COLOURS)})


def script_digest(script: str) -> str:
    """Return the digest by which a page's policy names the one script that may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def part(name: str) -> str:
    """Return a file that pages are made of."""
    return files("us3l.reporting").joinpath(name).read_text(encoding="utf-8")
