"""Accuracy of networks: features, kNN, linear probes, fine-tuning, and comparison of runs.

Everything that is meant to be called from elsewhere is here by its name; it is imported when it is first used, so
that command lines need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from us3l.evaluation.comparing import Comparison as Comparison
    from us3l.evaluation.comparing import compare_runs as compare_runs
    from us3l.evaluation.features import embed as embed
    from us3l.evaluation.finetuned import finetuned_network as finetuned_network
    from us3l.evaluation.frozen import evaluate_frozen as evaluate_frozen
    from us3l.evaluation.jobs import Job as Job
    from us3l.evaluation.linear import Probe as Probe
    from us3l.evaluation.linear import linear_probe as linear_probe
    from us3l.evaluation.neighbours import knn as knn
    from us3l.evaluation.protocols import Training as Training
    from us3l.evaluation.settings import EvaluationSettings as EvaluationSettings
    from us3l.evaluation.tasks import Evaluation as Evaluation
    from us3l.evaluation.trained import evaluate_finetuned as evaluate_finetuned
    from us3l.evaluation.trained import evaluate_paper as evaluate_paper

_HOMES = {
    "Job": "jobs",
    "EvaluationSettings": "settings",
    "Evaluation": "tasks",
    "evaluate_frozen": "frozen",
    "evaluate_paper": "trained",
    "evaluate_finetuned": "trained",
    "finetuned_network": "finetuned",
    "compare_runs": "comparing",
    "Comparison": "comparing",
    "Training": "protocols",
    "embed": "features",
    "knn": "neighbours",
    "linear_probe": "linear",
    "Probe": "linear",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
