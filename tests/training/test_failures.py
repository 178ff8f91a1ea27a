"""What a run does when things go wrong: damaged checkpoints, bad numbers, no memory, a full disk, a second process."""

import copy
import json
import resource
import signal
from dataclasses import replace
from io import StringIO

import pytest
import torch
from lightning_fabric import Fabric
from rich.console import Console

from us3l.commands.main import main
from us3l.data.sources import load
from us3l.distributed.peers import Peers
from us3l.run import Run
from us3l.run.checkpoints import MARK, TRAILER, load_checkpoint, save_checkpoint
from us3l.run.config import write_config
from us3l.system.errors import UserError
from us3l.system.progress import Screen
from us3l.system.stopping import Interrupted
from us3l.training import configuration, loop
from us3l.training.recipes import Network, named
from us3l.training.run_config import Machine, RunConfig, config_of
from us3l.training.trainer import Trainer

TINY = replace(
    named("digits"),
    network=Network("vit_tiny", base=12, heads=1, depth=1, patch=4),
    objective=replace(named("digits").objective, hidden=16, predictor=16, dim=8),
    optimiser=replace(named("digits").optimiser, lr=0.01),  # so shallow a network diverges with more
    views=replace(named("digits").views, size=8),
    batch_size=16,
    epochs=3,  # of 4 steps
    images=64,
)
CONFIG = RunConfig("digits", TINY, Machine(accelerator="cpu"))


def pretrain(folder, machine=CONFIG.machine, resume=False, data=lambda: load("digits", "train", limit=64)) -> str:
    written = StringIO()
    console = Console(file=written, width=200)
    loop.train(replace(CONFIG, machine=machine), Run(folder), data, resume, Screen(console))
    return written.getvalue()


