"""A lost display ends nothing, and no name does anything to a screen."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

import us3l
from us3l.commands.main import main
from us3l.system.console import Console
from us3l.system.progress import Counting
from us3l.system.streams import Lasting, printable

TINY = "--images 40 --max-steps 4 --batch-size 8 --base 8 --size 8 --calibration 8 --accelerator cpu".split()
TINY += "--hidden 16 --predictor 16 --dim 8".split()


class Gone(io.StringIO):
    encoding = "utf-8"

    def write(self, *_):
        raise OSError(5, "Input/output error")  # what a closed terminal says

    flush = write


def test_a_stream_that_is_gone():
    console = Console(file=Gone(), force_terminal=True)
    console.say("hello")
    console.print(Table("one"))
    with Counting(console, "counting", 2) as counting:
        counting.more(1)
    Lasting(Gone()).flush()
    closed = io.StringIO()
    closed.close()
    Lasting(closed).write("hello")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_stream_without_the_letters(encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=40)
    console.say("±0.5 €uro \udc80")
    table = Table("naïve →")
    table.add_row("[bold]é")
    console.print(table)
    console.file.flush()
    written = stream.buffer.getvalue().decode(encoding)
    assert "0.5 \\u20acuro \\udc80" in written
    assert "->" in written
    assert "[bold]" in written


def test_names_are_shown_and_not_obeyed():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    name = "cat [red] :cat: \x1b]0;title\x07\x1b[2J\u202e.png"
    console.say(name)
    console.print(name)
    table = Table(name)
    table.add_row(name)
    console.print(table)
    with Counting(console, name, 3) as counting:
        counting.more(1)
    shown = out.getvalue()
    assert shown.count("[red] :cat:") >= 4
    for forbidden in ("\x1b]0", "\x07", "\x1b[2J", "\u202e"):
        assert forbidden not in shown
    assert printable("a\u00a0b\tc\nd é 漢") == "a\u00a0b\tc\nd é 漢"


def test_every_console_is_the_safe_one():
    """Commands construct us3l's console, and print only what they wrote themselves."""
    for path in (Path(us3l.__file__).parent / "commands").glob("*.py"):
        code = path.read_text().split("if TYPE_CHECKING:")
        runtime = code[0] + "".join(part.split("\n\n\n", 1)[-1] for part in code[1:])
        if path.name != "data.py":  # which only names the type
            assert "from rich.console import Console" not in runtime, path


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **more}


def test_nobody_reads():
    read, write = os.pipe()
    os.close(read)
    for arguments in (["pretrain", "--help"], ["recipes"]):
        command = [sys.executable, "-m", "us3l", *arguments]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment(), check=False)
        assert (done.returncode, done.stderr) == (0, "")
    os.close(write)


def test_a_run_whose_display_is_gone_comes_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(sys, "stderr", Gone())
    assert main(["pretrain", "digits", "--out", str(tmp_path / "run"), *TINY]) == 0
    assert (tmp_path / "run" / "model" / "model.json").exists()


def test_a_terminal_that_only_knows_ascii(tmp_path, monkeypatch):
    screens = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", screens[0])
    monkeypatch.setattr(sys, "stderr", screens[1])
    folder = tmp_path / "naïve ± [red] $x$ \x1b[2J"
    assert main(["pretrain", "digits", "--out", str(folder), *TINY]) == 0
    said = b"".join(screen.buffer.getvalue() for screen in screens)
    assert b"\\x1b" in said
    assert b"\x1b" not in said


def test_a_closed_terminal_does_not_end_the_work():
    code = "import os, signal; from us3l.system.streams import lasting_display\n"
    code += "with lasting_display():\n    os.kill(os.getpid(), signal.SIGHUP)\n    print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout == "still here\n"
