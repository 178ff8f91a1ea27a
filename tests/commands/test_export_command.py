"""`us3l export` as a user calls it."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import us3l
from tests.made_runs import result
from us3l.commands.main import main
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy.accuracies import find_accuracy
from us3l.deploy.exporting import BROWSER, COMPANIONS, Exported
from us3l.deploy.proof import Evidence, Proof
from us3l.evaluation.linear import linear_probe
from us3l.evaluation.prepare import calibrate_missing
from us3l.reporting.deploy_tables import exported_table
from us3l.run import Run
from us3l.run.bundles import Entry, read_bundle
from us3l.run.evaluations import EVALUATIONS, EvaluationRecord
from us3l.run.finetuned_networks import write_finetuned
from us3l.run.linear_maps import Probes, write_probes
from us3l.system.files import checksum

SIZE = 8


@pytest.fixture(scope="module")
def digits():
    return Evidence.of(load("digits", "train", SIZE, 100), load("digits", "test", SIZE, 20), Preprocessing.usual(SIZE))


@pytest.fixture
def run(tmp_path, digits):
    """A run's folder with a model, an evaluation and classifiers."""
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, digits.train, widths=[0.5, 1.0])
    net.metadata = {"preprocessing": {"size": SIZE, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}
    folder = tmp_path / "run"
    net.save(folder / "model")
    EVALUATIONS.write(Run(folder), EvaluationRecord([result(0.5, knn=60.0, linear=70.0)], "digits", name="digits"))
    with torch.no_grad():
        probe = linear_probe(net.at(0.5)(digits.train), digits.train_labels)
    linear = {0.5: (probe.weight, probe.bias)}
    write_probes(
        folder / "eval" / "digits.probes.safetensors", Probes(linear, digits.classes, "digits", Run(folder).weights)
    )
    return folder


def failing(capsys, *arguments):
    assert main([*map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_a_head_and_accuracies_of_other_weights_are_refused(run, digits, capsys):
    torch.manual_seed(1)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, digits.train, widths=[0.5, 1.0])
    net.save(run / "model", overwrite=True)
    arguments = ["export", run, "--width", 0.5, "--format", "safetensors"]
    assert "probes.safetensors belongs to another model" in failing(capsys, *arguments, "--head", "probe")
    assert "digits.json belongs to another model" in failing(capsys, *arguments)
    assert not (run / "export").exists()


def test_widths_and_formats_with_a_head(run, capsys):
    arguments = ["export", str(run), "--width", "0.5", "--format", "safetensors", "onnx", "--head", "probe"]
    assert main([*arguments, "--data", "digits"]) == 0
    output = capsys.readouterr().out
    assert "resnet18-0.5x-probe-digits.onnx" in output
    assert "proved on 7 images of digits" in output
    bundle = read_bundle(run / "export")
    assert {path.name for path in bundle.folder.iterdir()} == {
        *("resnet18-0.5x-probe-digits.onnx", "resnet18-0.5x-probe-digits.safetensors"),
        *("manifest.json", ".lock", *COMPANIONS, *BROWSER),
    }
    for entry in bundle.entries:
        assert entry.accuracy == {"data": "digits", "linear": 70.0, "knn": 60.0}
        assert entry.classes == [str(digit) for digit in range(10)]
        assert entry.weights == checksum(run / "model" / "weights.safetensors")
    assert bundle.preprocessing.size == SIZE


def test_a_fine_tuned_network(run, digits):
    net = us3l.load(run)
    whole = torch.nn.Sequential(net.carve(0.5), torch.nn.Linear(net.carve(0.5)(digits.test[:1]).shape[1], 10)).eval()
    record = EvaluationRecord([], classes=digits.classes, weights=Run(run).weights, name="digits-finetune")
    write_finetuned(Run(run), record, 0.5, whole.state_dict())
    assert main(["export", str(run), "--widths", "0.5x", "--format", "safetensors", "--head", "finetuned"]) == 0
    (entry,) = read_bundle(run / "export").entries
    assert entry.head == "finetuned-digits-finetune"
    state = load_file(run / "export" / "resnet18-0.5x-finetuned-digits-finetune.safetensors")
    assert torch.equal(state["head.weight"], whole[1].weight)
    assert main(["export", str(run), "--widths", "1", "--head", "finetuned"]) == 2


def test_without_images_noise_serves_and_is_named(run, capsys):
    assert main(["export", str(run), "--width", "0.5", "1", "--format", "safetensors"]) == 0
    output = capsys.readouterr().out
    assert "proving on noise" in output
    assert "proved on noise" in output
    assert [entry.width for entry in read_bundle(run / "export").entries] == [0.5, 1.0]


def test_a_width_that_the_run_left_out_is_calibrated_when_asked_for(run, capsys):
    (run / "config.yaml").write_text("data: digits\n")
    before = (run / "model" / "statistics.safetensors").read_bytes()
    assert main(["export", str(run), "--widths", "0.75", "0.5", "--format", "safetensors"]) == 0
    assert "widths that the run left out, on digits: 0.75x" in " ".join(capsys.readouterr().out.split())
    assert [entry.width for entry in read_bundle(run / "export").entries] == [0.5, 0.75]
    state = load_file(run / "export" / "resnet18-0.75x.safetensors")
    net = us3l.load(run)
    assert not net.calibrated(0.75)
    images = load("digits", "train", SIZE)
    calibrate_missing(net, images, [0.75], Preprocessing.of(net))
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.carve(0.75).state_dict().items())
    assert (run / "model" / "statistics.safetensors").read_bytes() == before
    (run / "config.yaml").write_text("data: gone/away\n")
    assert "0.6 is not calibrated, and there are no images to do it: gone/away" in failing(
        capsys, "export", run, "--widths", 0.6
    )


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (Proof("7 images", difference=2e-6), "differs by 2e-06"),
        (Proof("7 images", cosine=0.9994, judge="head", float_accuracy=40.0, int8_accuracy=39.8), "40.0 -> 39.8 %"),
    ],
)
def test_no_number_is_cut_at_80_columns(proof, words):
    files = {"resnet18-0.25x-finetuned-cifar100-finetune-int8.safetensors": ""}
    entry = Entry(0.25, "safetensors", False, files, 46_500, 4_240_000, 189_000, 64)
    written = io.StringIO()
    Console(width=80, file=written).print(exported_table(Exported(Path(), [(entry, proof)])))
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(" ".join(lines).split())
    for text in ("0.19 MB", "46.5 k", "4.24 M", *words.split()):
        assert text in shown
    assert "…" not in shown