def events(folder, kind="step"):
    lines = [json.loads(line) for line in Run(folder).metrics.read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


@pytest.fixture
def at_step(monkeypatch):
    """Let something happen within a step, before the optimiser's."""

    original = Trainer.backward

    def install(step, action):
        def backward(trainer, *arguments, last):
            result = original(trainer, *arguments, last=last)
            if last and trainer.step in step:
                action(trainer)
            return result

        monkeypatch.setattr(Trainer, "backward", backward)

    return install


def spoil(trainer):
    """An infinity in one gradient; the losses stay finite."""
    next(p for p in trainer.learner.parameters() if p.grad is not None).grad.view(-1)[0] = float("inf")


# Checkpoints


def test_damage_that_torch_does_not_see_is_seen(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, {"step": step, "weights": torch.arange(1000.0)})
    content = bytearray((tmp_path / "last.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "last.pt").write_bytes(content)
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == 2
    state, problems = load_checkpoint(tmp_path)
    assert state["step"] == 1
    assert "checksum is wrong" in problems[0]


def test_checkpoints_of_earlier_versions_have_no_checksum(tmp_path):
    save_checkpoint(tmp_path, {"step": 2})
    content = (tmp_path / "last.pt").read_bytes()
    assert content[-TRAILER:].startswith(MARK)
    (tmp_path / "last.pt").write_bytes(content[:-TRAILER])
    assert load_checkpoint(tmp_path) == ({"step": 2}, [])


# Runs


def test_a_second_process_is_refused(tmp_path):
    pretrain(tmp_path / "run")
    before = (tmp_path / "run" / "config.yaml").stat().st_mtime_ns
    with Run(tmp_path / "run").held(), pytest.raises(UserError, match="in use by process"):
        pretrain(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "config.yaml").stat().st_mtime_ns == before


def test_a_run_that_does_not_start_leaves_nothing(tmp_path):
    def broken():
        raise UserError("no images")

    with pytest.raises(UserError, match="no images"):
        pretrain(tmp_path / "run", data=broken)
    assert not (tmp_path / "run").exists()


def test_resuming_nothing_starts_when_it_is_known_on_what(tmp_path, capsys, monkeypatch):
    started = []

    def trained(config, run, images, resume, *_):  # noqa: ARG001
        started.append((config.data, resume))
        write_config(run.config_file, config)

    with monkeypatch.context() as patched:
        patched.setattr("us3l.training.loop.train", trained)
        assert main(["pretrain", "--out", str(tmp_path / "run"), "--resume"]) == 2
        assert "is not a run" in capsys.readouterr().err
        assert main(["pretrain", "digits", "--out", str(tmp_path / "other"), "--resume"]) == 0
    assert started == [("digits", True)]
    assert "resume" not in pretrain(tmp_path / "run", resume=True)
    assert Run(tmp_path / "run").finished


def test_a_killed_start_is_no_run_and_can_be_started(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / ".77.tmp.config.yaml").write_text("half")
    pretrain(tmp_path / "run")
    assert Run(tmp_path / "run").finished


def test_a_resumed_run_may_be_computed_otherwise_but_learns_the_same(tmp_path, at_step):
    at_step([6], lambda _: signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None))
    with pytest.raises(Interrupted):
        pretrain(tmp_path / "run")
    pretrain(tmp_path / "run", Machine("cpu", accumulate=2, checkpoint_every=2), resume=True)
    config = config_of(Run(tmp_path / "run"))
    assert config.machine.accumulate == 2
    configuration.check_kept(Run(tmp_path / "run"), CONFIG)
    with pytest.raises(UserError, match="a resumed run keeps its settings"):
        configuration.check_kept(Run(tmp_path / "run"), replace(CONFIG, machine=Machine(stream=True)))
    assert [record["step"] for record in events(tmp_path / "run")] == list(range(12))


def test_mixed_precision_resumes_to_the_same_bits(tmp_path, at_step):
    machine = Machine("cpu", precision="bf16-mixed")
    pretrain(tmp_path / "whole", machine)
    at_step([6], lambda _: signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None))
    with pytest.raises(Interrupted):
        pretrain(tmp_path / "run", machine)
    pretrain(tmp_path / "run", machine, resume=True)
    for name in ("metrics.jsonl", "model/weights.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_request_to_stop_is_answered_at_once(tmp_path, at_step):
    at_step([5], lambda _: signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None))
    with pytest.raises(Interrupted, match="after step 6 of 12"):
        pretrain(tmp_path / "run")
    assert "SIGTERM: stopping after this step" in Run(tmp_path / "run").log.read_text()


# Numbers


def test_gradients_that_are_not_finite_stop_the_run(tmp_path, at_step):
    at_step([6], spoil)
    with pytest.raises(UserError) as error:
        pretrain(tmp_path / "run")
    assert "not finite at step 6; the last good checkpoint, after step 4, is in" in str(error.value)
    assert "`lr=" in str(error.value)
    assert "`skip_bad_steps=" in str(error.value)
    assert load_checkpoint(Run(tmp_path / "run").checkpoints)[0]["step"] == 4


def test_a_few_bad_steps_can_be_left_out_also_after_a_resume(tmp_path, at_step):
    at_step([6, 9], spoil)
    with pytest.raises(UserError, match="not finite at step 9"):
        pretrain(tmp_path / "run", Machine("cpu", skip_bad_steps=1))
    state = load_checkpoint(Run(tmp_path / "run").checkpoints)[0]
    assert (state["step"], state["skipped"]) == (8, 1)
    with pytest.raises(UserError, match="not finite at step 9"):
        pretrain(tmp_path / "run", Machine("cpu", skip_bad_steps=1), resume=True)
    pretrain(tmp_path / "run", Machine("cpu", skip_bad_steps=2), resume=True)
    assert [record["step"] for record in events(tmp_path / "run", "skipped")] == [6, 9]
    assert len(events(tmp_path / "run")) == 10
    learner = load_checkpoint(Run(tmp_path / "run").checkpoints)[0]["learner"]
    assert all(tensor.isfinite().all() for tensor in learner.values())


def test_a_collapse_can_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("us3l.training.monitor.spread", lambda _: 0.01)
    with pytest.raises(UserError, match=r"stopped after step 4, as the embeddings collapsed; there is no checkpoint"):
        pretrain(tmp_path / "run", Machine("cpu", stop_on_collapse=True))


# What the system refuses


def test_too_little_memory(tmp_path, at_step):
    at_step([6], lambda _: torch.empty(2**58, dtype=torch.uint8))  # really refused by torch's allocator
    with pytest.raises(UserError) as error:
        pretrain(tmp_path / "run")
    assert "out of memory with batches of 16 images of 8 pixels; the last good checkpoint, after step 4" in str(
        error.value
    )
    assert "`accumulate=2`, `precision='bf16-mixed'`" in str(error.value)
    assert "or with `stream=True`, so that the images are not kept on the device" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_full_disk(tmp_path, at_step):
    """The system lets no file grow beyond a few bytes, from after the first checkpoint on."""
    whole = pretrain(tmp_path / "whole")
    assert "step 12/12" in whole
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    at_step([6], lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, unlimited[1])))
    try:
        with pytest.raises(UserError, match=r"File too large; the last good checkpoint, after step 4, .*Make room"):
            pretrain(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert [path.name for path in Run(tmp_path / "run").checkpoints.iterdir()] == ["last.pt"]
    at_step([], None)
    pretrain(tmp_path / "run", resume=True)
    for name in ("metrics.jsonl", "model/weights.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_other_errors_stay_what_they_are(tmp_path, at_step):
    def fail(_):
        raise RuntimeError("a mistake of ours")

    at_step([1], fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        pretrain(tmp_path / "run")


@pytest.mark.parametrize("labelled", [True, False])
def test_a_model_that_is_not_finite_is_not_saved(tmp_path, labelled):
    """With an absurd learning rate losses stay finite, through norms, while weights and features do not."""
    recipe = replace(TINY, network=Network(base=8), optimiser=replace(TINY.optimiser, lr=1e6), batch_size=128, epochs=2)
    images = load("digits", "train", limit=256)
    written = StringIO()
    console = Console(file=written, width=200)
    with pytest.raises(UserError, match=r"not finite, so no model is saved.*`lr=1e\+06`"):
        loop.train(
            replace(CONFIG, recipe=recipe),
            Run(tmp_path / "run"),
            lambda: images if labelled else replace(images, labels=None, classes=None),
            progress=Screen(console),
        )
    assert "collapse at 1x" in written.getvalue()
    assert not Run(tmp_path / "run").finished
    assert load_checkpoint(Run(tmp_path / "run").checkpoints)[0]["step"] == 4
    assert "NaN" not in Run(tmp_path / "run").metrics.read_text()


# One of several processes


def test_all_processes_hear_of_a_batch_of_nothing_but_damaged_images(tmp_path, monkeypatch):
    """The one that meets it takes part in the step, for the others would wait for it; then all end alike."""
    trainer = Trainer(TINY, load("digits", "train", limit=64), Fabric(accelerator="cpu"))

    def damaged(*_):
        raise UserError("none of 8 images can be read")

    monkeypatch.setattr(trainer, "read_batch", damaged)
    with pytest.raises(UserError, match="none of 8"):
        trainer.take_batch()
    trainer.peers = Peers(0, 2)
    batch = trainer.take_batch()
    assert (len(batch), batch.views[0].shape[1:]) == (trainer.batch, (3, 8, 8))
    monkeypatch.undo()
    assert not trainer.take_batch().views[1].any()  # also of the next batch: it has lost its place
    told = [([], [], None), ([], [], trainer.failure)]

    def gather(found, _):
        found[:] = told

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    with pytest.raises(UserError, match="none of 8"):
        loop.ImageFaults(CONFIG, Run(tmp_path), trainer, print).add([trainer.train_step()])


@pytest.mark.parametrize("algorithm", ["sgd", "adamw", "lars"])
def test_a_step_that_is_left_out_changes_nothing(algorithm, monkeypatch):
    """Neither weights nor the optimiser's state, from the first step on."""
    images, fabric = load("digits", "train", limit=64), Fabric(accelerator="cpu")
    recipe = replace(
        TINY,
        optimiser=replace(TINY.optimiser, algorithm=algorithm),
        objective=replace(TINY.objective, base_loss="moco", queue=32, max_first=False),
    )
    ours = Trainer(recipe, images, fabric, Machine("cpu", skip_bad_steps=1))
    plain = Trainer(recipe, images, fabric)
    before = copy.deepcopy(ours.state())
    sound = ours.finite_gradients
    monkeypatch.setattr(ours, "finite_gradients", lambda: torch.tensor(False))
    done = ours.train_step()
    assert (bool(done.left_out), int(ours.skipped), ours.step) == (True, 1, 1)
    after = ours.state()["learner"]
    assert all(torch.equal(after[name], value) for name, value in before["learner"].items() if "teacher" not in name)
    monkeypatch.setattr(ours, "finite_gradients", sound)
    plain.step = 1
    plain.learner.load_state_dict(after)
    for _ in range(2):
        assert torch.equal(torch.stack(ours.train_step().losses), torch.stack(plain.train_step().losses))
    monkeypatch.setattr(ours, "finite_gradients", lambda: torch.tensor(False))
    assert not ours.train_step().left_out  # one is all that was allowed
