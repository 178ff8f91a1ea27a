"""Errors: an ordinary exception in Python, one helper for words that are nearly right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import us3l
from us3l.storage import load
from us3l.system.files import read_json

SOURCES = Path(us3l.__file__).parent


def test_a_user_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="did you mean 'resnet18'"):
        us3l.create("resnet19")


def test_only_one_place_looks_for_close_matches() -> None:
    users = [path.relative_to(SOURCES) for path in SOURCES.rglob("*.py") if "difflib" in path.read_text()]
    assert users == [Path("system/errors.py")]


def test_who_rewords_value_errors_leaves_user_errors_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(us3l.UserError, match=r"^cannot read \S*x.json: it is not a regular file$") as caught:
        read_json(tmp_path / "x.json")
    assert str(caught.value).count("cannot read") == 1
    net = us3l.create("resnet18", base=8, stem="cifar")
    net.save(tmp_path / "model")
    described = json.loads((tmp_path / "model" / "model.json").read_text())
    (tmp_path / "model" / "model.json").write_text(json.dumps(described | {"backbone": None, "family": "mine"}))
    with pytest.raises(us3l.UserError, match=r"of your own family 'mine': .* load\(path, family=...\)$"):
        load(tmp_path / "model")