def test_bad_input_is_one_line(run, tmp_path, capsys):
    assert "name some by --data" in failing(capsys, "export", run, "--width", 0.5, "--format", "onnx", "--int8")
    assert "no such" in failing(capsys, "export", run, "--width", 0.5, "--data", tmp_path / "none")
    assert "not calibrated" in failing(capsys, "export", run, "--width", 0.75)
    assert "evaluate that width on digits" in failing(capsys, "export", run, "--width", 1, "--head", "probe")
    assert "only digits" in failing(capsys, "export", run, "--width", 0.5, "--head", "cifar10")
    probes = run / "eval" / "digits.probes.safetensors"
    (run / "eval" / "other.probes.safetensors").write_bytes(probes.read_bytes())
    assert "--head digits" in failing(capsys, "export", run, "--width", 0.5, "--head", "probe")
    for path in (run / "eval").glob("*.probes.safetensors"):
        path.unlink()
    assert "evaluate it on labelled data" in failing(capsys, "export", run, "--width", 0.5, "--head", "probe")
    assert not (run / "export").exists()


def test_heads_and_accuracies_are_those_of_the_same_network(run):
    net = us3l.load(run)
    width = net.canonical(0.5)
    assert find_accuracy(Run(run), net, width) == {"data": "digits", "linear": 70.0, "knn": 60.0}
    assert find_accuracy(Run(run), net, 1.0) is None
    assert find_accuracy(Run(run), net, 0.5, "cifar10") is None
