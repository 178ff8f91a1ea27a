from dataclasses import asdict, replace

import pytest
import torch
from lightning_fabric import Fabric

from tests.made_runs import as_saved
from us3l.objective.sampling import sample_widths
from us3l.objective.spec import Objective, warning
from us3l.paper.cases import ABLATIONS, TABLES, case, cases, table
from us3l.system.errors import UserError
from us3l.training.recipes import CIFAR, MINI
from us3l.training.trainer import Trainer

COUNTS = {
    "app-ablation": 28,
    "app-ablation-sample": 5,
    "intersect": 4,
    "app-ablation-reg": 9,
    "app-ablation-reg-for-byol": 6,
    "ablation1": 12,
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_row_is_a_case(name):
    assert len(cases(name)) == COUNTS[name]
    recipes = [case.apply(MINI) for case in cases(name)]
    settings = [(recipe.objective, recipe.network.backbone) for recipe in recipes]
    assert len(set(settings)) == COUNTS[name]  # no two rows mean the same


def test_rows_of_the_main_tables_have_the_papers_settings():
    details = {row["Method"]: row for row in table("appendix-details")}
    assert {name: len(cases(name)) for name in TABLES[:4]} == {
        "main-cifar100": 23,
        "main-vit-cifar10": 6,
        "main-imagenet": 6,
        "motivation": 7,
    }
    for found, row in zip(cases("main-cifar100"), table("main-cifar100"), strict=True):
        recipe = found.at_scale("paper")
        assert (recipe.network.individual is None) == (row["Once Training"] == "yes")
        assert (found.teacher is None) == (not recipe.objective.imitates_by_base_loss)
        short = row["Method"] == "SEED" and row["Backbone"] != "ResNet-50"
        assert recipe.epochs == (200 if short else 800 if "800ep" in row["Method"] else 400)
        known = details.get(row["Method"].removeprefix("US+"))
        if known and row["Backbone"] == "ResNet-18":
            told = recipe.optimiser.lr, recipe.optimiser.weight_decay, recipe.batch_size, recipe.objective.dim
            assert told == pytest.approx([float(known[name]) for name in ("lr", "wd", "bs", "dim")])
            if recipe.objective.base_loss == "infonce":
                assert recipe.objective.temperature == float(known["tau"])
            assert known["m"] == "-" or float(known["m"]) == recipe.objective.teacher_momentum
    vit = case("main-vit-cifar10/3").at_scale("paper")
    assert (vit.optimiser.algorithm, vit.optimiser.lr, vit.optimiser.warmup, vit.epochs) == ("adamw", 3e-4, 40, 300)
    assert (vit.objective.base_loss, vit.objective.distill_loss, vit.objective.temperature) == (
        "mocov3",
        "infonce",
        0.2,
    )
    assert case("main-imagenet/6").at_scale("paper").network.backbone == "resnet50"
    assert case("main-imagenet/3").at_scale("paper").objective.base_loss == "mse"


def features(one):
    """What the training of a case may depend on: its backbone, each of its settings, and both losses together."""
    recipe = one.at_scale("mini")
    settings = asdict(recipe.objective) | asdict(recipe.network)
    losses = settings["base_loss"], settings["distill_loss"]
    alpha = settings["alpha"]
    settings |= {"alpha": (alpha > 0) - (alpha < 0), "groups": 8, "individual": settings["individual"] is not None}
    return {(name, repr(value)) for name, value in settings.items()} | {("losses", repr(losses))}


def covering_cases():
    """Cases of all tables that have, together, everything that any of them has."""
    left = {one: features(one) for name in TABLES for one in cases(name)}
    chosen, lacking = [], set().union(*left.values())
    while lacking:
        chosen.append(max(left, key=lambda one: len(left[one] & lacking)))
        lacking -= left.pop(chosen[-1])
    return chosen


@pytest.mark.parametrize("one", covering_cases(), ids=lambda one: one.name)
def test_cases_with_every_setting_of_the_paper_train_and_resume_exactly(one, tiny_digits, pretrained):
    recipe = one.at_scale("mini")
    vit = recipe.network.backbone.startswith("vit")
    recipe = replace(
        recipe,
        network=replace(recipe.network, base=8, depth=2 if vit else None),
        objective=replace(recipe.objective, hidden=16, predictor=16, dim=8, queue=50),
        views=replace(recipe.views, size=8),
        teacher=pretrained,
        batch_size=8,
        max_steps=4 if vit else 2,  # their teacher stands still at first
    )

    def steps(trainer, count):
        return [torch.stack(trainer.train_step().losses).tolist() for _ in range(count)]

    whole, resumed = (Trainer(recipe, tiny_digits, Fabric(accelerator="cpu")) for _ in range(2))
    start = resumed.learner.state_dict()
    assert all(torch.equal(start[name], tensor) for name, tensor in whole.learner.state_dict().items())
    start = {name: tensor.clone() for name, tensor in start.items()}
    half = recipe.max_steps // 2
    steps(whole, half)
    saved = as_saved(whole.state())
    losses = steps(whole, half)
    resumed.load_state(saved)
    assert steps(resumed, half) == losses
    after, again = whole.learner.state_dict(), resumed.learner.state_dict()
    assert all(torch.equal(after[name], again[name]) for name in after)
    still = {name for name in after if torch.equal(start[name], after[name])}
    expected = {
        name for name in after if recipe.objective.imitates_by_base_loss and name.startswith("pretrained_teacher.")
    }
    expected |= {name for name in after if (vit and "patch_embed" in name) or "pos_embed" in name}
    assert still == expected


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
        ({"distill_loss": "none"}, "head='new' serves imitation"),
        ({"base_loss": "l1"}, "base_loss='l1' must be one of 'infonce', 'mse'"),
        ({"samples": 0}, "samples=0"),
        ({"alpha": 0.2}, "must not exceed 1"),
        ({"fixed_widths": ()}, "at least one width"),
        ({"fixed_widths": (0.5, 1.2)}, "above 0 and at most 1"),
        ({"base_loss": "moco", "momentum_base": False}, "needs momentum_base"),
        ({"base_loss": "cross-entropy"}, "excludes momentum_base"),
        ({"base_loss": "seed", "momentum_base": False}, "excludes momentum_sub"),
        ({"distill_loss": "soft", "head": "none"}, "only base_loss='cross-entropy'"),
        ({"queue": 0}, "queue=0"),
        ({"teacher_temperature": 0.0}, "must be positive"),
        ({"teacher_features": 0.6, "teacher_relations": 0.5}, "together at most 1"),
        ({"teacher_features": -0.1}, "teacher_features=-0.1 must be a share"),
        ({"sub_crop": 0}, "sub_crop=0 must be a share"),
        ({"alpha_ramp": (0.6, 0.5)}, "two shares of training in order"),
        ({"relation_temperature": 0.0}, "relation_temperature=0.0 must be positive"),
        ({"full_alone": 1.5}, "full_alone=1.5 must be a share"),
    ]:
        with pytest.raises(UserError, match=message):
            Objective(**changes)
    assert Objective(alpha=-0.05).alpha == -0.05


def test_networks_trained_alone_do_not_offer_other_widths():
    rows = table("app-ablation-reg-for-byol")
    for found, row in zip(cases("app-ablation-reg-for-byol"), rows, strict=True):
        recipe = found.at_scale("mini")
        assert (recipe.network.individual == 1.0) == (row["Model Type"] == "individual")
        assert recipe.objective.alpha == (0.05 if row["Group Regularization"] == "yes" else 0)
        assert recipe.objective.base_loss == ("mse" if row["Method"] == "BYOL" else "infonce")
