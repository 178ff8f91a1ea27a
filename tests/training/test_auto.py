"""`recipe="auto"`: what it chooses for which images on which computer, and that it fits."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from us3l.commands.main import main
from us3l.commands.pretrain import pretrain
from us3l.data.cached import cached_bytes
from us3l.data.catalogue import Catalogue
from us3l.data.streamed import ImageFiles
from us3l.data.view_settings import Views
from us3l.families import BACKBONES, create, options_for
from us3l.run import Run
from us3l.system.errors import UserError
from us3l.tensors import WithoutFilling
from us3l.training import auto
from us3l.training.auto import BYTES, AutoFacts, choose, look, step_bytes
from us3l.training.recipes import RECIPES, Network, Recipe, named
from us3l.training.run_config import Machine, RunConfig, config_of

GIB = 2**30
PHOTO = (600, 800)
LAPTOP = AutoFacts(4_000, (PHOTO,), cores=2, memory=16 * GIB)
GPU = replace(LAPTOP, device="cuda", device_name="A", device_memory=24 * GIB, precision="bf16-mixed", memory=64 * GIB)


def shown(**given: Any) -> Recipe:
    return choose(LAPTOP, given).config.recipe


def test_photographs_on_a_cpu() -> None:
    choice = choose(LAPTOP)
    recipe = choice.config.recipe
    assert (choice.name, recipe.views.size, recipe.batch_size, recipe.network.base) == ("mini-photos", 96, 128, 16)
    assert recipe.epochs == 200
    assert choice.config.machine == Machine(precision="32-true")
    assert "resnet18" in choice.what
    assert "96 pixels, batches of 128, 200 epochs" in choice.what
    assert "4,000 images of about 800 x 600 pixels, without labels; a CPU with 2 cores, 16.0 GiB" in choice.why
    assert "`epochs=N`" in choice.otherwise
    assert not choice.warnings
    assert choose(replace(LAPTOP, cores=16)).config.recipe.network.base == 32


def test_icons_get_what_they_always_got() -> None:
    for facts in (LAPTOP, GPU):
        for side in (16, 32, 39):
            choice = choose(replace(facts, shapes=((side, side),)))
            assert (choice.name, choice.config) == (
                "mini",
                RunConfig("", named("mini"), Machine(precision=facts.precision)),
            )
    assert choose(replace(LAPTOP, shapes=())).name == "mini"
    larger = choose(replace(LAPTOP, shapes=((48, 48),))).config.recipe
    assert (larger.views.size, larger.resolved().network.stem) == (48, "cifar")


def test_few_images_are_said_to_be_few() -> None:
    choice = choose(replace(LAPTOP, images=300))
    assert choice.config.recipe.batch_size == 64
    assert choice.config.recipe.optimiser.lr == named("mini-photos").optimiser.lr / 2
    assert "300 images: a network that starts from scratch learns little" in choice.warnings[0]
    assert "`init=WHAT`" in choice.warnings[0]
    assert not choose(replace(LAPTOP, images=1_000)).warnings
    assert not choose(
        replace(LAPTOP, images=300), {"init": "a.safetensors", "backbone": "resnet18", "base": 64}
    ).warnings


def test_a_million_photographs() -> None:
    choice = choose(replace(LAPTOP, images=1_000_000))
    assert choice.config.recipe.epochs == 1
    assert "read while training" in choice.why
    assert choose(replace(GPU, images=1_000_000)).config.recipe.network.backbone == "resnet50"


def test_more_images_get_fewer_epochs_and_more_cores_more() -> None:
    epochs = [choose(replace(LAPTOP, images=images)).config.recipe.epochs for images in (4_000, 20_000, 100_000, 10**7)]
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[-1] == 1
    assert len(set(epochs)) == 4
    four = choose(replace(LAPTOP, images=20_000, cores=4)).config.recipe.epochs
    assert four == pytest.approx(2 * epochs[1], abs=1)


def test_photographs_on_a_gpu() -> None:
    choice = choose(GPU)
    recipe = choice.config.recipe
    assert (choice.name, recipe.views.size, recipe.batch_size, recipe.epochs) == ("photos", 224, 256, 400)
    assert (recipe.network.base, choice.config.machine.precision) == (64, "bf16-mixed")
    assert "a GPU (A), 24.0 GiB of memory free" in choice.why
    old = choose(replace(GPU, precision="32-true", device_memory=8 * GIB)).config
    assert (old.machine.precision, old.recipe.views.size, old.recipe.batch_size) == ("32-true", 224, 64)
    assert old.recipe.optimiser.lr == recipe.optimiser.lr / 4
    apple = choose(replace(LAPTOP, device="mps")).config  # one memory for all
    assert (apple.machine.precision, apple.recipe.views.size) == ("32-true", 224)


@pytest.mark.parametrize("given", [{}, {"size": 224}, {"backbone": "resnet50"}, {"base": 64}, {"devices": 2}])
def test_nothing_is_chosen_that_does_not_fit(given: dict[str, Any]) -> None:
    memories = [1.5 * GIB, 4 * GIB, 64 * GIB]
    for memory, gpu_memory, shape, images in product(memories, [None, *memories], [(20, 20), PHOTO], (50, 10**6)):
        facts = AutoFacts(images, (shape,), memory=int(memory))
        if gpu_memory:
            facts = replace(facts, device="cuda", device_memory=int(gpu_memory))
        choice = choose(facts, given)
        told = any("a step may need" in warning for warning in choice.warnings)
        assert told == (step_bytes(choice.config) > facts.step_memory)
        assert not told or given or (gpu_memory or memory) < 4 * GIB
        machine = choice.config.machine
        kept = cached_bytes(facts.shapes, images, choice.config.recipe.views)
        assert machine.stream or kept > machine.memory_gib * GIB or kept <= memory / 2  # what opening would refuse


def test_what_is_given_is_left_as_it_is() -> None:
    assert shown(size=64).views.size == 64
    assert shown(size=64).epochs < shown().epochs  # the first layers keep all pixels, which costs more
    assert shown(epochs=7).epochs == 7
    assert (shown(batch_size=32).batch_size, shown(batch_size=32).optimiser.lr) == (32, shown().optimiser.lr)
    assert shown(backbone="mobilenet_v2").network == Network("mobilenet_v2", base=16)
    assert choose(LAPTOP, {"size": 32}).name == "mini"
    fitting = choose(replace(LAPTOP, memory=2 * GIB), {"base": 64, "backbone": "resnet50"}).config.recipe
    assert fitting.batch_size < 128  # so that what is given fits
    assert choose(GPU, {"precision": "32-true"}).config.machine.precision == "32-true"
    assert choose(LAPTOP, {"stream": True}).config.machine.stream


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_memory_of_a_step_is_not_estimated_too_low(backbone: str) -> None:
    """Against what autograd keeps; without memory, but for attention, which is spelled out there."""
    device = "cpu" if backbone.startswith("vit") else "meta"
    for (stem, size), bytes_per_pixel in zip((("imagenet", 224), ("cifar", 32)), BYTES[backbone], strict=True):
        with torch.device(device), WithoutFilling():
            network = create(backbone, **options_for(backbone, stem, size)).full
            images = torch.zeros(1, 3, size, size)
        kept: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, torch.Tensor] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage()._cdata] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network(images)
        own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
        found = sum(one.untyped_storage().nbytes() for place, one in kept.items() if place not in own)
        share = found / size**2 / bytes_per_pixel
        assert 0.75 < share < 1.0


def test_auto_reads_headers_only(tmp_path: Path) -> None:
    picture = Image.fromarray(np.zeros((90, 120, 3), np.uint8))
    for kind, number in product(("cats", "dogs"), range(10)):
        (tmp_path / kind).mkdir(exist_ok=True)
        picture.save(tmp_path / kind / f"{number}.png")
    facts = look(tmp_path, {"accelerator": "cpu"})
    assert (facts.images, set(facts.shapes), facts.labelled) == (16, {(90, 120)}, True)  # a fifth is held out
    assert facts.cores >= 1
    assert look(tmp_path, {"images": 5}).images == 5
    pixels = look(torch.zeros(7, 3, 40, 50, dtype=torch.uint8))
    assert (pixels.images, pixels.side, pixels.labelled) == (7, 40, False)


def test_a_million_file_names_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def read(indices: np.ndarray) -> Any:
        asked.extend(indices)
        return (Image.new("RGB", (80, 60)) for _ in indices)

    labels = np.full(1_000_000, -1)
    catalogue = Catalogue(lambda index: f"{index}.jpg", read, labels, [], None)
    monkeypatch.setattr(auto, "available_memory", lambda: 16 * GIB)
    facts = look(ImageFiles("many", catalogue, np.arange(len(labels))), {"accelerator": "cpu"})
    assert (facts.images, facts.side) == (1_000_000, 60)
    assert len(asked) < 1_000
    assert "read while training" in choose(replace(facts, shapes=(PHOTO,))).why


def test_the_command_says_what_it_chose_and_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run records what was chosen, and resumes as it began, whatever would be chosen now."""
    photos, run = tmp_path / "photos", Run(tmp_path / "run")
    photos.mkdir()
    for number in range(40):
        Image.new("RGB", (66, 50)).save(photos / f"{number}.png")
    trained = []

    def train(config: RunConfig, run: Run, *_: object) -> None:
        trained.append(config)
        if not run.started:
            run.start(config)

    monkeypatch.setattr(auto, "available_memory", lambda: 16 * GIB)
    monkeypatch.setattr("us3l.commands.report.after", lambda _: None)
    monkeypatch.setattr("us3l.training.loop.train", train)
    command = ["pretrain", str(photos), "--out", str(run.folder)]
    typed = ["--base", "8", "--batch", "8", "--dim=16", "--no-max-first", "--hue", "0.1", "--accelerator", "cpu"]
    assert main([*command, *typed]) == 0
    output = capsys.readouterr().out
    assert "recipe mini-photos: resnet18 with 8 channels at first, views of 48 pixels, batches of 8, 200 ep" in output
    assert "because: 40 images of about 66 x 50 pixels, without labels; a CPU with" in output
    assert "to change it: --size N, --base N, --batch-size N, --epochs N, --method NAME or --recipe NAME" in output
    assert "40 images: a network that starts from scratch" in output
    kept = config_of(run).recipe
    assert (kept.views.size, kept.views.blur, kept.epochs, kept.network.base) == (48, 0.5, 200, 8)
    assert (kept.objective.dim, kept.objective.max_first, kept.optimiser) == (16, False, named("mini").optimiser)
    monkeypatch.setattr(auto, "look", lambda *_: pytest.fail("a run that is resumed has its settings"))
    assert main([*command, "--resume"]) == main([*command, "--resume", "--recipe", "auto"]) == 0
    assert trained[0].recipe == trained[1].recipe == trained[2].recipe
    assert main(command) == 2  # before anything is looked at


