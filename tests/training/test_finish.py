"""The end of a run: whose weights its models have, and what a kill between two of them leaves."""

import os
import shutil
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

import us3l
from us3l.commands.main import main
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet, load
from us3l.run import Run
from us3l.run.checkpoints import load_checkpoint
from us3l.system.errors import UserError
from us3l.system.files import read_json
from us3l.system.progress import SILENT
from us3l.system.seeds import seeded
from us3l.training import finish as finishing
from us3l.training import loop
from us3l.training.configuration import with_weights
from us3l.training.display import Display
from us3l.training.recipes import Network, named
from us3l.training.run_config import Machine, RunConfig
from us3l.training.trainer import Trainer

TINY = replace(
    named("digits"),
    network=Network(base=8),
    objective=replace(named("digits").objective, hidden=16, predictor=16, dim=8, teacher_momentum=0.5),
    views=replace(named("digits").views, size=8),
    batch_size=16,
    max_steps=4,
    images=64,
    calibration=16,
)
FILES = ("weights.safetensors", "statistics.safetensors", "model.json")


def config(**objective) -> RunConfig:
    recipe = replace(TINY, objective=replace(TINY.objective, **objective))
    return RunConfig("digits", recipe, Machine("cpu", calibrated_widths=(0.5, 1.0)))


def digits() -> ImageSet:
    return load("digits", "pretrain", limit=64)


def train(folder, resume=False, **objective) -> Run:
    loop.train(config(**objective), Run(folder), digits, resume)
    return Run(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Run]:
    """The same training with each product."""
    folder = tmp_path_factory.mktemp("runs")
    return {product: train(folder / product, product=product) for product in ("student", "teacher", "both")}


def contents(run: Run) -> list[bytes]:
    return [path.read_bytes() for path in (run.projector, *(run.model / name for name in FILES))]


def test_both_models_are_kept_and_the_network_s_own_is_as_ever(runs):
    both, usual = runs["both"], runs["student"]
    assert both.finished
    assert both.product == usual.product == "student"
    assert contents(both)[:3] == contents(usual)[:3]
    description = read_json(both.model / "model.json")
    promise = description["metadata"]["training"].pop("teacher")
    assert promise == both.teacher.weights.weights != both.weights.weights
    assert description == read_json(usual.model / "model.json")
    assert not usual.kept("teacher").folder.exists()


