"""Training at sub-networks with a width and a depth for each stage."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from us3l.data.sources import ImageSet
from us3l.families.family import as_family
from us3l.system.errors import UserError
from us3l.training.recipes import MINI, Network, Recipe, named
from us3l.training.run_networks import new_network
from us3l.training.trainer import Trainer

RECIPE = replace(
    MINI,
    network=Network("resnet18", base=8),
    objective=replace(MINI.objective, hidden=16, dim=8, max_first=False, mixed=1.0, mixed_depth=0.5),
    views=replace(named("digits").views, size=8),
    batch_size=16,
    max_steps=4,
)


PER_WIDTH = replace(RECIPE, objective=replace(RECIPE.objective, update="per-width"))


@pytest.mark.parametrize("recipe", [RECIPE, PER_WIDTH], ids=["per-batch", "per-width"])
def test_a_resumed_training_goes_the_same_way_to_the_bit(tiny_digits: ImageSet, recipe: Recipe) -> None:
    whole = Trainer(recipe, tiny_digits, Fabric(accelerator="cpu"))
    drawn = [whole.widths(step) for step in range(4)]
    assert all(not widths[1].plain and widths[0] == 1.0 for widths in drawn)
    assert any(not widths[1].plain and widths[1].depths for widths in drawn)
    results = [whole.train_step() for _ in range(2)]
    state = copy.deepcopy(whole.state())
    results += [whole.train_step() for _ in range(2)]
    assert [result.widths for result in results] == drawn
    assert all(torch.stack(result.losses).isfinite().all() for result in results)
    resumed = Trainer(recipe, tiny_digits, Fabric(accelerator="cpu"))
    resumed.load_state(state)
    for _ in range(2):
        resumed.train_step()
    for ours, theirs in zip(whole.learner.parameters(), resumed.learner.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_update_leaves_blocks_alone_that_its_network_does_not_have(
    tiny_digits: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither weight decay nor the momentum of other updates moves them."""
    trainer = Trainer(PER_WIDTH, tiny_digits, Fabric(accelerator="cpu"))
    blocks = dict(trainer.learner.net.full.named_parameters())
    last = {stage: blocks[f"layer{stage}.1.conv1.weight"] for stage in range(1, 5)}
    changed: list[set[int]] = []
    update = trainer.update

    def watched(*given: Any) -> Tensor:
        before = {stage: weight.detach().clone() for stage, weight in last.items()}
        result = update(*given)
        changed.append({stage for stage, weight in last.items() if not torch.equal(weight, before[stage])})
        return result

    monkeypatch.setattr(trainer, "update", watched)
    for _ in range(4):
        changed.clear()
        widths = trainer.train_step().widths
        expected = [
            {stage for stage, depth in enumerate(width.depths or (2, 2, 2, 2), start=1) if depth == 2}
            if not width.plain
            else {1, 2, 3, 4}
            for width in widths
        ]
        assert changed == expected


def test_a_network_without_stages_is_refused() -> None:
    def family(width: float) -> torch.nn.Module:
        return torch.nn.Linear(4, round(8 * width))

    recipe = replace(RECIPE, network=replace(RECIPE.network, backbone="here:family"))
    with pytest.raises(UserError, match="has no stages"):
        new_network(recipe, as_family(family))
