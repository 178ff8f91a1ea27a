"""Evaluations in a run's folder, without evaluating."""

import json


def write_evaluation(folder, accuracies, name="photos", **fields):
    """Write an evaluation into a run's folder: top-1 by width, then by the name of the metric."""
    interval = {"top5": None, "low": 0.0, "high": 100.0, "per_class": []}
    rows = [{"width": width, "params": int(1000 * width), "macs": int(9000 * width)} for width in accuracies]
    scores = {
        f"{width:g}": {metric: {"top1": top1, **interval} for metric, top1 in kinds.items()}
        for width, kinds in accuracies.items()
    }
    (folder / "eval").mkdir(parents=True, exist_ok=True)
    content = {"version": 3, "widths": rows, "scores": scores, **fields}
    (folder / "eval" / f"{name}.json").write_text(json.dumps(content))
