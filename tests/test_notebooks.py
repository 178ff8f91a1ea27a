"""The notebooks, run as in Jupyter, and what they show as they lie in the repository."""

import json
import runpy
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="needs the extra dev")
nbformat = pytest.importorskip("nbformat", reason="needs the extra dev")
pytest.importorskip("ipykernel", reason="needs the extra dev")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TOOL = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))
DEVICES, LOSS = "photographs_to_three_devices", "a_new_loss_with_three_seeds"


def results(name, expression, folder, monkeypatch, shorter):
    """Run all cells with a text of theirs replaced, and one more that shows the value of an expression."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    source = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    assert sum(cell.source.count(shorter[0]) for cell in source.cells) == 1
    for cell in source.cells:
        cell.source = cell.source.replace(*shorter)
    source.cells.append(nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({expression}, default=float))"))
    path = folder / "notebook.ipynb"
    nbformat.write(source, path)
    return json.loads(TOOL["execute"](path, folder).cells[-1].outputs[0].text)


@pytest.mark.slow
def test_photographs_get_a_width_for_each_of_three_devices(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="needs us3l[deploy]")
    pytest.importorskip("onnxscript", reason="needs us3l[deploy]")
    expression = (
        "[{row['width']: [row['linear'], row['linear_untrained']] for row in evaluation.rows}, "
        "{device: choice.width for device, choice in choices.items()}, accuracy, [str(f) for f in exported.files]]"
    )
    linear, widths, accuracy, files = results(DEVICES, expression, tmp_path, monkeypatch, ("epochs=6,", "epochs=2,"))
    assert widths.keys() == {"camera", "phone", "server"}
    assert len(files) == len({widths["camera"], widths["phone"]})
    assert all((tmp_path / file).is_file() for file in files)
    assert accuracy["server"] > linear["1.0"][1]  # better than before training
    for device, width in widths.items():  # exported files are as good as what evaluation measured
        assert accuracy[device] == pytest.approx(linear[str(width)][0], abs=1.5)


@pytest.mark.slow
def test_a_new_loss_is_compared_over_three_seeds(tmp_path, monkeypatch):
    expression = "[[name, width, values] for (name, width), values in found.items()]"
    found = results(LOSS, expression, tmp_path, monkeypatch, ("(0, 1, 2), 60", "(0, 1, 2), 25"))
    knn = {(name, width): values for name, width, values in found}
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


def test_there_are_two_and_the_guide_names_them():
    assert [path.stem for path in NOTEBOOKS] == sorted([DEVICES, LOSS])
    guide = (ROOT / "docs" / "tutorial.md").read_text()
    assert all(path.name in guide for path in NOTEBOOKS)
