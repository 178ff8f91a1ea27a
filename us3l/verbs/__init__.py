"""What the commands do, as functions of the same names with the same settings.

They take a run (a `Run`, or the path of its folder; where it makes sense a network in memory) and return results as
objects. They print nothing unless `progress` asks for it. Only what is named here is imported at once: torch comes
with the first call.
"""

from us3l.verbs.checking import doctor
from us3l.verbs.deploying import export, pick, profile
from us3l.verbs.measuring import compare, detect, evaluate
from us3l.verbs.pretraining import pretrain
from us3l.verbs.searching import search
from us3l.verbs.sharing import publish
from us3l.verbs.summaries import report, reproduce
from us3l.verbs.using import embed, find, predict

__all__ = [
    "compare",
    "detect",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "find",
    "pick",
    "predict",
    "pretrain",
    "profile",
    "publish",
    "report",
    "reproduce",
    "search",
]
