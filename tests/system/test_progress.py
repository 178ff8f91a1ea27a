from io import StringIO

import pytest
from rich.console import Console

from us3l.system import progress as module
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Screen, progress_of


def test_a_screen_prints_names_as_they_are_and_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(module, "PLAIN_EVERY", -1.0)
    text = StringIO()
    screen = Screen(Console(file=text, width=20))
    screen.say("photos [red] are [bold]here[/nothing]", "yellow")
    with screen.counting("embedding [x]", 10) as counting:
        counting.more(4)
    assert text.getvalue().splitlines()[0] == "photos [red] are [bold]here[/nothing]"
    assert text.getvalue().splitlines()[1].startswith("embedding [x]: 4/10, ")


def test_nothing_is_printed_unless_asked_for(capsys):
    for told in (None, "silent", SILENT):
        progress = progress_of(told)
        progress.say("a message")
        with progress.counting("embedding", 10) as counting:
            counting.more(10)
            counting.so_far(10, 10)
    assert capsys.readouterr() == ("", "")
    progress_of("lines").say("a message")
    assert capsys.readouterr().out == "a message\n"


def test_an_object_of_ones_own_will_do_but_not_any_word():
    mine = Screen(Console(quiet=True))
    assert progress_of(mine) is mine
    with pytest.raises(UserError, match="progress='loud' must be 'silent', 'lines', 'live'"):
        progress_of("loud")  # type: ignore[arg-type]


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch):
    monkeypatch.setattr(module, "PLAIN_EVERY", -1.0)
    text = StringIO()
    console = Console(file=text, force_terminal=True, _environ={"TERM": "dumb"})
    with Screen(console).counting("embedding", 10) as counting:
        counting.more(4)
    assert "embedding: 4/10" in text.getvalue()
