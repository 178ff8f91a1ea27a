"""The Python of the guides runs from top to bottom, and does what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import us3l

DOCS = Path(__file__).parents[1] / "docs"


def executed(*pages: str) -> dict[str, Any]:
    """What the code of some pages leaves behind, one after the other."""
    names: dict[str, Any] = {"__name__": "guide"}
    for page in pages:
        for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.usefixtures("small_networks")
def test_use_it_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = executed("python.md")
    assert [row["width"] for row in names["evaluation"].rows] == [1.0, 0.5]
    assert names["choice"].fits
    assert names["exported"].files[0].is_file()
    assert names["page"].is_file()
    assert names["collected"].done["embedding (images x networks)"] > 0
    assert not Path("runs/typo").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("photos", "small_networks")
def test_the_guides_from_images_to_files() -> None:
    names = executed("pretrain.md", "evaluate.md", "export.md")
    assert names["run"].finished
    assert [row["width"] for row in names["evaluation"].rows] == [1.0, 0.5]
    assert us3l.Run("runs/photos").evaluations["photos"].percent("linear").keys() == {1.0, 0.5}
    assert [file.exists() for file in names["exported"].files] == [True, True]


def test_every_verb_is_in_the_guide() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    assert [name for name in us3l._COMMANDS if f"`us3l.{name}(" not in page] == []
