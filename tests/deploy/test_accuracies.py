"""What evaluations say of a run's widths."""

import json

import pytest

from tests.made_runs import result
from us3l.deploy.accuracies import Accuracies, read_accuracies
from us3l.run import Run
from us3l.run.evaluations import EVALUATIONS, EvaluationRecord
from us3l.system.errors import UserError


@pytest.fixture
def run(tmp_path):
    def write(name, rows, data=None, **more):
        EVALUATIONS.write(Run(tmp_path), EvaluationRecord([result(**row) for row in rows], data or name, name=name))
        path = EVALUATIONS.file(Run(tmp_path), name)
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
        return Run(tmp_path)

    return write


def test_accuracies_are_joined_by_network_not_by_the_name_of_its_width(small, run):
    named = float(small.widths[1]) + 1e-4
    assert small.canonical(named) == small.widths[1] != named
    folder = run("pets", [{"width": 1.0, "linear": 70.0, "knn": 60.0}, {"width": named, "linear": 65.0}])
    assert read_accuracies(folder, small) == Accuracies("pets", "linear", {1.0: 70.0, small.widths[1]: 65.0})


def test_knn_serves_where_there_is_no_linear_probe(small, run):
    assert read_accuracies(run("pets", [{"width": 1.0, "knn": 60.0}]), small) == Accuracies("pets", "knn", {1.0: 60.0})


def test_several_evaluations_need_a_name(small, run):
    run("pets", [{"width": 1.0, "linear": 70.0}])
    folder = run("dtd", [{"width": 1.0, "linear": 40.0}])
    with pytest.raises(UserError, match="several data sets, dtd, pets: say which counts"):
        read_accuracies(folder, small)
    assert read_accuracies(folder, small, "pets").percent == {1.0: 70.0}
    with pytest.raises(UserError, match="has no evaluation 'cars', only dtd, pets: evaluate it first"):
        read_accuracies(folder, small, "cars")


def test_no_evaluation(small, tmp_path):
    assert read_accuracies(Run(tmp_path), small) is None


def test_of_several_evaluations_of_one_data_set_the_preferred_counts(small, run):
    """After a fine-tuning, profile and pick refused to run without data."""
    run("pets-finetune", [{"width": 1.0, "finetuned": 90.0}], data="pets", protocol="finetune")
    run("pets", [{"width": 1.0, "linear": 70.0}], date="2026-01-01", protocol="fast")
    folder = run("pets-again", [{"width": 1.0, "linear": 71.0}], data="pets", date="2026-01-02", protocol="fast")
    assert read_accuracies(folder, small) == Accuracies("pets-again", "linear", {1.0: 71.0})
    assert read_accuracies(folder, small, "pets-finetune") == Accuracies("pets-finetune", "finetuned", {1.0: 90.0})