def test_the_teacher_s_model_has_the_weights_that_taught(runs):
    run = runs["both"]
    learned = load_checkpoint(run.checkpoints)[0]["learner"]
    teacher = us3l.load(run.folder / "teacher")
    assert run.teacher.product == "teacher"
    assert all(torch.equal(tensor, learned[f"teacher.0.{name}"]) for name, tensor in teacher.weights().items())
    assert not torch.equal(teacher.full.conv1.weight, run.network.full.conv1.weight)
    narrow = teacher.carve(0.5)
    for name, tensor in narrow.named_parameters():
        whole = learned[f"teacher.0.{name}"]
        assert torch.equal(tensor, whole[tuple(map(slice, tensor.shape))])
    seen = Preprocessing.usual(8)
    images = seen.apply(digits().sample(16, seeded(0), seen.resize).images)
    first = narrow.conv1(images)
    torch.testing.assert_close(narrow.bn1.running_mean, first.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(narrow.bn1.running_var, first.transpose(0, 1).flatten(1).var(dim=1))


def test_either_can_be_the_product_and_the_other_is_made_of_the_checkpoint(runs, tmp_path):
    """To the same bits, whichever way: the run that kept both has the two."""
    for product, other in (("student", "teacher"), ("teacher", "student")):
        run = Run(shutil.copytree(runs[product].folder, tmp_path / product))
        assert run.product == product
        expected = runs["both"] if other == "student" else runs["both"].teacher
        if other == "teacher":
            with pytest.raises(UserError, match="does not keep its teacher's weights"):
                _ = run.teacher
        place = with_weights(run, other, SILENT)
        assert place.folder == run.folder / other
        assert place.origin == run
        assert place.data == "digits"
        assert contents(place)[:3] == contents(expected)[:3]
        assert run.kept(product) is run
        assert contents(run) == contents(runs[product])  # untouched
        assert with_weights(run, other, SILENT) == place  # which is not made again


def test_a_kill_between_any_two_files_loses_nothing(runs, tmp_path, monkeypatch):
    """Die before each file of the two models appears: the run is not finished, and a second try ends the same."""
    whole, run = runs["both"], Run(tmp_path / "run")
    trained = config(product="both")
    trainer = Trainer(trained.recipe.resolved(), digits(), Fabric(accelerator="cpu"), trained.machine)
    trainer.load_state(load_checkpoint(whole.checkpoints)[0])
    shutil.copytree(whole.checkpoints, run.checkpoints)
    shutil.copy(whole.config_file, run.config_file)
    replaced, moments = os.replace, []

    def finish(survivors):
        def die(source, target):
            if len(moments) == survivors:
                raise KeyboardInterrupt
            moments.append(target)
            replaced(source, target)

        moments.clear()
        monkeypatch.setattr(os, "replace", die)
        finishing.finish(trainer, run, Display(SILENT, None, [], 0))

    for survivors in range(8):
        with pytest.raises(KeyboardInterrupt):
            finish(survivors)
        assert not run.finished
        if survivors == 4:  # between the two models
            monkeypatch.undo()
            train(run.folder, resume=True, product="both")
        else:
            finish(8)
        assert run.finished
        assert contents(run) == contents(whole)
        assert contents(run.teacher) == contents(whole.teacher)
        for path in (run.projector, run.model, run.folder / "teacher"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    finish(None)
    assert len(moments) == 8


def test_a_run_that_lost_its_teacher_s_model_is_not_finished(runs, tmp_path):
    run = Run(shutil.copytree(runs["both"].folder, tmp_path / "run"))
    (run.folder / "teacher" / "model" / "model.json").unlink()
    assert not run.finished
    train(run.folder, resume=True, product="both")
    assert contents(run.teacher) == contents(runs["both"].teacher)


def test_what_has_no_teacher(runs, tmp_path):
    alone = {"momentum_base": False, "momentum_sub": False}
    with pytest.raises(UserError, match="product='teacher' needs a momentum teacher"):
        config(**alone, product="teacher")
    with pytest.raises(UserError, match="no momentum teacher"):
        finishing.check_product(config(**alone).recipe, "teacher")
    own_norms = replace(TINY, network=replace(TINY.network, switchable=True))
    with pytest.raises(UserError, match="batch norms of the full network only"):
        loop.check_settings(RunConfig("digits", replace(own_norms, objective=config(product="both").recipe.objective)))
    stopped = Run(shutil.copytree(runs["student"].folder, tmp_path / "run"))
    longer = stopped.config_file.read_text().replace("max_steps: 4", "max_steps: 5")
    stopped.config_file.write_text(longer)
    with pytest.raises(UserError, match="is at step 4 of 5"):
        with_weights(stopped, "teacher", SILENT)
    with pytest.raises(UserError, match="is not a run"):
        with_weights(Run(stopped.model), "teacher", SILENT)
    with pytest.raises(UserError, match="did you mean 'teacher'"):
        with_weights(stopped, "techer", SILENT)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`weights` is for runs"):
        us3l.evaluate(runs["student"].network, "digits", weights="teacher")


def test_results_of_the_teacher_lie_apart(runs, tmp_path):
    run = Run(shutil.copytree(runs["student"].folder, tmp_path / "run"))
    us3l.evaluate(run, widths=0.5, floor=False, train_images=64, test_images=32, device="cpu")
    before = (run.evaluation_folder / "digits.json").read_bytes()
    settings = "--weights teacher --widths 0.5 --no-floor --train-images 64 --test-images 32 --device cpu".split()
    assert main(["evaluate", str(run.folder), *settings]) == 0
    assert (run.evaluation_folder / "digits.json").read_bytes() == before
    student, teacher = run.evaluations["digits"], run.teacher.evaluations["digits"]
    assert teacher.weights == run.teacher.weights != student.weights
    assert (run.folder / "teacher" / "eval" / "digits.png").exists()
    assert main(["export", str(run.folder), *"--widths 0.5 --format safetensors --weights teacher".split()]) == 0
    assert run.bundle is None
    bundle = run.teacher.bundle
    assert bundle is not None
    assert bundle.entries[0].weights == run.teacher.weights.weights
    comparison = us3l.compare(run, run.folder / "teacher")
    assert len(comparison.groups) == 2
