"""What people type, as the commands expect it."""

from __future__ import annotations

import math
import re

from us3l.errors import UserError
from us3l.width import decode, mean_width

WIDTHS = {"--width", "--widths", "--min-width", "--individual", "--fixed-widths"}
MANY = {"--width": 1, "--widths": 1000}  # values that may follow
SYNONYMS = (("--width", "--widths"), ("--size", "--image-size"), ("--batch", "--batch-size"))


def plain(arguments: list[str], known: set[str]) -> list[str]:
    """A command line with widths as numbers, and with the names of settings that the command itself uses.

    >>> plain(["runs/a", "--widths", "1x", "0.5x", "--size=32"], {"--width", "--image-size"})
    ['runs/a', '--width', '1', '0.5', '--image-size=32']
    """
    names = {name: other for pair in SYNONYMS for name, other in (pair, pair[::-1]) if name not in known}
    result, flag, widths = [], "", 0
    for argument in arguments:
        before, equals, value = argument.partition("=")
        if argument.startswith("--"):
            flag = before.replace("_", "-")
            widths = MANY.get(flag, 0)
            before = names[flag] if names.get(flag) in known else before
        else:
            before, equals, value = "", "", argument
        if widths and argument != "-h" and (equals or not before):
            check_width(value)
            widths -= 1
        if flag in WIDTHS and re.fullmatch(r"[\d.][\d.d-]*x", value):
            value = value.removesuffix("x")
        result.append(before + equals + value)
    return result


def check_width(word: str) -> None:
    """That a word is a width, or one of the words that may stand for some: tyro would say why not in a box of lines."""
    try:
        if word in ("all", "None") or math.isfinite(mean_width(decode(word.removesuffix("x")))):
            return
    except ValueError:
        pass
    raise UserError(f"{word!r:.80} is not a width: it is a number, 0.5, or looks like 0.75-0.5 or 0.75d2-0.5d1")
