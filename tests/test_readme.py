import re
from pathlib import Path

import us3l

README = Path(__file__).parents[1] / "README.md"


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert len(names["net"].widths) == 19  # as the comment there says
    assert len(us3l.load(tmp_path / "model").widths) == 19


def test_the_links_of_the_documentation_lead_somewhere():
    for page in [README, *README.parent.glob("docs/*.md"), README.parent / "benchmarks" / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tutorial_shows_the_table_of_the_results():
    tables = [
        re.findall(r"^ +[\d.]+x .*\+.*$", (README.parent / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
        for page in ("tutorial.md", "results.md")
    ]
    assert len(tables[0]) == 4
    assert set(tables[0]) <= set(tables[1])
