import re
from pathlib import Path

import pytest

import us3l

README = Path(__file__).parents[1] / "README.md"
JOURNEY, NETWORK = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.usefixtures("photos", "small_networks")
def test_the_script_of_the_readme_goes_from_a_folder_to_an_exported_file(capsys):
    assert len([line for line in JOURNEY.splitlines() if line.strip()]) <= 15
    names: dict = {}
    exec(JOURNEY, names)
    *accuracies, last = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in accuracies] == ["1.0x", "0.5x", "0.25x"]
    (file,) = names["exported"].files
    assert last == f"{names['choice'].width}x is in {file}"
    assert file.suffix == ".onnx"
    assert file.is_file()
    assert names["half"].training is False


def test_the_network_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(NETWORK, names)
    assert len(names["net"].widths) == 19  # as the comment there says
    assert len(us3l.load(tmp_path / "model").widths) == 19


def test_the_links_of_the_documentation_lead_somewhere():
    root = README.parent
    for page in [*root.glob("*.md"), *root.glob("docs/**/*.md"), root / "benchmarks" / "README.md"]:
        for target, heading in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not heading or heading in anchors(file), f"{page.name} links to {target}#{heading}"


def anchors(page: Path) -> set[str]:
    """What its headings are called in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_tutorial_shows_the_table_of_the_results():
    tables = [
        re.findall(r"^ +[\d.]+x .*\+.*$", (README.parent / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
        for page in ("tutorial.md", "lab/results-earlier.md")
    ]
    assert len(tables[0]) == 4
    assert set(tables[0]) <= set(tables[1])
