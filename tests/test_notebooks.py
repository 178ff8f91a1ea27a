"""The notebooks: their cells, shortened, and what they show as they lie in the repository."""

from pathlib import Path

import matplotlib as mpl
import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra dev")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DEVICES, LOSS = "photographs_to_three_devices", "a_new_loss_with_three_seeds"


def executed(name, shorter):
    """Return the names that all cells leave behind, run with shorter texts in place of some of theirs."""
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for long, short in shorter.items():
        assert code.count(long) == 1, long
        code = code.replace(long, short)
    names: dict = {}
    with mpl.rc_context({"backend": "agg"}):
        exec(compile(code, name, "exec"), names)
    return names


@pytest.mark.slow
def test_photographs_get_a_width_for_each_of_three_devices(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="needs us3l[deploy]")
    pytest.importorskip("onnxscript", reason="needs us3l[deploy]")
    monkeypatch.chdir(tmp_path)
    shorter = {
        "zip(digits.images, digits.target, strict=True)": "zip(digits.images[:500], digits.target)",
        "number < 1100": "number < 300",
        "epochs=6,": "epochs=2,",
        "batch_size=64,": "batch_size=64, size=16,",
    }
    names = executed(DEVICES, shorter)
    choices, accuracy = names["choices"], names["accuracy"]
    assert choices.keys() == {"camera", "phone", "server"}
    assert len(names["exported"].files) == len({choices["camera"].width, choices["phone"].width})
    assert all(Path(file).is_file() for file in names["exported"].files)
    rows = {row["width"]: row for row in names["evaluation"].rows}
    assert accuracy["server"] > rows[1.0]["linear_untrained"]
    for device, choice in choices.items():  # exported files are as good as what evaluation measured
        assert accuracy[device] == pytest.approx(rows[choice.width]["linear"], abs=1.5)


@pytest.mark.slow
def test_a_new_loss_is_compared_over_three_seeds():
    knn = executed(LOSS, {"(0, 1, 2), 60": "(0, 1, 2), 15"})["found"]
    assert {name for name, _ in knn} == {"InfoNCE", "Barlow Twins", "untrained"}
    for (name, width), values in knn.items():
        assert len(set(values)) == 3  # each seed is a run of its own
        assert name == "untrained" or sum(values) > sum(knn["untrained", width])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_lies_in_the_repository_was_run_and_names_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)], "run: python tools/notebooks.py"
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    text = path.read_text(encoding="utf-8")
    assert not [place for place in ("/home/", "/root/", "/tmp/", "/work/", "/Users/") if place in text]
    assert len(text) < 100_000
    assert path.name in (ROOT / "docs" / "tutorial.md").read_text()
