"""A run's folder with everything in it, made in a second without training."""

import io
import json
from dataclasses import replace

import torch

import us3l
from us3l.costs import Cost
from us3l.deploy.profiling import all_costs
from us3l.run import Run
from us3l.run.evaluations import EVALUATIONS, METRICS, EvaluationRecord, Score, WidthResult
from us3l.run.profiles import Latency, Profile, write_profile
from us3l.run.training_log import Start, append_start
from us3l.training.recipes import Network, named
from us3l.training.run_config import RunConfig
from us3l.width import Width

WIDTHS = {1.0: 90.0, 0.5: 80.0, 0.25: 60.0}
"""Evaluated, and with which accuracy."""


def make_run(folder, data="digits", classes=None, evaluated=True, profiled=True, finished=True, **network):
    """The run; its network has eight widths, of which three are evaluated and two are timed."""
    run = Run(folder)
    recipe = replace(named("digits"), network=Network(base=8, **network), images=40)
    run.start(RunConfig(data, recipe))
    write_records(run)
    if not finished:
        return run
    torch.manual_seed(0)
    individual = {} if recipe.network.individual is None else {"individual": recipe.network.individual}
    net = us3l.create("resnet18", stem="cifar", base=8, **individual)
    us3l.calibrate(net, torch.randn(16, 3, 16, 16))
    net.metadata = {"preprocessing": {"size": 16}, "training": {"steps": 300, "seed": 0}}
    net.save(run.model)
    costs = {row.width: row for row in all_costs(net, 16)}
    if evaluated:
        results = []
        for width, top1 in WIDTHS.items():
            if not individual or width == 1:
                price = costs[net.canonical(width)]
                results.append(result(width, price.params, price.macs, classes=len(classes or []), linear=top1))
        record = EvaluationRecord(results, train_images=1000, test_images=350, classes=classes, name="digits")
        EVALUATIONS.write(run, record)
    if profiled:
        timed = [
            Latency(width, "onnx", batch, batch * width, 2 * batch * width) for width in (1.0, 0.5) for batch in (1, 8)
        ]
        write_profile(run, Profile(16, list(costs.values()), timed, {"cpu": "abacus"}, name="profile"))
    return run


def result(width, params=10, macs=20, reach=2.0, classes=0, **figures):
    """What was measured at a width: accuracies by their names, with 95 % intervals of +- `reach`."""
    top5 = {metric: figures.pop(f"{metric}_top5", None) for metric in METRICS}
    floors = {metric: figures.pop(f"{metric}_untrained", None) for metric in METRICS}
    untrained = {metric: top1 for metric, top1 in floors.items() if top1 is not None}
    scores = {
        metric: Score(top1, top5[metric], top1 - reach, top1 + reach, (top1,) * classes)
        for metric in METRICS
        if (top1 := figures.pop(metric, None)) is not None
    }
    return WidthResult(Width(width), Cost(params, macs, macs, 4 * params), scores, untrained, **figures)


def as_saved(state):
    """The state of a trainer as a checkpoint holds it: what goes on changing in the trainer stays as it was."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def write_records(run, steps=300):
    """Losses that fall, of widths that join one after another; gauges at ten moments."""
    lines = []
    for step in range(steps):
        widths = [1.0] if step < steps // 4 else [1.0, 0.25, (0.3, 0.41, 0.55, 0.7, 0.9)[step % 5]]
        losses = [5.0 - step / steps] + [-width for width in widths[1:]]
        lines.append({"event": "step", "step": step, "epoch": 1, "lr": 0.1, "widths": widths, "losses": losses})
        if step % (steps // 10) == steps // 10 - 1:
            gauges = {"1": {"spread": 0.9, "knn": 80.0}, "0.25": {"spread": step / steps, "knn": 60.0, "turn": 0.5}}
            gauges["1"] |= {"rankme": 40.0, "lidar": 20.0}
            gauges["0.25"] |= {"rankme": 10.0, "lidar": 5.0 + 5 * step / steps, "agreement": 50.0}
            lines.append({"event": "monitor", "step": step, "epoch": 1, "gauges": gauges})
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for time, step in (("2026-01-01 10:00:00", 0), ("2026-01-03 10:00:00", 150)):
        append_start(run, Start(time, step, steps, 40, 8, 1, "cpu", "0.1.0", "2.14.1"))
    run.log.write_text(
        "2026-01-01 10:00:00 resnet18 (base 8) on digits: 40 images, 300 steps of 8, 1 x cpu\n"
        "2026-01-01 10:01:00 epoch 1/2\n"
        "2026-01-03 10:00:00 resnet18 (base 8) on digits: 40 images, 300 steps of 8, 1 x cpu\n"
        "2026-01-03 10:00:30 the model is in there\n"
    )