@pytest.mark.parametrize("backbone", ["vit_tiny", "convnext_atto"])
def test_transformers_and_their_like_learn_by_adamw(backbone: str) -> None:
    facts = AutoFacts(4_000, ((600, 800),), cores=2, memory=16 * GIB)
    like = named("mini-cifar-vit-tiny")
    chosen = choose(facts, {"backbone": backbone, "batch_size": 32, "epochs": 30}).config.recipe
    assert chosen.optimiser == replace(like.optimiser, lr=like.optimiser.lr / 4, warmup=4.0)
    assert "optimiser adamw" in choose(facts, {"backbone": backbone}).what
    gpu = choose(replace(facts, device="cuda"), {"backbone": backbone, "batch_size": 512}).config.recipe
    assert gpu.optimiser.lr == named("cifar-vit-tiny").optimiser.lr
    for given in ({"backbone": backbone, "algorithm": "sgd"}, {"backbone": "mobilenet_v2"}, {}):
        assert choose(facts, given).config.recipe.optimiser.algorithm == "sgd"


@pytest.mark.parametrize("given", [{}, {"method": "us3l"}, {"recipe": "digits"}, {"method": "simclr"}])
def test_the_method_is_ours_unless_a_method_or_a_recipe_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    trained: list[RunConfig] = []
    monkeypatch.setattr("us3l.training.loop.train", lambda config, *_: trained.append(config))
    pretrain("digits", tmp_path / "run", **given)  # type: ignore[arg-type]
    expected = named("digits")
    if method := given.get("method", None if "recipe" in given else "us3l-plus"):
        expected = expected.with_method(method)
    assert trained[0].resolved().recipe == expected.resolved()
    assert (trained[0].recipe.sub_views is not None) == (given == {})


def test_settings_are_checked_before_anything_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "look", lambda *_: pytest.fail("looked"))
    for wrong in ({"size": "large"}, {"batch_size": 0}, {"epoch": 3}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            pretrain("photos", tmp_path / "run", **wrong)  # type: ignore[arg-type]


def test_recipes_for_photographs() -> None:
    assert {"photos", "mini-photos"} < set(RECIPES)
    assert named("photos").resolved().network.stem == named("mini-photos").resolved().network.stem == "imagenet"
    assert Views(size=96, blur=0.5) == named("mini-photos").views
