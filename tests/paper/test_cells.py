from dataclasses import replace

import pytest

import us3l
from us3l.objective.spec import momentum
from us3l.paper.cases import case, table
from us3l.paper.cells import (
    ABLATION,
    OURS,
    REPRODUCIBLE,
    TAKEN_AWAY,
    Pretraining,
    cells_of,
    chosen_rows,
    distinct,
    job_of,
    jobs_of,
    number_in,
    width_of,
)
from us3l.paper.scales import SCALES
from us3l.system.errors import UserError
from us3l.training.recipes import CIFAR, Recipe

MINI, SMALL, PAPER = SCALES["mini"], SCALES["small"], SCALES["paper"]
RESULTS = [name for name in REPRODUCIBLE if name not in OURS]


@pytest.mark.parametrize("name", RESULTS)
def test_every_figure_of_the_papers_tables_has_an_entry(name):
    told = [
        value
        for row in table(name)
        for column, value in row.items()
        if width_of(column) or column.startswith(("AP", "C-10")) or column in ("Flowers", "Pets", "Dtd")
    ]
    found = cells_of(name, PAPER)
    assert [cell.paper for cell in found] == [number_in(value) for value in told]
    assert [cell.collapsed for cell in found] == [value == "-" for value in told]
    assert sum(cell.paper is not None for cell in found) > 20


@pytest.mark.parametrize("name", REPRODUCIBLE)
def test_every_entry_is_a_run_that_can_be_configured(name):
    for scale in (MINI, SMALL, PAPER):
        for job in jobs_of(cells_of(name, scale), scale, 1):
            assert (job.teacher is not None) == job.recipe.objective.imitates_by_base_loss
            if scale is MINI:
                assert job.effort > 0
                assert job.recipe.images == 3000
                assert job.recipe.epochs in (5, 10, 20)  # SEED and supervised learning half, 800 epochs double
                assert job.data in ("cifar10", "cifar100")
            if scale is SMALL:
                assert (job.recipe.images, job.recipe.views.size) == (25_000, 16)
                assert job.recipe.epochs in (6, 11, 22)


