import pytest

from us3l.errors import UserError
from us3l.objective.sampling import sample_widths
from us3l.objective.spec import Objective, warning
from us3l.paper.cases import READERS, case, cases
from us3l.paper.tables import table
from us3l.training.recipes import CIFAR, MINI

COUNTS = {
    "app-ablation": 28,
    "app-ablation-sample": 5,
    "intersect": 4,
    "app-ablation-reg": 9,
    "app-ablation-reg-for-byol": 6,
    "ablation1": 12,
}


@pytest.mark.parametrize("name", READERS)
def test_every_row_is_a_case(name):
    assert len(cases(name)) == COUNTS[name]
    recipes = [case.apply(MINI) for case in cases(name)]
    settings = [(recipe.objective, recipe.network.backbone) for recipe in recipes]
    assert len(set(settings)) == COUNTS[name]  # no two rows mean the same


def test_cases_agree_with_the_tables_own_columns():
    for found, row in zip(cases("app-ablation-sample"), table("app-ablation-sample"), strict=True):
        objective = found.apply(MINI).objective
        forwards = sum(len(sample_widths(objective, 0.25, step, 400, 0)) for step in range(400))
        assert forwards == float(row["Expected forward number"].rstrip("T")) * 400
    for found, row in zip(cases("app-ablation-reg"), table("app-ablation-reg"), strict=True):
        objective = found.apply(MINI).objective
        assert round(100 * objective.alpha * objective.groups) == int(row["Max decay fraction G x alpha"].rstrip("%"))


def test_the_same_experiment_in_different_tables_is_the_same_case():
    """The paper repeats rows: their figures are equal, and so must be our settings."""
    best = case("app-ablation/23").apply(MINI)
    for name in (
        "app-ablation-sample/2",
        "intersect/3",
        "app-ablation-reg/1",
        "app-ablation-reg-for-byol/5",
        "ablation1/1",
    ):
        assert case(name).apply(MINI) == best
    assert case("app-ablation-sample/5").apply(MINI) == case("ablation1/2").apply(MINI)
    assert case("app-ablation-reg-for-byol/6").apply(MINI) == case("app-ablation-reg/3").apply(MINI)
    assert case("app-ablation-reg/3").apply(MINI) == case("ablation1/3").apply(MINI)
    assert case("ablation1/4").apply(MINI) == MINI  # all strategies together are US3L itself


def test_mse_methods_have_the_papers_learning_rate_and_decay():
    simsiam = case("app-ablation/3").apply(CIFAR).optimiser
    assert (simsiam.lr, simsiam.weight_decay) == pytest.approx((0.1, 5e-4))
    assert case("app-ablation/24").apply(CIFAR).optimiser == CIFAR.optimiser


def test_the_guidelines_predict_the_worst_rows():
    """Cases that satisfy no guideline are those that the paper found collapsed or far behind."""
    for found, row in zip(cases("app-ablation"), table("app-ablation"), strict=True):
        if warning(found.apply(MINI).objective):
            assert row["1.0x"] == "-" or float(row["1.0x"]) < 58
    assert [found.name for found in cases("app-ablation") if warning(found.apply(MINI).objective)] == [
        f"app-ablation/{number}" for number in (1, 2, 3)
    ]
    assert warning(Objective()) is None
    assert "collapsed" in warning(case("app-ablation/2").apply(MINI).objective)


@pytest.mark.parametrize(
    "name", ["app-ablation/29", "app-ablation/0", "app-ablation", "app-ablation/x", "nothing/1", ""]
)
def test_unknown_cases(name):
    with pytest.raises(UserError, match="case"):
        case(name)


def test_nonsense_is_refused():
    for changes, message in [
        ({"head": "shared"}, "predictor to share"),
        ({"distill_loss": "own"}, "head='new' serves imitation"),
        ({"base_loss": "l1"}, "base_loss='l1' must be one of 'infonce', 'mse'"),
        ({"samples": 0}, "samples=0"),
        ({"alpha": 0.2}, "must not exceed 1"),
    ]:
        with pytest.raises(UserError, match=message):
            Objective(**changes)
    assert Objective(alpha=-0.05).alpha == -0.05
