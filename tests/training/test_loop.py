"""A whole run: what it leaves, how it is stopped and resumed, what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partialmethod
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image
from rich.console import Console

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet, find, load
from us3l.run import Run
from us3l.run.checkpoints import load_checkpoint
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Screen
from us3l.system.stopping import Interrupted
from us3l.training import finish as finishing
from us3l.training import loop
from us3l.training.monitor import Monitor
from us3l.training.recipes import Network, Optimiser, named
from us3l.training.run_config import Machine, RunConfig, config_of
from us3l.training.trainer import Trainer

TINY = replace(
    named("digits"),
    network=Network("vit_tiny", base=12, heads=1, depth=1, patch=4),
    objective=replace(named("digits").objective, hidden=16, predictor=16, dim=8),
    optimiser=Optimiser(lr=0.01),  # so shallow a network diverges with more
    views=replace(named("digits").views, size=8),
    batch_size=16,
    epochs=4,
    images=64,
    calibration=16,
)
CONFIG = RunConfig("digits", TINY, Machine(accelerator="cpu"))
SHORT = replace(TINY, network=Network(base=8), max_steps=2)
"""Of a network with batch norms."""


def digits() -> ImageSet:
    return load("digits", "train", limit=64)


def pretrain(folder, config=CONFIG, data=digits, resume=False) -> str:
    written = StringIO()
    console = Console(file=written, width=200)
    loop.train(config, Run(folder), data, resume, Screen(console))
    return written.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, pretrain(folder)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that was stopped within its third epoch, of which each test takes a copy."""
    folder = tmp_path_factory.mktemp("runs") / "interrupted"
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 10)
        with pytest.raises(Interrupted, match="after step 10 of 16"):
            pretrain(folder)
    assert load_checkpoint(Run(folder).checkpoints)[0]["step"] == 10
    return folder


@pytest.fixture
def stopped(interrupted, tmp_path) -> Run:
    return Run(shutil.copytree(interrupted, tmp_path / "run"))


def test_a_run_leaves_all_it_should(finished):
    folder, output = finished
    run = Run(folder)
    assert run.finished
    assert config_of(run) == CONFIG.resolved()
    assert config_of(run).machine.precision == "32-true"  # "auto", on a CPU
    assert {path.name for path in run.checkpoints.iterdir()} == {"last.pt", "previous.pt"}
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    assert [line["step"] for line in steps] == list(range(16))
    assert sum(len(line["widths"]) for line in steps) == 2.5 * 16
    assert all(len(line["losses"]) == len(line["widths"]) for line in steps)
    assert steps[0]["lr"] == TINY.optimiser.lr
    assert steps[-1]["lr"] < 0.02 * TINY.optimiser.lr
    gauges = [line["gauges"] for line in lines if line["event"] == "monitor"]
    assert len(gauges) == 4
    assert gauges[-1].keys() == {"1", "0.75", "0.5", "0.25"}
    assert 0 <= gauges[-1]["0.5"]["knn"] <= 100
    assert gauges[-1]["0.5"]["spread"] > 0.1
    assert "images/s" in output
    assert "kNN" in output
    assert "step 16/16" in run.log.read_text()


def same_state(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same_state(one[key], other[key])
    elif isinstance(one, list):
        for mine, theirs in zip(one, other, strict=True):
            same_state(mine, theirs)
    else:
        assert one == other


def test_an_interrupted_run_goes_on_to_the_same_bits(finished, stopped):
    """Metrics that were written after the checkpoint are written again, and what a kill left half written is gone."""
    with open(stopped.metrics, "a") as file:
        file.write('{"event": "step", "step": 10, "losses": [1]}\n{"event": "ste')
    (stopped.checkpoints / ".123.tmp.last.pt").write_bytes(b"half")
    pretrain(stopped.folder, resume=True)
    assert_same(Run(finished[0]), stopped)
    assert {path.name for path in stopped.checkpoints.iterdir()} == {"last.pt", "previous.pt"}


def assert_same(whole, resumed):
    same_state(load_checkpoint(whole.checkpoints)[0], load_checkpoint(resumed.checkpoints)[0])
    assert whole.metrics.read_text() == resumed.metrics.read_text()
    for name in ("weights.safetensors", "statistics.safetensors", "model.json"):
        assert (whole.model / name).read_bytes() == (resumed.model / name).read_bytes()


def stop_at(monkeypatch, step):
    """Ask for a stop while that many steps have been made, as Ctrl-C would."""
    original = loop.Trainer.train_step

    def train_step(trainer):
        done = original(trainer)
        if trainer.step == step:
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
        return done

    monkeypatch.setattr(loop.Trainer, "train_step", train_step)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(finished, stopped):
    last = stopped.checkpoints / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    assert "going on from the one before it" in pretrain(stopped.folder, resume=True)
    assert_same(Run(finished[0]), stopped)
    for path in stopped.checkpoints.iterdir():
        path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"cannot read .*last\.pt.*previous\.pt"):
        pretrain(stopped.folder, resume=True)


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path, finished):
    run = Run(tmp_path / "run")
    run.start(CONFIG)
    run.metrics.write_text('{"event": "step", "step": 0, "losses": [1]}\n')
    pretrain(run.folder, resume=True)
    assert run.metrics.read_text() == Run(finished[0]).metrics.read_text()


