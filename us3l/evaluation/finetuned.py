"""Fine-tuned networks of a run, as networks."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from us3l.run import Run
from us3l.run.finetuned import Finetuned, finetuned_file, list_finetuned, read_finetuned
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width


def find_finetuned(run: Run, net: Slimmable, width: Width, name: str | None = None) -> Finetuned:
    """What fine-tuning left for the network that a width means.

    Args:
        run: The run's folder.
        net: Its slimmable network.
        width: Any width that means the same network as the one that was fine-tuned.
        name: Of the evaluation, needed if there are several.
    """
    kept = list_finetuned(run)
    if not kept:
        raise UserError(f"{run.folder} has no fine-tuned networks: evaluate it with the protocol 'finetune'")
    name = choose_evaluation(run, kept, name, "networks fine-tuned as", "name")
    same = [one for one in kept[name] if net.canonical(one) == net.canonical(width)]
    if not same:
        widths = ", ".join(f"{one:g}" for one in sorted(kept[name], reverse=True))
        raise UserError(f"{run.folder}: {name} was not fine-tuned at width {width:g}, only at {widths}")
    return read_finetuned(run, name, same[0])


def choose_evaluation(run: Run, known: Collection[str], name: str | None, what: str, setting: str) -> str:
    """The name asked for, or the only one there is.

    Args:
        run: Whose evaluations they are.
        known: The names of those that left something; at least one.
        name: The one asked for.
        what: They left, for errors.
        setting: That names one of them, for errors.
    """
    names = ", ".join(known)
    if name is None and len(known) > 1:
        raise UserError(f"{run.folder} has {what} {names}: choose one, `{setting}={next(iter(known))!r}`")
    if name is not None and name not in known:
        raise UserError(f"{run.folder} has no {what} {name!r}, only {names}")
    return name or next(iter(known))


def finetuned_network(run: Run, net: Slimmable, width: Width, name: str | None = None) -> nn.Module:
    """The network that fine-tuning made of a width, in eval mode: images to logits.

    Args:
        run: The run's folder.
        net: Its slimmable network.
        width: Any width that means the same network as the one that was fine-tuned.
        name: Of the evaluation, needed if there are several.
    """
    kept = find_finetuned(run, net, width, name)
    try:
        classes, features = kept.tensors["1.weight"].shape
        whole = nn.Sequential(net.carve(kept.width), nn.Linear(features, classes))
        if classes != len(kept.classes):
            raise ValueError(f"{classes} outputs for {len(kept.classes)} classes")
        whole.load_state_dict(kept.tensors)
    except (KeyError, ValueError, RuntimeError) as error:
        path = finetuned_file(run, kept.data, kept.width)
        raise UserError(f"{path} does not fit the network: {str(error).splitlines()[0]}") from None
    return whole.eval()
