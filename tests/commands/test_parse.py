"""What every command line understands."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import pytest

from us3l.commands.backbones import Backbones
from us3l.commands.detect import Detect
from us3l.commands.evaluate import Evaluate
from us3l.commands.export import Export
from us3l.commands.parse import parse
from us3l.commands.pretrain import Pretrain
from us3l.commands.profile import ProfileCommand
from us3l.system.errors import UserError


@pytest.mark.parametrize(
    ("kind", "line", "name", "value"),
    [
        (Evaluate, "runs/a --widths 1x 0.5x", "widths", (1.0, 0.5)),
        (Evaluate, "runs/a --width 0.5x", "widths", (0.5,)),
        (Evaluate, "runs/a --widths all", "widths", "all"),
        (Export, "runs/a --widths .37x 1", "width", (0.37, 1.0)),
        (Export, "--widths 0.5x --format torch -- runs/a", "width", (0.5,)),
        (ProfileCommand, "runs/a --widths 1x 0.25", "widths", (1.0, 0.25)),
        (ProfileCommand, "runs/a --batch 1 8", "batch_size", (1, 8)),
        (ProfileCommand, "runs/a --image-size 64", "size", 64),
        (Detect, "runs/a --data voc --widths 0.5x", "width", 0.5),
        (Backbones, "--widths 1x 0.37x", "widths", (1.0, 0.37)),
        (Backbones, "--image-size 32", "size", 32),
    ],
)
def test_widths_as_tables_print_them_and_either_name_of_a_setting(kind, line, name, value):
    assert attrgetter(name)(parse(kind, "test", line.split())) == value


def test_settings_of_a_run_are_those_that_are_typed():
    line = "digits --out a --min-width 0.5x --individual 0.75x --fixed-widths 1x 0.5x --image-size 16 --batch 8"
    given = parse(Pretrain, "pretrain", line.split())
    assert (given.data, str(given.out)) == ("digits", "a")
    assert given.settings == {
        "min_width": 0.5,
        "individual": 0.75,
        "fixed_widths": (1.0, 0.5),
        "size": 16,
        "batch_size": 8,
    }  # and none that was not typed


def test_only_widths_end_with_x(capsys):
    with pytest.raises(SystemExit):
        parse(Evaluate, "evaluate", "runs/a --lr 0.5x".split())
    assert "0.5x" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["0.75-x", "0.5d", "0.5d-1", "0.5-0.5d2", "0..5-1", "1e"])
def test_what_is_not_a_width_is_one_line(name):
    for flag in (["--widths", "1", name], ["--width", name], [f"--widths={name}"]):
        with pytest.raises(UserError, match="is not a width: give a number") as told:
            parse(Evaluate, "evaluate", ["runs/a", *flag])
        assert repr(name.removesuffix("x")) in str(told.value)
    with pytest.raises(SystemExit) as asked:
        parse(Evaluate, "evaluate", ["--widths", "1", "-h"])
    assert asked.value.code == 0


@dataclass(frozen=True)
class Optional:
    count: int | None = 3
    kind: Literal["a", "b"] | None = None
    widths: Literal["all"] | tuple[float, ...] | None = None


def test_what_may_be_none_is_named_by_what_else_it_is(capsys):
    assert parse(Optional, "test", "--count None --kind b --widths 1 0.5".split()) == Optional(None, "b", (1.0, 0.5))
    assert parse(Optional, "test", "--kind None --widths None".split()) == Optional()
    with pytest.raises(SystemExit):
        parse(Optional, "test", ["--help"])
    told = capsys.readouterr().out
    assert "--count INT" in told
    assert "--kind {a,b}" in told
    assert "{None" not in told