def compile_by(backend, monkeypatch):
    """Without C++, whose compilation takes minutes."""
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend=backend))


def test_compiled_networks_learn_the_same(tmp_path, monkeypatch):
    batches = []

    def backend(graph, example):
        batches.append({value.shape[0] for value in example if getattr(value, "ndim", 0) == 4 and value.shape[1] == 3})
        return graph

    compile_by(backend, monkeypatch)
    config = replace(CONFIG, recipe=replace(TINY, max_steps=4))
    pretrain(tmp_path / "plain", config)
    pretrain(tmp_path / "compiled", replace(config, machine=Machine("cpu", compile=True)))
    plain, compiled = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("plain", "compiled")
    )
    assert [line["widths"] for line in plain[:4]] == [line["widths"] for line in compiled[:4]]
    for mine, theirs in zip(plain[:4], compiled[:4], strict=True):
        assert mine["losses"] == pytest.approx(theirs["losses"], rel=1e-4)
    assert len(batches) == 2  # the network and its teacher, for training alone


def test_a_network_that_cannot_be_compiled(tmp_path, monkeypatch):
    def backend(*_):
        raise RuntimeError("there is no compiler")

    compile_by(backend, monkeypatch)
    with pytest.raises(UserError, match=r"cannot compile the network.*there is no compiler.*leave out `compile`"):
        pretrain(tmp_path / "run", replace(CONFIG, machine=Machine("cpu", compile=True)))


def test_a_run_is_not_resumed_on_other_images(stopped):
    for other in (load("digits", "train", limit=70), load("digits", "test", limit=64)):
        with pytest.raises(UserError, match="images have changed"):
            pretrain(stopped.folder, data=lambda other=other: other, resume=True)


def test_more_devices_than_a_batch_can_feed(tmp_path):
    with pytest.raises(UserError, match="a batch of 16 is too small for 100 devices"):
        pretrain(tmp_path / "run", replace(CONFIG, machine=Machine("cpu", devices=100)))


def test_checkpoints_never_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/evil",)

    torch.save({"step": 1, "learner": Evil()}, tmp_path / "last.pt")
    with pytest.raises(UserError, match="cannot read"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "evil").exists()


