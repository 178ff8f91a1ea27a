"""A run's folder: every path, and every file in it, each with one reader and one writer."""

from us3l.run.folder import Run

__all__ = ["Run"]
