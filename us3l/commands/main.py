"""`us3l COMMAND ...`: finds the command, and turns errors into one line each."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Any

from us3l import __version__
from us3l.system.devices import keep_freed_memory
from us3l.system.errors import Caution, UserError, did_you_mean
from us3l.system.stopping import Interrupted
from us3l.system.streams import lasting_display, one_line

SHOW_WARNING = warnings.showwarning
COMMANDS = {
    "demo": "the whole journey on a built-in data set, in minutes",
    "pretrain": "train one network once, without labels, for every width",
    "recipes": "the names of recipes, methods and cases that pretrain knows",
    "evaluate": "kNN, linear probe, few labels, fine-tuning, at the widths you name",
    "compare": "several runs side by side",
    "report": "one page about a run or several, to open in a browser",
    "reproduce": "a table of the paper: train its rows, compare with its numbers",
    "detect": "detection and instance segmentation on a sub-network",
    "search": "the best sub-network within a budget, without labels",
    "profile": "cost and latency of every width on this device",
    "pick": "the best width within a budget",
    "export": "plain networks as files: torch, safetensors, ONNX, OpenVINO; INT8",
    "embed": "every image of a folder as a vector, in one file",
    "serve": "answer over HTTP, at the width that keeps the latency",
    "predict": "the class of every image of a folder, or none where it is not sure",
    "find": "nearest images in an embedded collection, and near-duplicates",
    "publish": "a model or a bundle to the Hugging Face Hub",
    "download": "download a known data set",
    "doctor": "check and measure this machine, and recommend settings",
    "backbones": "the available networks, and what they cost",
}

WITHOUT_RUNS = ("demo", "pretrain", "recipes", "reproduce", "download", "doctor", "backbones")  # to read
HELP = f"""us3l {__version__}: pre-train one vision network once, without labels, and run it at any width.

usage: us3l COMMAND ...

{chr(10).join(f"  {name:<10}{text}" for name, text in COMMANDS.items())}

examples:
  us3l demo
  us3l pretrain photos/ --out runs/photos
  us3l evaluate runs/photos --data labelled-photos/
  us3l profile runs/photos --backends torch onnx
  us3l pick runs/photos --latency-ms 5
  us3l export runs/photos --width 0.37 --format onnx --int8
  us3l report runs/photos

`us3l COMMAND --help` explains it. All that read runs take --backbone MODULE:NAME, for networks of your own.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command line, that of the process by default; the exit code."""
    with lasting_display(), warnings.catch_warnings():
        warnings.showwarning = tell
        return answer(sys.argv[1:] if arguments is None else arguments)


def tell(message: Warning | str, category: type[Warning], *where: Any, **how: Any) -> None:
    """A caution is one line; warnings of other origin look as Python shows them."""
    if issubclass(category, Caution):
        complain(str(message))
    else:
        SHOW_WARNING(message, category, *where, **how)


def complain(text: str) -> None:
    """One line on standard error; names in it may hold anything."""
    from us3l.commands.screen import as_typed

    print(f"us3l: {one_line(as_typed(text))}", file=sys.stderr)


def answer(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"us3l {__version__}")
        return 0
    try:
        return run(arguments[0], arguments[1:])
    except UserError as error:
        complain(str(error))
        return 2
    except Interrupted as stop:
        complain(str(stop))
        return 130
    except KeyboardInterrupt:
        print("us3l: interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # no such folder, not allowed, disk full
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "system error"
        complain(f"{where}: {error.strerror or error}")
        return 2


def run(name: str, arguments: list[str]) -> int:
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}: {did_you_mean(name, COMMANDS)} See --help")
    from us3l.families.user_families import import_family, using_family

    keep_freed_memory()
    family = None
    if name not in WITHOUT_RUNS and "--backbone" in arguments[:-1]:
        place = arguments.index("--backbone")
        family, arguments = import_family(arguments[place + 1]), arguments[:place] + arguments[place + 2 :]
    from dataclasses import replace

    from us3l.commands.parse import parse
    from us3l.commands.screen import CommandScreen

    module, screen = import_module(f"us3l.commands.{name}"), CommandScreen()
    settings = replace(parse(getattr(module, name).kind, name, arguments), progress=screen)
    with using_family(family):
        return module.main(settings, screen) or 0
