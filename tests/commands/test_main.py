"""The commands as a user calls them: good input, bad input, and nothing lost."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from us3l.commands.evaluate import Evaluate
from us3l.commands.export import Export
from us3l.commands.main import COMMANDS, main
from us3l.commands.parse import flags, parse
from us3l.commands.pretrain import COMMON, Pretrain
from us3l.commands.profile import ProfileCommand
from us3l.commands.report import Report
from us3l.commands.screen import program
from us3l.deploy.exporting import COMPANIONS
from us3l.run import Run
from us3l.run.config import write_config
from us3l.system.files import read_json
from us3l.training.run_config import config_of

TINY = "--max-steps 4 --batch-size 8 --base 8 --size 8 --calibration 8 --accelerator cpu".split()
TINY += "--hidden 16 --predictor 16 --dim 8".split()


@pytest.fixture
def photos(tmp_path):
    """A folder of images in two classes, of many sizes, one of them damaged."""
    random = np.random.default_rng(0)
    for number in range(24):
        folder = tmp_path / "photos" / ("cats" if number % 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (9 + number, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.{'jpg' if number % 3 else 'png'}")
    (tmp_path / "photos" / "cats" / "broken.jpg").write_bytes(b"\xff\xd8 not much of an image")
    return tmp_path / "photos"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["pretrain", "digits", "--out", str(folder), "--images", "40", *TINY]) == 0
    return folder


@pytest.mark.pages
def test_from_a_folder_of_photos_to_files(photos, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["pretrain", str(photos), "--out", str(run), *TINY]) == 0
    output = capsys.readouterr().out
    assert "skipped 1 damaged images" in output
    assert "broken.jpg" in output
    assert f"the report page is {run / 'report.html'}" in output
    assert (run / "report.html").exists()
    assert "broken.jpg" in (run / "train.log").read_text()

    assert main(["evaluate", str(run), "--widths", "1", "0.37"]) == 0
    assert "0.37" in capsys.readouterr().out
    results = json.loads((run / "eval" / "photos.json").read_text())
    assert [row["width"] for row in results["widths"]] == [1.0, 0.37]
    assert all(0 <= row[name] <= 100 for row in results["widths"] for name in ("knn", "linear", "linear_untrained"))
    assert Image.open(run / "eval" / "photos.png").size[0] > 500

    assert main(["export", str(run), "--width", "0.37", "0.5"]) == 0
    written = {path.name for path in (run / "export").iterdir() if path.name != ".lock"}
    assert written == {"resnet18-0.37x.pt2", "resnet18-0.5x.pt2", "manifest.json", *COMPANIONS}


@pytest.mark.pages
def test_the_demo_tells_what_to_do_next(tmp_path, capsys, monkeypatch):
    from us3l.training import recipes

    tiny, text = recipes.RECIPES["digits"]
    small = recipes.replace(tiny, network=recipes.Network(base=8), epochs=1, images=100, calibration=32)
    monkeypatch.setitem(recipes.RECIPES, "digits", (small, text))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)  # of an earlier demo
    assert main(["demo"]) == 0
    output = capsys.readouterr().out
    assert "us3l export runs/demo-2 --width 0.5\n" in output
    assert "us3l evaluate runs/demo-2 --widths all\n" in output
    assert len(json.loads((tmp_path / "runs/demo-2/eval/digits.json").read_text())["widths"]) == 9


def test_the_recipe_follows_the_data_wherever_it_stands(run, photos, tmp_path):
    assert main(["pretrain", *TINY, "--images", "40", "digits", "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "config.yaml").read_bytes() == (run / "config.yaml").read_bytes()
    assert main(["pretrain", *TINY, str(photos), "--out", str(tmp_path / "photos-run")]) == 0
    assert config_of(Run(tmp_path / "photos-run")).recipe.views.flip == 0.5
    assert config_of(Run(tmp_path / "run")).recipe.views.flip == 0.0


def test_a_narrower_range_of_widths(tmp_path, capsys):
    run = tmp_path / "run"
    arguments = ["pretrain", "digits", "--out", str(run), "--images", "40", *TINY, "--min-width", "0.6"]
    assert main([*arguments, "--method", "us-simsiam"]) == 0
    output = capsys.readouterr().out
    assert "none of the paper's three guidelines" in output
    assert "0.6x kNN" in output
    assert main(["evaluate", str(run), "--no-floor"]) == 0
    results = json.loads((run / "eval" / "digits.json").read_text())
    assert [row["width"] for row in results["widths"]] == [1.0, 0.9, 0.8, 0.7, 0.6]


def test_the_names_that_pretrain_knows(capsys):
    assert main(["recipes"]) == 0
    output = capsys.readouterr().out
    for name in ("mini", "us-simclr", "app-ablation/1 to /28"):
        assert name in output


def test_settings_of_a_run_are_accepted_back(run, tmp_path):
    again = tmp_path / "again"
    assert main(["pretrain", "digits", "--out", str(again), "--config", str(run / "config.yaml"), "--seed", "0"]) == 0
    for name in ("config.yaml", "metrics.jsonl", "model/weights.safetensors", "model/statistics.safetensors"):
        assert (again / name).read_bytes() == (run / name).read_bytes()


def test_resuming(run, capsys):
    assert main(["pretrain", "--out", str(run), "--resume"]) == 0
    assert "is finished" in capsys.readouterr().out
    assert main(["pretrain", "--out", str(run), "--resume", "--epochs", "77"]) == 2
    assert "keeps its settings" in capsys.readouterr().err


def test_evaluating_twice_gives_the_same_numbers(run):
    def evaluate():
        assert main(["evaluate", str(run), "--widths", "0.5", "--train-images", "60", "--test-images", "60"]) == 0
        found = read_json(run / "eval" / "digits.json")
        assert found.pop("date")
        return found

    assert evaluate() == evaluate()


def failing(capsys, *arguments) -> str:
    """The one line that a command says when its input is bad."""
    code = main([str(argument) for argument in arguments])
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert error.startswith("us3l: ")
    return error


def test_bad_input_gets_one_clear_line(photos, run, tmp_path, capsys):
    out = tmp_path / "new"
    (tmp_path / "empty").mkdir()
    assert "nowhere" in failing(capsys, "pretrain", tmp_path / "nowhere", "--out", out)
    assert "empty" in failing(capsys, "pretrain", tmp_path / "empty", "--out", out)
    assert "did you mean 'digits'" in failing(capsys, "pretrain", "digit", "--out", out)
    assert "did you mean 'mini'" in failing(capsys, "pretrain", photos, "--recipe", "mnii", "--out", out)
    assert "--out" in failing(capsys, "pretrain", photos)
    assert "say which images to learn from" in failing(capsys, "pretrain", "--out", out)
    assert "samples=0" in failing(capsys, "pretrain", photos, "--out", out, "--samples", 0)
    assert "no file" in failing(capsys, "pretrain", photos, "--out", out, "--config", tmp_path / "none.yaml")
    assert "not a run" in failing(capsys, "pretrain", "--out", tmp_path / "empty", "--resume")
    assert not out.exists()

    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    assert "--resume" in failing(capsys, "pretrain", "digits", "--out", run)
    assert "0.25 to 1" in failing(capsys, "evaluate", run, "--widths", 0.1, "--name", "new")
    assert "0.25 to 1" in failing(capsys, "export", run, "--width", 1.5)
    assert "no folder" in failing(capsys, "export", tmp_path / "none", "--width", 1)
    assert "holds no model" in failing(capsys, "evaluate", photos)
    assert "did you mean 'evaluate'" in failing(capsys, "evalute", run)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))


def test_models_do_not_go_where_they_cannot_be_read(run, tmp_path, capsys):
    out = tmp_path / os.fsdecode(b"ru\xff")
    assert "not UTF-8" in failing(capsys, "pretrain", "digits", "--out", out)
    assert "not UTF-8" in failing(capsys, "export", run, "--width", 0.5, "--out", out)
    assert not out.exists()


def test_places_that_cannot_be_written(run, capsys):
    assert "Not a directory" in failing(capsys, "pretrain", "digits", "--out", "/dev/null/run", "--images", 40, *TINY)
    assert "Not a directory" in failing(capsys, "export", run, "--width", 0.5, "--out", "/dev/null/out")


def test_labels_are_needed_to_evaluate(photos, run, tmp_path, capsys):
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(photos.rglob("*.png")):
        path.rename(flat / f"{number}.png")
    assert "has no labels" in failing(capsys, "evaluate", run, "--data", flat)


def test_damaged_and_unfinished_models(run, tmp_path, capsys):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    weights = copy / "model" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "cut short" in failing(capsys, "export", copy, "--width", 0.5)
    shutil.rmtree(copy / "model")
    assert "not finished" in failing(capsys, "export", copy, "--width", 0.5)


def test_exports_are_not_overwritten(run, tmp_path, capsys):
    arguments = ["export", str(run), "--width", "0.5", "--format", "safetensors", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "already exists" in failing(capsys, *arguments)
    assert main([*arguments, "--overwrite"]) == 0


def test_help_needs_no_torch():
    commands = [[name, "--help"] for name in ("pretrain", "detect", "export", "embed")]
    for arguments in (["--help"], ["--version"], *commands):
        code = f"import sys; from us3l.commands.main import main; main({arguments})"
        check = "; print('heavy:', [m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
        wrapped = f"try:\n    exec({code!r})\nexcept SystemExit: pass\nimport sys{check}"
        done = subprocess.run([sys.executable, "-c", wrapped], capture_output=True, text=True, check=True)
        assert "heavy: []" in done.stdout
    assert main(["--help"]) == 0


def helped(capsys, *arguments) -> list[str]:
    """The lines of a help, after which a command may end the process."""
    with suppress(SystemExit):
        assert main(list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", [*COMMANDS, "pretrain --help-all"])
def test_every_command_has_help_with_examples_for_80_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = helped(capsys, *name.split(), *([] if "--help-all" in name else ["--help"]))
    assert f"us3l {name.split()[0]}" in "\n".join(lines)
    assert "examples:" in lines
    assert [line for line in lines if len(line) > 80] == []


def test_the_first_help_of_pretrain_is_short_and_names_settings_that_exist(capsys):
    lines = helped(capsys, "pretrain", "--help")
    assert len(lines) < 120
    named = {word for line in lines for word in re.findall(r"--[a-z][a-z-]*", line)}
    assert {"--out", "--resume", "--epochs", "--size", "--method"} < named
    assert {name.replace("_", "-") for name in COMMON} <= {word.removeprefix("--") for word in named}
    assert {word.replace("--no-", "--") for word in named} - flags(Pretrain) <= {
        "--help", "--help-all", "--nproc-per-node", "--individual", "--stem", "--mean", "--std"
    }  # fmt: skip
    everything = " ".join(helped(capsys, "pretrain", "--help-all"))
    assert [flag for flag in flags(Pretrain) - {"--data", "--network", "--progress"} if flag not in everything] == []


@pytest.mark.parametrize("name", [*COMMANDS, "pretrain --help-all"])
def test_no_help_says_what_a_default_is_twice(name, capsys):
    text = " ".join(helped(capsys, *name.split(), *([] if "--help-all" in name else ["--help"])))
    assert not re.search(r"\(default: None\)|\(default: \)|\(default: [^)]*\)\. \(default", text)


def only_write_settings(config, run, *_):
    write_config(run.config_file, config)


@pytest.mark.parametrize(
    ("settings", "width"), [("", 0.5), ("--min-width 0.6", 0.6), ("--method byol --individual 0.5", 1.0)]
)
def test_a_finished_run_tells_what_to_do_next(tmp_path, capsys, monkeypatch, settings, width):
    """And what it says can be said."""
    monkeypatch.setattr("us3l.training.loop.train", only_write_settings)
    assert main(["pretrain", "digits", "--out", str(tmp_path / "a run"), *settings.split()]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  us3l ")]
    assert [shlex.split(line)[1:3] for line in said] == [
        [name, str(tmp_path / "a run")] for name in ("report", "evaluate", "profile", "export")
    ]
    for line in said:
        name, *arguments = shlex.split(line)[1:]
        kind = {"report": Report, "evaluate": Evaluate, "profile": ProfileCommand, "export": Export}[name]
        command = parse(kind, name, arguments)
        assert name != "export" or command.width == (width,)


def test_the_stem_goes_by_the_size(tmp_path, capsys, monkeypatch):
    asked = []
    image = Image.new("RGB", (240, 240))
    (tmp_path / "photos").mkdir()
    image.save(tmp_path / "photos" / "one.jpg")
    monkeypatch.chdir(tmp_path)

    def asks(config, run, *_):
        asked.append(config.resolved().recipe)
        write_config(run.config_file, config)

    monkeypatch.setattr("us3l.training.loop.train", asks)
    for size, more, stem in [(32, [], "cifar"), (224, [], "imagenet"), (224, ["--stem", "cifar"], "cifar")]:
        out = str(tmp_path / f"run{len(asked)}")
        assert main(["pretrain", "photos", "--out", out, "--size", str(size), *more]) == 0
        assert asked[-1].network.stem == stem
        assert ("images of 224 pixels" in capsys.readouterr().out) == (stem == "imagenet")


def test_the_public_names():
    assert set(us3l.__all__) <= set(dir(us3l))
    assert all(getattr(us3l, name) is not None for name in us3l.__all__)
    assert callable(us3l.calibrate)
    assert callable(us3l.cost)
    with pytest.raises(AttributeError, match="nonsense"):
        us3l.nonsense  # noqa: B018
    assert torch.__version__


def test_hints_name_the_program_as_it_can_be_called(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "us3l"), "demo"])
    assert program() == ".venv/bin/us3l"
    monkeypatch.setattr("sys.argv", ["somewhere/main.py"])
    assert program() == "us3l"
    (tmp_path / "us3l").touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "us3l"), "demo"])
    assert program() == "us3l"
