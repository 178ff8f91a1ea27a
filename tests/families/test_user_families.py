"""A network of the user's own, named on the command line, from its training to its files."""

import sys

import pytest
import torch

import us3l
from us3l.commands.main import main
from us3l.families.user_families import current_family, import_family
from us3l.run.checkpoints import load_checkpoint
from us3l.system.errors import UserError
from us3l.training.trainer import Trainer

CODE = """
from torch import nn

number = 3

def family(width):
    c = 8 * max(1, round(4 * width))
    return nn.Sequential(
        nn.Conv2d(3, c, 3, 2, 1), nn.BatchNorm2d(c), nn.ReLU(),
        nn.Conv2d(c, 2 * c, 3, 2, 1), nn.BatchNorm2d(2 * c), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )

def growing(width):
    return nn.Sequential(nn.Conv2d(3, round(8 / width), 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def pooled(*layers):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

def maps(width):
    return nn.Conv2d(3, round(8 * width), 1)

def coming(width):
    c = round(8 * width)
    return pooled(nn.Conv2d(3, c, 1), *([nn.Conv2d(c, c, 1)] if width == 1 else []))

def failing(width):
    return {}[width]

def mended(width):
    raise RuntimeError("not\\nyet")

def disagreeing(width):
    return pooled(nn.Conv2d(3, round(8 * width), 1), nn.Conv2d(9, 8, 1))

network = family(1.0)

class Object:
    def __call__(self, width):
        return family(width)

class Needy(Object):
    def __init__(self, channels):
        pass
"""
NAME = "own_networks_of_a_test:family"
TINY = "--recipe digits --size 8 --images 64 --batch-size 16 --max-steps 4 --min-width 0.5 --calibration 16".split()
TINY += "--hidden 16 --predictor 16 --dim 8 --checkpoint-every 1".split()


@pytest.fixture(autouse=True)
def module(tmp_path_factory, monkeypatch):
    """The module in the working folder, as a person has it; and nothing of it left behind."""
    folder = tmp_path_factory.getbasetemp() / "own"
    folder.mkdir(exist_ok=True)
    (folder / "own_networks_of_a_test.py").write_text(CODE)
    (folder / "own_broken_of_a_test.py").write_text("1 / 0")
    (folder / "own_needy_of_a_test.py").write_text("import no_such_library")
    monkeypatch.chdir(folder)
    yield folder
    assert "" not in sys.path[:1]
    sys.modules.pop("own_networks_of_a_test", None)


def command(*words: str) -> int:
    return main([*words])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, and one that was killed in its third step and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    base = tmp_path_factory.getbasetemp() / "own"
    base.mkdir(exist_ok=True)
    (base / "own_networks_of_a_test.py").write_text(CODE)
    step = Trainer.train_step
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        assert command("pretrain", "digits", "--out", str(folder / "whole"), "--backbone", NAME, *TINY) == 0
        patch.setattr(Trainer, "train_step", lambda self: step(self) if self.step < 3 else sys.exit(9))
        with pytest.raises(SystemExit):
            command("pretrain", "digits", "--out", str(folder / "cut"), "--backbone", NAME, *TINY, "--epochs", "1")
    return folder


def test_it_resumes_to_the_bit_if_it_is_named_again(runs, capsys):
    cut = str(runs / "cut")
    assert command("pretrain", "--out", cut, "--resume") == 2
    told = capsys.readouterr().err
    assert f"this run trains a network of your own, {NAME}: give it again" in told
    assert "--backbone" in told
    assert command("pretrain", "--out", cut, "--resume", "--backbone", NAME) == 0
    ours, theirs = (load_checkpoint(us3l.Run(runs / name).checkpoints)[0]["learner"] for name in ("cut", "whole"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert ours.keys() == theirs.keys()


def test_commands_that_read_its_run_are_given_it(runs, capsys):
    run = str(runs / "whole")
    for words in (["evaluate", run, "--widths", "1", "--no-floor"], ["export", run, "--widths", "0.5"]):
        assert command(*words) == 2
        assert "say where it is, --backbone MODULE:NAME" in capsys.readouterr().err
    widths = ["--widths", "1", "0.5"]
    images = ["--train-images", "60", "--test-images", "60"]
    assert command("evaluate", run, *widths, *images, "--no-floor", "--no-quality", "--backbone", NAME) == 0
    assert command("export", run, "--backbone", NAME, *widths, "--format", "safetensors") == 0
    assert command("report", run, "--backbone", NAME) == 0
    assert current_family() is None
    assert (runs / "whole" / "report.html").exists()
    bundle = us3l.Run(runs / "whole").bundle
    assert bundle is not None
    assert [entry.width for entry in bundle.entries] == [0.5, 1.0]


def test_names_of_families():
    assert import_family(NAME)(1.0)[0].out_channels == 32
    assert import_family("own_networks_of_a_test:Object")(1.0)[0].out_channels == 32


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:family", "there is no module 'no_such_module'"),
        ("own_networks_of_a_test:famly", "has no 'famly': did you mean 'family'"),
        ("own_networks_of_a_test:number", "is of type int: a family is a function"),
        ("own_networks_of_a_test:", "does not name a family: write MODULE:NAME"),
        ("own_broken_of_a_test:family", "cannot be imported (ZeroDivisionError: division by zero)"),
        ("own_needy_of_a_test:family", "needs 'no_such_library', which is not installed"),
        ("own_networks_of_a_test:growing", "is not nested: '0.weight' has shape (16, 3, 1, 1) at width 0.5"),
        ("own_networks_of_a_test:coming", "is not nested: '1.weight' exists at width 1 but not at width 0.5; layers"),
        ("own_networks_of_a_test:maps", "makes a tensor of shape (2, 8, 8, 8)"),
        ("own_networks_of_a_test:failing", "cannot build the network of width 1.0 (KeyError: 1.0)"),
        ("own_networks_of_a_test:mended", "cannot build the network of width 1.0 (RuntimeError: not)"),
        ("own_networks_of_a_test:disagreeing", "cannot look at images of 8 pixels (RuntimeError: "),
        ("own_networks_of_a_test:network", "is of type Sequential: a family is a function"),
        ("own_networks_of_a_test:Needy", "must be made without arguments, but TypeError: "),
    ],
)
def test_bad_names_and_families_are_one_clear_line_and_leave_nothing(name, message, tmp_path, capsys):
    assert command("pretrain", "digits", "--out", str(tmp_path / "run"), "--backbone", name, *TINY) == 2
    told = capsys.readouterr().err.strip()
    assert message in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_files_never_name_code_to_run(runs, tmp_path):
    config = (runs / "whole" / "config.yaml").read_text()
    assert NAME in config
    with pytest.raises(UserError, match="give it again"):
        us3l.pretrain("digits", tmp_path / "run", config=runs / "whole" / "config.yaml")
    assert "own_networks_of_a_test" not in sys.modules
    assert not (tmp_path / "run").exists()