def test_an_existing_folder_is_not_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        pretrain(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_per_width_updates_and_max_steps_and_unlabelled_images(tmp_path):
    config = replace(CONFIG, recipe=replace(TINY, max_steps=5, objective=replace(TINY.objective, update="per-width")))
    output = pretrain(tmp_path / "run", config, lambda: replace(digits(), labels=None, classes=None))
    assert "step 5/5" in output
    assert "kNN" not in output
    assert us3l.load(tmp_path / "run" / "model").metadata["training"]["steps"] == 5


def test_collapse_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("us3l.training.monitor.spread", lambda _: 0.01)
    output = pretrain(tmp_path / "run")
    warnings = [line for line in output.splitlines() if "collapse at" in line]
    # Widths that have not been trained yet do not count.
    assert [w.split("collapse at ")[1].split(":")[0] for w in warnings] == [
        "1x",
        "1x, 0.75x",
        "1x, 0.75x, 0.5x",
        "1x, 0.75x, 0.5x, 0.25x",
    ]


def test_two_processes_train_together(tmp_path):
    """Fabric launches the second process; the first writes the model.

    That they learn what one process does is tested in `tests/distributed`.
    """
    command = [sys.executable, "-m", "us3l", "pretrain", "digits", "--out", str(tmp_path / "run")]
    command += "--devices 2 --accelerator cpu --max-steps 4 --batch-size 16 --images 32 --size 8".split()
    command += "--backbone vit_tiny --base 12 --heads 1 --depth 1 --patch 4 --hidden 16 --predictor 16".split()
    command += "--dim 8 --lr 0.01".split()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 x cpu" in done.stdout
    assert Run(tmp_path / "run").finished
    learner = load_checkpoint(tmp_path / "run" / "checkpoints")[0]["learner"]
    weight = us3l.load(tmp_path / "run" / "model").full.state_dict()["blocks.0.mlp.fc1.weight"]
    assert torch.equal(weight, learner["net.full.blocks.0.mlp.fc1.weight"])


def test_a_stop_in_the_last_step_is_honoured_and_a_resumed_run_finishes(tmp_path, finished, monkeypatch):
    stop_at(monkeypatch, 16)
    with pytest.raises(Interrupted, match="after step 16 of 16"):
        pretrain(tmp_path / "run")
    run = Run(tmp_path / "run")
    assert not run.finished
    monkeypatch.undo()
    pretrain(run.folder, resume=True)
    assert_same(Run(finished[0]), run)


def test_calibration_can_be_stopped_and_is_made_up_for_at_the_wanted_widths(tmp_path, monkeypatch):
    def calibrate(net, images, widths, progress):
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
        us3l.calibrate(net, images, widths, progress=progress)

    config = replace(CONFIG, recipe=SHORT, machine=Machine("cpu", calibrated_widths=(0.5, 0.3)))
    monkeypatch.setattr(finishing, "calibrate", calibrate)
    with pytest.raises(Interrupted, match="while collecting batch-norm statistics"):
        pretrain(tmp_path / "run", config)
    assert not Run(tmp_path / "run").finished
    monkeypatch.undo()
    pretrain(tmp_path / "run", config, resume=True)
    net = us3l.load(tmp_path / "run" / "model")
    wanted = {net.canonical(width) for width in (1.0, 0.5, 0.3)}
    assert {width for width in net.widths if net.calibrated(width)} == wanted
    with pytest.raises(UserError, match=r"1\.5 is not a width"):
        Machine("cpu", calibrated_widths=(1.5,))


@pytest.mark.parametrize("min_width", [0.1, 0.45])
def test_any_narrowest_width_trains(tmp_path, min_width):
    recipe = replace(SHORT, network=replace(SHORT.network, min_width=min_width), max_steps=4)
    pretrain(tmp_path / "run", replace(CONFIG, recipe=recipe))
    assert us3l.load(tmp_path / "run" / "model").min_width == min_width


def test_a_run_that_fails_before_its_first_step_leaves_its_place_to_the_next(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(loop.Trainer, "train_step", fail)
    with pytest.raises(UserError, match=r"Start it again with `accumulate=2`.*`stream=True`"):
        pretrain(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    monkeypatch.setattr(loop, "step_cost", fail)
    with pytest.raises(UserError):
        pretrain(tmp_path / "run")
    monkeypatch.undo()
    pretrain(tmp_path / "run", replace(CONFIG, recipe=replace(TINY, max_steps=2)))


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "us3l", "pretrain", "digits", "--out", str(tmp_path / "run")]
    command += "--epochs 1000 --batch-size 16 --images 32 --base 8 --size 8 --hidden 16 --predictor 16 --dim 8".split()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"us3l pretrain --out {tmp_path / 'run'} --resume" in errors
    assert "Traceback" not in errors
    assert load_checkpoint(tmp_path / "run" / "checkpoints")[0]["step"] > 0


def test_large_images_are_calibrated_on_the_centre_that_evaluation_sees(tmp_path, monkeypatch):
    """They were calibrated on the whole image, and evaluated and deployed on its centre."""
    for number in range(8):
        noise = torch.randint(0, 256, (90, 120, 3), generator=torch.Generator().manual_seed(number))
        Image.fromarray(noise.to(torch.uint8).numpy()).save(tmp_path / f"{number}.png")
    files = find(tmp_path, "pretrain")
    recipe = replace(SHORT, views=replace(SHORT.views, size=64), batch_size=8, calibration=8)
    trainer = Trainer(recipe, files, Fabric(accelerator="cpu"))
    seen = []

    def remember(net, images, *_, **__):
        seen.append(images)
        us3l.calibrate(net, images)

    monkeypatch.setattr(finishing, "calibrate", remember)
    finishing.finish(trainer, Run(tmp_path / "run"), SimpleNamespace(say=print, progress=SILENT))
    (batch,) = files.batches(Preprocessing.usual(64))
    expected, calibrated, monitored = (
        images.sum(dim=(1, 2, 3)).sort().values for images in (batch.views[0], seen[0], Monitor(trainer).images)
    )
    assert torch.equal(calibrated, expected)
    assert torch.equal(monitored, expected)
