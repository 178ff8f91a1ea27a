"""Frozen teachers: the network of a finished run with its projector, which the run keeps for this."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from us3l.errors import UserError
from us3l.objective.heads import projector
from us3l.run import Run
from us3l.storage import check_same, copy_weights, load, read_tensors, shapes_of, write_tensors


@torch.no_grad()
def save_projector(path: Path, head: nn.Sequential, features: Tensor) -> None:
    """Keep a projector with the statistics of its batch norms, which are those on these features."""
    kept = {name: parameter.detach() for name, parameter in head.named_parameters()}
    x = features
    for number, layer in enumerate(head):
        if isinstance(layer, nn.BatchNorm1d):
            kept[f"{number}.running_mean"], kept[f"{number}.running_var"] = x.mean(0), x.var(0)
        x = layer(x.clone())  # ReLUs work in place
    write_tensors(path, kept)


def load_teacher(path: str, image_size: int) -> nn.Module:
    """The full network of a run or a model, followed by the run's projector where there is one: frozen, any batch."""
    net = load(path)
    trained = net.metadata.get("preprocessing", {}).get("size")
    if net.family.image_size not in (None, image_size):
        raise UserError(f"the teacher in {path} sees images of {trained} pixels only: set `size={trained}`")
    if not net.calibrated(1.0):
        raise UserError(f"the teacher in {path} is not calibrated at width 1: us3l.calibrate and save it again")
    network = net.carve(1.0)
    run = Run(path)
    if not run.projector.exists():
        if run.started and not run.finished:
            raise UserError(
                f"{path} has lost its projector: `us3l.pretrain(out={str(path)!r}, resume=True)` makes it again"
            )
        return network.eval()
    return nn.Sequential(network, read_projector(read_tensors(run.projector), str(run.projector))).eval()


def read_projector(tensors: dict[str, Tensor], name: str) -> nn.Sequential:
    try:
        (hidden, features), dim = tensors["0.weight"].shape, len(tensors["6.bias"])
    except (KeyError, ValueError, TypeError):
        raise UserError(f"{name} does not hold a projector of us3l") from None
    head = projector(features, hidden, dim, final_norm="7.running_mean" in tensors)
    for layer in head:
        if isinstance(layer, nn.BatchNorm1d):
            for statistic in ("running_mean", "running_var"):
                layer.register_buffer(statistic, torch.zeros(layer.num_features))
            layer.track_running_stats = True
    own = head.state_dict()
    check_same(f"{name} does not hold a projector of us3l", tensors, shapes_of(own))
    copy_weights(tensors, own)
    return head
