"""A run's folder with everything in it, made in a second without training."""

import io
import json
from dataclasses import replace

import torch

import us3l
from us3l.deploy.profile import all_costs
from us3l.run import Run
from us3l.run.evaluations import EvaluationRecord, Score, WidthResult, settle, write_evaluation
from us3l.run.profiles import Latency, Profile, write_profile
from us3l.training.recipes import Network, named
from us3l.training.run_config import RunConfig

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
        results = [
            WidthResult(width, costs[net.canonical(width)].params, costs[net.canonical(width)].macs, linear=top1)
            for width, top1 in WIDTHS.items()
            if not individual or width == 1
        ]
        score = Score(82.0, None, 80.0, 84.0, (82.0,) * len(classes or []))
        record = EvaluationRecord("digits", results, train_images=1000, test_images=350, classes=classes)
        write_evaluation(run, settle(run, replace(record, scores={1.0: {"linear": score}})))
    if profiled:
        timed = [
            Latency(width, "onnx", batch, batch * width, 2 * batch * width) for width in (1.0, 0.5) for batch in (1, 8)
        ]
        write_profile(run, Profile(16, list(costs.values()), timed, {"cpu": "abacus"}))
    return run


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
    run.log.write_text(
        "2026-01-01 10:00:00 resnet18 (base 8) on digits: 40 images, 300 steps of 8, 1 x cpu\n"
        "2026-01-01 10:01:00 epoch 1/2\n"
        "2026-01-03 10:00:00 resnet18 (base 8) on digits: 40 images, 300 steps of 8, 1 x cpu\n"
        "2026-01-03 10:00:30 the model is in there\n"
    )
