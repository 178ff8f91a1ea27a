"""The Python of the guides to data and evaluation runs."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["data.md", "evaluate.md"])
def test_the_python_of_the_guide_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(code, names)
    if page == "data.md":
        assert names["view2"].shape == (2, 3, 224, 224)
    else:
        assert [result.width for result in names["found"].results] == [1.0, 0.5]
