"""Errors that are the input's fault, not the program's."""

from collections.abc import Iterable

MOST = 60  # words that a message lists


class UserError(ValueError):
    """Something about the input is wrong; the message says what and what to do.

    The command line prints the message as one line and exits with code 2.
    """


class Caution(UserWarning):
    """Something about the input should be known, but is not wrong. The command line prints the message as one line."""


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """Return what to say about a word that is not one of the known ones.

    Args:
        word: What was written.
        words: All the words that would have been understood.

    Returns:
        A question that names those which look alike, or else all of them (the first, of very many), to choose from.

    >>> did_you_mean("resnet", ["resnet18", "vit_tiny"]), did_you_mean("xyz", ["resnet18", "vit_tiny"])
    ("did you mean 'resnet18'?", 'choose from resnet18, vit_tiny')
    """
    words = list(words)
    close = alike(word, words)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = f" and {len(words) - MOST} more" if len(words) > MOST else ""
    return f"choose from {', '.join(words[:MOST])}{more}"


def brief(error: BaseException) -> str:
    """Return an error of somebody else's code in one line.

    >>> brief(KeyError("width")), brief(RuntimeError("sizes differ\\nat 1")), brief(RuntimeError())
    ("KeyError: 'width'", 'RuntimeError: sizes differ', 'RuntimeError')
    """
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]:.200}" if lines else type(error).__name__


def alike(word: object, words: Iterable[str]) -> list[str]:
    """Return up to three of the known words that look like a word, the nearest first."""
    from difflib import get_close_matches

    return get_close_matches(str(word), list(words))
