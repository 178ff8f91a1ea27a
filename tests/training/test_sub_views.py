"""Gentler views for sub-networks (`sub_crop`): who sees what, in memory and streamed."""

import copy
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image

from us3l.data import crops
from us3l.data.augment import random_views
from us3l.data.sources import find, load
from us3l.system.seeds import seed_from, seeded
from us3l.training.monitor import Monitor
from us3l.training.recipes import MINI, Network, Recipe
from us3l.training.run_config import Machine
from us3l.training.trainer import Trainer

SMALL = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8),
    views=replace(MINI.views, size=16),
    batch_size=8,
    epochs=2,  # of four steps; in the first two the full network is alone
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The same images in memory and in files."""
    folder, images = tmp_path_factory.mktemp("files"), load("digits", "train", limit=32)
    for number, image in enumerate(images.images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((20, 20)).save(folder / f"{number:02d}.png")
    return {"in memory": images, "streamed": find(folder, "pretrain")}


def recipe(**objective) -> Recipe:
    return replace(SMALL, objective=replace(SMALL.objective, **objective))


def trainer(images, machine=None, **objective) -> Trainer:
    return Trainer(recipe(**objective), images, Fabric(accelerator="cpu"), machine)


def seen_in(ours: Trainer, step: int) -> dict[float, list[tuple[torch.Tensor, ...]]]:
    """The views that each width saw in a step, share by share."""
    seen: dict[float, list[tuple[torch.Tensor, ...]]] = {}
    hook = ours.learner.register_forward_pre_hook(
        lambda _, inputs: seen.setdefault(inputs[1], []).append(inputs[0])  # type: ignore[func-returns-value]
    )
    ours.step = step
    ours.train_step()
    hook.remove()
    return seen


def test_sub_networks_see_gentler_views_of_the_same_images(sources):
    usual, ours = trainer(sources["in memory"]), trainer(sources["in memory"], sub_crop=0.9)
    expected, found = seen_in(usual, 5), seen_in(ours, 5)
    base, *subs = usual.widths(5)
    assert all(torch.equal(*pair) for pair in zip(found[base][0], expected[base][0], strict=True))
    images = sources["in memory"].images[ours.epoch(1)[1].indices]
    gentle = replace(SMALL.views, crop_scale=(0.9, 1.0))
    for width in subs:
        views = random_views(images, gentle, seeded(seed_from(0, 2), 5, 1))
        assert all(torch.equal(*pair) for pair in zip(found[width][0], views, strict=True))


def test_the_losses_are_those_of_these_views(sources):
    """Targets of the base's views, outputs of the sub-networks' own: naively, by calls of the learner."""
    ours = trainer(sources["in memory"], sub_crop=0.9)
    ours.step = 5
    learner = copy.deepcopy(ours.learner)
    seen: list[tuple[torch.Tensor, ...]] = []
    ours.learner.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    losses, widths = ours.train_step().losses, ours.widths(5)
    learner.update_teacher(5, ours.steps)
    with torch.no_grad():
        targets = [learner.teacher(view) for view in seen[0]]
        for loss, width, views in zip(losses[1:], widths[1:], seen[1:], strict=True):
            p1, p2 = (learner.g(learner.projector(learner.net(view, width))) for view in views)
            cosine = torch.nn.functional.cosine_similarity
            expected = -(cosine(p1, targets[1]).mean() + cosine(p2, targets[0]).mean()) / 2
            torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["in memory", "streamed"])
def test_a_resumed_run_sees_the_same(sources, kind, monkeypatch):
    """From the middle of an epoch, with other numbers of workers."""
    settings = {"sub_crop": 0.9}
    whole, first, second = (trainer(sources[kind], **settings) for _ in range(3))
    losses = [whole.train_step().losses for _ in range(7)]
    for _ in range(5):
        first.train_step()
    second.load_state(copy.deepcopy(first.state()))
    monkeypatch.setenv("US3L_WORKERS", "1" if kind == "streamed" else "0")
    for number in (5, 6):
        assert torch.equal(torch.stack(second.train_step().losses), torch.stack(losses[number]))


def test_streamed_sub_networks_see_the_same_images(tmp_path):
    """Each of one brightness, which crops and flips leave as it is."""
    for number in range(32):
        Image.new("RGB", (20, 20), (8 * number,) * 3).save(tmp_path / f"{number:02d}.png")
    views = replace(SMALL.views, jitter=0.0, grey=0.0, blur=0.0)
    ours = Trainer(replace(recipe(sub_crop=1.0), views=views), find(tmp_path, "pretrain"), Fabric(accelerator="cpu"))
    ours.step = 5
    batch = ours.read_batch()
    brightness = [view.mean(dim=(1, 2, 3)) for view in batch.views]
    assert len(set(brightness[0].tolist())) == len(batch.views[0])
    assert len(brightness) == 4
    for other in brightness[1:]:
        torch.testing.assert_close(other, brightness[0])


def test_streamed_images_are_decoded_once_for_all_views(sources, monkeypatch):
    monkeypatch.setenv("US3L_WORKERS", "0")
    decoded: list[object] = []
    decode = crops.decode
    monkeypatch.setattr(crops, "decode", lambda encoded, **by: decoded.append(encoded) or decode(encoded, **by))
    ours = trainer(sources["streamed"], sub_crop=0.9)
    batch = ours.read_batch()
    assert [view.shape[-1] for view in batch.views] == [16, 16, 16, 16]
    assert len(decoded) == len(batch)


def test_parts_of_a_batch_and_gauges(sources):
    ours = trainer(sources["in memory"], Machine("cpu", accumulate=2), sub_crop=0.9)
    _, *subs = ours.widths(5)
    seen = seen_in(ours, 5)
    assert [view[0].shape for view in seen[subs[0]]] == [(4, 3, 16, 16)] * 2
    gauges = Monitor(ours).measure()
    assert gauges[0.5]["spread"] > 0
