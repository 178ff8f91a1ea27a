"""One space for all widths of a run: maps that are fitted when they are first needed, and kept in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from us3l.costs import feature_count
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import Data, open_images
from us3l.deploy.classifiers import Head
from us3l.deploy.deployment_settings import SpaceName as SpaceName
from us3l.evaluation.linear import Probe
from us3l.evaluation.mapping import IMAGES, fit_space, images_to_fit
from us3l.evaluation.prepare import MEMORY, calibrate_left_out
from us3l.run import Run
from us3l.run.linear_maps import Linear, keep_space, read_space
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.width import FULL, Width


def shared_maps(run: Run, net: Slimmable) -> dict[Width, Head]:
    """The maps that a run has, by canonical width."""
    space = read_space(run)
    return {} if space is None else as_heads(net, space.linear, space.data)


def as_heads(net: Slimmable, linear: Mapping[Width, Linear], data: str) -> dict[Width, Head]:
    """Return maps that were fitted on some data as heads, by canonical width."""
    heads = {}
    for width, (weight, bias) in linear.items():
        alone = weight.shape[1] == feature_count(net.skeleton(width), Preprocessing.of(net).size)
        beside = None if alone else net.canonical(net.min_width)
        heads[net.canonical(width)] = Head(Probe(weight, bias), None, data, beside=beside)
    return heads


def fit_missing(
    run: Run, net: Slimmable, widths: Sequence[Width], data: Data | None = None, progress: Progress = SILENT
) -> dict[Width, Head]:
    """The maps of these widths and of the full network; those that the run lacks are fitted and kept.

    Args:
        run: Whose widths they are.
        net: Its network.
        widths: Those that are wanted.
        data: Images to fit them on, without labels (default: those of the training).
        progress: Told what is fitted on what.
    """
    known = shared_maps(run, net)
    wanted = dict.fromkeys(net.canonical(width) for width in (FULL, *widths))
    missing = [width for width in wanted if width not in known]
    if missing:
        source = run.data if data is None else data
        if source is None:
            raise UserError(
                f"{run.folder} does not say which images it was trained on, and a space for all widths is fitted on "
                "some: name them by `space_data`"
            )
        side = Preprocessing.of(net).resize
        images = open_images(source, "train", side, limit=IMAGES, memory=MEMORY, progress=progress)
        named = ", ".join(f"{width:g}x" for width in missing)
        progress.say(f"fitting the space that all widths share, on {images.name}: {named}")
        full = known[net.canonical(1.0)].probe if net.canonical(1.0) in known else None
        with progress.counting("embedding", images_to_fit(net, images, missing)) as count:
            maps = fit_space(net, images, missing, count.more, full)
        linear = {width: (probe.weight.cpu(), probe.bias.cpu()) for width, probe in maps.items()}
        if run.saved:
            keep_space(run, linear, images.name)
        known = shared_maps(run, net) if run.saved else known | as_heads(net, linear, images.name)
    found = {width: known[width] for width in wanted}
    beside = [head.beside for head in found.values() if head.beside is not None]
    calibrate_left_out(run, net, beside, data if isinstance(data, str) else None, progress)
    return found


def space_of(value: str) -> SpaceName:
    """The name of a space, or a `UserError`."""
    if value not in ("own", "shared"):
        raise UserError(f"space={value!r:.40} must be 'own' or 'shared'")
    return "shared" if value == "shared" else "own"
