"""Errors that are the input's fault, not the program's."""

from collections.abc import Iterable


class UserError(ValueError):
    """Something about the input is wrong; the message says what and what to do.

    The command line prints the message as one line and exits with code 2.
    """


class Caution(UserWarning):
    """Something about the input should be known, but is not wrong. The command line prints the message as one line."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """What to say about a word that is not one of the known ones.

    Args:
        word: What was given.
        known: All the words that would have been understood.

    Returns:
        A question that names those which look alike, or else all of them, to choose from.

    >>> did_you_mean("resnet", ["resnet18", "vit_tiny"]), did_you_mean("xyz", ["resnet18", "vit_tiny"])
    ("did you mean 'resnet18'?", 'choose from resnet18, vit_tiny')
    """
    known = list(known)
    close = alike(word, known)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose from {', '.join(known)}"


def alike(word: object, known: Iterable[str]) -> list[str]:
    """Up to three of the known words that look like a word, the nearest first."""
    from difflib import get_close_matches

    return get_close_matches(str(word), list(known))