def test_scales_for_cpus_are_the_papers_runs_scaled_down():
    for scale in (MINI, SMALL):
        vit = scale.recipe("cifar-vit-tiny")
        assert vit.optimiser.warmup / vit.epochs == pytest.approx(40 / 300)
        assert vit.objective.teacher_momentum is None
    assert PAPER.recipe("cifar-resnet18") == CIFAR
    usual, longer = (case(f"main-cifar100/{number}").at_scale("small") for number in (9, 10))  # 400 and 800 epochs
    steps = [38_800 * recipe.epochs / 11 for recipe in (usual, longer)]
    for recipe, count in zip((usual, longer), steps, strict=True):
        assert momentum(recipe.objective.teacher_memory, count) == pytest.approx(0.99)
    assert SMALL.epochs * (SMALL.images // 128) == 2145
    for number in (1, 3, 7, 19, 22, 23, 28):  # the guidelines at small scale
        found = chosen_rows(cells_of("app-ablation", SMALL), [number])
        (job,) = jobs_of(found, SMALL, 1)
        assert job.recipe == case(f"app-ablation/{number}").at_scale("small")


def test_tables_of_ours():
    found = cells_of("every-width", SMALL)
    rows = {cell.row: cell for cell in found if cell.width == 0.25}
    assert [(one.label, one.alone, one.paper) for one in rows.values()] == [
        ("SimCLR, each width alone", True, 53.6),
        ("US+SimCLR", False, 57.4),
        ("US3L (the paper's)", False, 60.4),
        ("US3L-plus", False, None),
    ]
    assert len(jobs_of(found, SMALL, 1)) == 4 + 3
    others = cells_of("backbones", SMALL)
    assert {cell.tested_on for cell in others} == {"cifar100"}
    made = [(job.recipe.network.backbone, job.recipe.network.individual) for job in jobs_of(others, SMALL, 1)]
    alone = [1.0, 0.75, 0.5, 0.25]
    assert made == [(name, one) for name in ("vit_tiny", "mobilenet_v2") for one in [*alone, None, None]]
    plus = [job.recipe for job in jobs_of([one for one in others if one.label.endswith("US3L-plus")], SMALL, 1)]
    assert [recipe.objective.sub_crop for recipe in plus] == [0.8, 0.8]
    less = jobs_of(cells_of("plus-ablation", SMALL), SMALL, 1)
    plus = less[0].recipe
    assert plus == SMALL.recipe("cifar-resnet18").with_method("us3l-plus")
    assert len({job.name for job in less}) == 1 + len(TAKEN_AWAY)
    assert all(job.recipe.objective != plus.objective for job in less[1:])


def test_what_stands_in_for_imagenet_is_trained_and_tested_on():
    assert {(cell.trained_on, cell.tested_on) for cell in cells_of("main-imagenet", PAPER)} == {("imagenet",) * 2}
    assert {(cell.trained_on, cell.tested_on) for cell in cells_of("main-imagenet", MINI)} == {("cifar100",) * 2}
    assert {cell.trained_on for cell in cells_of("coco", MINI)} == {"cifar100"}


def test_the_shorter_table_of_losses_is_part_of_the_full_one():
    full = table("app-ablation")
    for number, row in zip(ABLATION, table("ablation"), strict=True):
        for column, value in row.items():
            if width_of(column) or column == "Base Loss" or column == "Distill Loss":
                assert full[number - 1][column] == value


def test_tables_share_runs():
    def name(table: str, row: int) -> str:
        return job_of(chosen_rows(cells_of(table, MINI), [row])[0], MINI, 0).name

    assert name("main-cifar100", 9) == name("ablation1", 4) == name("steps", 1)
    assert name("app-ablation", 23) == name("ablation1", 1) == name("ablation", 13) == name("intersect", 3)
    assert name("motivation", 4) == name("main-cifar100", 2)
    assert len({name("app-ablation", row) for row in range(1, 29)}) == 28
    assert name("steps", 1) != name("steps", 2)


def test_individual_networks_are_a_run_for_each_width_and_teachers_come_first():
    found = chosen_rows(cells_of("main-cifar100", MINI), [5])
    jobs = jobs_of(found, MINI, 2)
    assert [job.recipe.network.individual for job in jobs] == [1, 1, 0.75, 0.5, 0.25] * 2
    assert [job.recipe.objective.base_loss for job in jobs[:2]] == ["mse", "seed-mse"]
    assert all(job.teacher == jobs[0] for job in jobs[1:5])
    assert [job.recipe.seed for job in jobs] == [0] * 5 + [1] * 5
    assert all(job.teacher == jobs[5] for job in jobs[6:])


def test_a_name_stands_for_its_settings_and_survives_new_ones():
    recipe = Recipe(epochs=7)
    assert Pretraining("a", recipe).name == Pretraining("a", replace(recipe)).name
    others = [
        Pretraining("b", recipe),
        Pretraining("a", replace(recipe, batch_size=64)),
        Pretraining("a", recipe, Pretraining("a", recipe)),
    ]
    assert len({job.name for job in [Pretraining("a", recipe), *others]}) == 4
    old = {"epochs": 7, "optimiser": {"lr": 0.5}}
    new = {"epochs": 7, "optimiser": {"lr": 0.5, "nesterov": False}, "stars": None}
    defaults = {"epochs": 400, "optimiser": {"lr": 0.1, "nesterov": False}, "stars": None}
    assert distinct(old, defaults) == distinct(new, defaults) == {"epochs": 7, "optimiser": {"lr": 0.5}}


def test_effort_is_the_papers_count_of_networks():
    """Individual networks: an epoch each, by their share of the full one; S-Net of four widths: the sum."""
    found = {cell.row: cell for cell in cells_of("motivation", PAPER)}
    alone = job_of(replace(found[4], width=0.5), PAPER, 0)
    assert alone.effort == pytest.approx(400 * 0.25)
    assert job_of(found[6], PAPER, 0).effort == pytest.approx(400 * (1 + 0.75**2 + 0.5**2 + 0.25**2))


def test_unknown_tables_and_rows_are_named():
    with pytest.raises(UserError, match="no table 'main' can be reproduced: choose from main-cifar100"):
        cells_of("main", MINI)
    with pytest.raises(UserError, match="scale: expected 'mini' or 'small' or 'paper', got 'smal'"):
        us3l.reproduce("steps", scale="smal")
    with pytest.raises(UserError, match="unknown `scale` 'smal'"):
        case("app-ablation/1").at_scale("smal")
    with pytest.raises(UserError, match="no row 30: the table has rows 1 to 28"):
        chosen_rows(cells_of("app-ablation", MINI), [30])
