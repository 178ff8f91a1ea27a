"""A setting is written once: in a dataclass, from which the command line and the Python function follow."""

from __future__ import annotations

import inspect
import runpy
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, assert_type

import pytest

import us3l
from us3l.commands.command import converted, field_docs
from us3l.commands.main import COMMANDS
from us3l.commands.parse import parse
from us3l.system.errors import UserError
from us3l.width import Width

ROOT = Path(__file__).parents[2]
PYTHON = {name: getattr(us3l, name) for name in us3l._COMMANDS}


if TYPE_CHECKING:
    from us3l.collection.embedding import Embedded
    from us3l.deploy.exporting import Exported
    from us3l.deploy.picking import Picked
    from us3l.evaluation.compare_runs import Comparison
    from us3l.run.evaluations import EvaluationRecord

    def known_to_type_checkers(run: us3l.Run, net: us3l.Slimmable) -> None:
        """Checked by mypy, which complains about an unused "type: ignore": every setting has a name and a type."""
        assert_type(us3l.evaluate(run, "pets", widths=(1, "0.5"), label_share=0.1, seeds=3), EvaluationRecord)
        assert_type(us3l.export(net, 0.5, "onnx", out="bundle", int8=True), Exported)
        assert_type(us3l.pick("runs/a", latency_ms=5), Picked)
        assert_type(us3l.embed(run, ["a.jpg", "b.jpg"], width=0.5), Embedded)
        assert_type(us3l.compare(run, "runs/b", metric="knn"), Comparison)
        assert_type(us3l.pretrain("photos/", out="runs/photos", epochs=3, init=net.full, devices=2), us3l.Run)
        us3l.evaluate(run, label_shar=0.1)  # type: ignore[call-arg]
        us3l.evaluate(run, seeds="3")  # type: ignore[arg-type]
        us3l.profile(run, backends="onxx")  # type: ignore[arg-type]
        us3l.pick(net, latency=5)  # type: ignore[call-arg]
        us3l.pretrain("photos/", out="runs/photos", epoch=3)  # type: ignore[call-arg]
        us3l.pretrain("photos/", out="runs/photos", epochs="many")  # type: ignore[arg-type]
        us3l.report(run, image=False)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "setting", "meant"),
    [
        ("evaluate", "label_shar", "label_share"),
        ("profile", "bakends", "backends"),
        ("pick", "latency", "latency_ms"),
        ("export", "int_8", "int8"),
        ("report", "image", "images"),
        ("compare", "metrics", "metric"),
        ("detect", "step", "steps"),
        ("search", "candidate", "candidates"),
        ("embed", "spaces", "space"),
        ("reproduce", "seed", "seeds"),
    ],
)
def test_a_misspelt_setting_is_told(name, setting, meant):
    with pytest.raises(UserError, match=f"unknown setting '{setting}': did you mean '{meant}'"):
        PYTHON[name]("runs/a", **{setting: 1})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: us3l.evaluate("a", seeds="many"), "seeds: expected int, got 'many'"),  # type: ignore[arg-type]
        (lambda: us3l.evaluate("a", protocol="quick"), "protocol: expected 'fast' or "),  # type: ignore[arg-type]
        (lambda: us3l.evaluate("a", widths="wide"), "'wide' is not a width"),
        (lambda: us3l.compare(), "say which runs to compare"),
        (lambda: us3l.embed("a", "b", width=0.5, latency_ms=5), "not both"),
    ],
)
def test_a_wrong_value_is_told(call, message):
    with pytest.raises(UserError, match=message):
        call()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (tuple[Width, ...], [1, "0.5"], (1.0, 0.5)),
        (Literal["all"] | tuple[int, ...] | None, "all", "all"),
        (Literal["all"] | tuple[int, ...] | None, 8, (8,)),
        (tuple[Path, ...], "a.csv", (Path("a.csv"),)),
        (Path | None, None, None),
        (float | None, 3, 3.0),
    ],
)
def test_values_are_as_the_command_line_would_give_them(kind: Any, value: object, expected: object) -> None:
    assert converted(kind, value, "it") == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_is_explained_and_has_one_declaration(name):
    function = getattr(import_module(f"us3l.commands.{name}"), name)
    docs = field_docs(function.kind)
    assert [field.name for field in fields(function.kind) if not docs.get(field.name)] == []
    declared = [setting for base in function.kind.__mro__ for setting in vars(base).get("__annotations__", ())]
    again = {setting for setting in declared if declared.count(setting) > 1} - {"_"}
    assert again <= {"run", "out", "workers"}  # explained or required otherwise


@pytest.mark.parametrize("name", PYTHON)
def test_functions_show_their_settings(name):
    function = PYTHON[name]
    assert (function.__name__, function.__module__) == (name, f"us3l.commands.{name}")
    assert function.__doc__.split("\n\n", 1)[0]
    if name not in ("compare", "report", "pretrain"):
        assert "progress" in inspect.signature(function).parameters
    assert "progress:" in function.__doc__


def test_the_names_for_type_checkers_are_those_of_the_dataclasses():
    made = runpy.run_path(str(ROOT / "tools" / "setting_names.py"))["source"]()
    assert (ROOT / "us3l" / "commands" / "names.py").read_text(encoding="utf-8") == made, (
        "run python tools/setting_names.py"
    )


def test_the_packages_do_not_hide_the_functions():
    import us3l.reporting.build

    assert us3l.report is import_module("us3l.commands.report").report
    assert not [name for name in us3l.__all__ if (Path(us3l.__file__).parent / name).is_dir()]


def test_settings_for_python_are_not_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        parse(PYTHON["evaluate"].kind, "evaluate", ["runs/a", "--test-data", "b"])
    assert "--test-data" in capsys.readouterr().err
