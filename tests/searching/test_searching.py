"""A search without labels, on a tiny run."""

import json
from math import prod
from random import Random

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.mobilenetv2 import InvertedResidual

import us3l
from tests.made_runs import make_run
from us3l.commands.main import main
from us3l.evaluation.unlabelled import linear_cka
from us3l.reporting.run_page import run_facts
from us3l.reporting.search_tables import bars
from us3l.run.searches import SCORES, SEARCHES, ScoreLog
from us3l.searching.evolution import Evolution
from us3l.searching.judging import Judge
from us3l.searching.pricing import BlockTimes, Prices, named
from us3l.searching.search_space import Space
from us3l.system.errors import UserError
from us3l.system.files import as_plain
from us3l.system.stopping import Interrupted
from us3l.width import Width

FEW = {"candidates": 12, "images": 50}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> us3l.Run:
    return make_run(tmp_path_factory.mktemp("runs") / "searched", evaluated=False, profiled=False)


@pytest.fixture(scope="module")
def record(run):
    """Of a budget between the network's ends, with blocks left out."""
    return us3l.search(run, macs=budget(run), depth=True, **FEW)


def budget(run: us3l.Run) -> float:
    full, narrow = (us3l.cost(run.network, width, size=16).macs for width in (1.0, 0.25))
    return (full + narrow) / 2


def test_the_best_keeps_the_budget_and_is_kept_with_the_run(run, record):
    best = record.at(record.best)
    assert record.fits
    assert best.figures["macs"] == us3l.cost(run.network, record.best, size=16).macs <= budget(run)
    finalists = [one for one in record.networks if one.confirmed is not None]
    assert best.confirmed == max(one.confirmed for one in finalists)
    assert run.searches == {record.name: record}
    assert us3l.load(run.folder).calibrated(record.best)
    front = record.front()
    assert [one.score for one in front] == sorted(one.score for one in front)
    assert [one.figures["macs"] for one in front] == sorted(one.figures["macs"] for one in front)
    assert front[-1].score == record.at(1.0).score == pytest.approx(100)
    rows = SEARCHES.file(run, record.name).with_suffix(".csv").read_text().splitlines()
    assert rows[0].startswith("width,score,confirmed,macs,params,size_mb")
    assert len(rows) == 1 + len(record.networks)
    with pytest.raises(UserError, match="already exists"):
        us3l.search(run, macs=budget(run), **FEW)


def test_picking_and_profiling_know_it(run, record):
    picked = us3l.pick(run, macs=record.at(record.best).figures["macs"])
    assert picked.ranked_by == "agreement with the full network on digits"
    assert picked.choice.candidate.accuracy == max(
        one.score for one in record.networks if one.figures["macs"] <= picked.budgets["macs"]
    )
    found = us3l.profile(run, repeats=1, device="here")
    assert record.best.as_plain() in {row["width"] for row in found.rows if row.get("p50_ms")}


def test_the_page_draws_it(run, record):
    facts = run_facts(run, "digits", run.network, 16)
    (one,) = (one for one in facts["searches"] if one["name"] == record.name)
    assert json.loads(json.dumps(facts, allow_nan=False, default=as_plain)) == facts
    searched, plain = one["chart"]["series"]
    assert searched["points"][-1][1] == pytest.approx(100)
    assert all("-" not in name for _, _, name in plain["points"])
    rows = {width: stages for stages, width, *_ in one["table"]["rows"]}
    assert rows[record.best.as_plain()] == bars(record.best, (2, 2, 2, 2))
    assert rows[1.0] == "██ ██ ██ ██"
    assert one["table"]["columns"][0]["name"] == "stages"


def test_the_same_seed_finds_the_same_and_a_stopped_search_goes_the_same_way(run, record, monkeypatch):
    """Killed after five scores, and with a line that was half written."""
    calls = []

    class Killed(Judge):
        def __call__(self, width):
            calls.append(width)
            if len(calls) == 6:
                raise Interrupted("now")
            return super().__call__(width)

    monkeypatch.setattr("us3l.searching.searcher.Judge", Killed)
    settings = {"macs": budget(run), "depth": True, "name": "again"} | FEW
    with pytest.raises(Interrupted):
        us3l.search(run, **settings)
    path = SEARCHES.file(run, "again").with_name("again" + SCORES)
    assert len(path.read_text().splitlines()) == 6
    with pytest.raises(UserError, match="other settings"):
        us3l.search(run, **settings | {"seed": 1})
    with path.open("a") as file:
        file.write('{"name": "0.')
    again = us3l.search(run, **settings)
    assert [(one.width, one.score) for one in again.networks] == [(one.width, one.score) for one in record.networks]
    assert again.best == record.best
    assert calls.count(1.0) == 1  # which was scored before it was killed
    assert not path.exists()


def test_what_cannot_be_searched_is_one_clear_line(run, capsys):
    assert main(["search", str(run.folder), "--macs", "10"]) == 2
    said = capsys.readouterr().err
    assert "no sub-network keeps a budget of 10 (MACs): the smallest, 0.25-0.25-0.25-0.25, has" in said
    assert said.count("\n") == 1
    for settings, message in (
        ({}, "at least one budget"),
        ({"macs": -1}, "must be above 0"),
        ({"macs": 1e12}, "the full network keeps the budget"),
        ({"macs": 1e6, "images": 3}, "images=3"),
        ({"macs": 1e6, "candidates": 3}, "candidates=3"),
        ({"macs": 1e6, "colour": 3}, "unknown setting 'colour'"),
        ({"macs": 1.2e6, "data": torch.zeros(60, 3, 16, 16, dtype=torch.uint8)}, "at least 100"),
    ):
        with pytest.raises(UserError, match=message):
            us3l.search(run, **settings)
    with pytest.raises(UserError, match=r"one width for all of its layers: there is nothing to search$"):
        Space.of(us3l.Slimmable(lambda width: nn.Linear(4, round(8 * width))))
    with pytest.raises(UserError, match="nothing to search"):
        Space.of(us3l.create("vit_tiny"))
    with pytest.raises(UserError, match="fixed list"):
        Space.of(us3l.create("resnet18", base=8, switchable=[0.5, 1.0]))


@pytest.mark.parametrize(
    "change",
    [{"best": "0.5-0.5-0.5-1"}, {"budgets": {}}, {"budgets": {"macs": -1}}, {"networks": 3}, {"fits": 1}, {"data": 3}],
)
def test_a_damaged_record_is_named(run, record, change):
    path = SEARCHES.file(run, "damaged")
    path.write_text(json.dumps(json.loads(SEARCHES.file(run, record.name).read_text()) | change))
    try:
        with pytest.raises(UserError, match="search again, with `overwrite`"):
            SEARCHES.read(run, "damaged")
    finally:
        path.unlink()


def test_evolution_finds_the_best_of_a_known_landscape():
    """Two stages count much and two cost much: the best spends the budget where it counts."""
    space = Space(((0.25, 0.5, 0.75, 1.0),) * 4, ())
    worth, price = (8, 1, 4, 1), (1, 4, 1, 4)

    def score(genes):
        return sum(w * (gene + 1) ** 0.5 for w, gene in zip(worth, genes, strict=True))

    def excess(genes):
        return sum(p * (gene + 1) for p, gene in zip(price, genes, strict=True)) / 20

    all_genes = [(a, b, c, d) for a in range(4) for b in range(4) for c in range(4) for d in range(4)]
    expected = max((genes for genes in all_genes if excess(genes) <= 1), key=score)
    for seed in range(5):
        evolution = Evolution(space, score, excess, 60, seed)
        evolution.run()
        assert len(evolution.scores) <= 60
        assert score(evolution.best[0]) == score(expected)
    random = Random(0)
    for _ in range(50):
        child = evolution.fitted(space.drawn(random))
        assert excess(child) <= 1
        larger = [space.moved(child, place, 1) for place in range(4)]
        assert all(excess(genes) > 1 for genes in larger if genes is not None)


def test_judging_leaves_the_network_as_it_was(run):
    net = us3l.load(run.folder)
    before = list(net.calibrations)
    images = torch.randn(60, 3, 16, 16)
    judge = Judge(net, images)
    assert judge(1.0) == 100
    subnet = Width((1, 0.25, 1, 0.25))
    assert 0 <= judge(subnet) < 100
    assert all(kept is same for kept, same in zip(net.calibrations, before, strict=True))
    features = judge.features(subnet)
    us3l.calibrate(net, images, subnet)
    torch.testing.assert_close(features, net.at(subnet)(images), rtol=1e-4, atol=1e-5)


def test_linear_cka_is_its_formula():
    def naive(x: Tensor, y: Tensor) -> float:
        def hsic(a: Tensor, b: Tensor) -> Tensor:
            centre = torch.eye(len(a)) - 1 / len(a)
            return (centre @ a @ a.T @ centre @ b @ b.T).trace()

        return 100 * float(hsic(x, y) / (hsic(x, x) * hsic(y, y)).sqrt())

    x, y = torch.randn(20, 5), torch.randn(20, 3)
    assert linear_cka(x, y) == pytest.approx(naive(x, y), rel=1e-3)
    assert linear_cka(x, 0 * y) == 0


def test_latencies_are_sums_of_blocks_that_are_timed_once(run):
    net, kept = run.network, []
    times = BlockTimes(net, 16, keep=lambda *one: kept.append(one))
    one, other = Width((1, 1, 1, 0.25)), Width((1, 1, 1, 1), (2, 2, 2, 1))
    first, second = times(one), times(other)
    assert len(kept) == len(dict(kept)) == len(times.known)
    shared = len(times.known)
    assert times(1.0) == pytest.approx(times.known[named(net.blank(1.0), (1, 3, 16, 16))])  # the sums are scaled
    assert len(times.known) == shared
    again = BlockTimes(net, 16, dict(kept))
    assert (again(one), again(other)) == (first, second)
    prices = Prices(net, 16, {"latency_ms": second, "memory_mb": 1.0}, times)
    assert prices.excess(other) >= 1
    assert prices(other)["memory_mb"] > 0


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "convnext_atto"])
def test_prices_added_up_from_blocks_are_those_of_the_network(name):
    net = us3l.create(name, stem="cifar", base=16, num_classes=7)
    space, random = Space.of(net, depth=True), Random(0)
    prices = Prices(net, 32, {})
    for genes in (space.smallest, space.drawn(random)):
        width = net.canonical(space.subnet(genes))
        expected = us3l.cost(net.skeleton(width).eval(), (3, 32, 32))
        found = prices(width)
        assert (found["macs"], found["params"], found["size_mb"]) == (
            expected.macs, expected.params, expected.bytes / 1e6
        )  # fmt: skip


def test_blocks_of_other_strides_are_other_blocks():
    """The narrowest stages of a MobileNetV2 have equally many channels, and not all of them halve the maps."""
    blocks = [InvertedResidual(8, 8, stride, 6) for stride in (1, 2)]
    assert len({named(block, (1, 8, 4, 4)) for block in blocks}) == 2


def test_a_log_of_other_settings_is_not_continued(tmp_path):
    log = ScoreLog(tmp_path / "log", {"seed": 0})
    log.keep_score("0.5", 3.0)
    log.keep_time("block", 0.1)
    again = ScoreLog(tmp_path / "log", {"seed": 0})
    assert (again.scores, again.times) == ({"0.5": 3.0}, {"block": 0.1})
    with pytest.raises(UserError, match="other settings"):
        ScoreLog(tmp_path / "log", {"seed": 1})


def pretended(jobs, _):
    """As many milliseconds as a block has weights: no clock decides."""
    weights = {name: filter(None, name.split(" ")[1].split(",")) for name in jobs}
    return {name: [10.0 + sum(prod(map(int, shape.split("x"))) for shape in weights[name])] for name in jobs}


def test_the_command_prints_and_draws(run, capsys, monkeypatch):
    monkeypatch.setattr("us3l.searching.pricing.take_turns", pretended)
    line = ["search", str(run.folder), "--candidates", "10", "--images", "50", "--name", "fast", "--latency-ms"]
    assert main([*line, "1e9"]) == 2
    assert "the full network keeps the budget" in capsys.readouterr().err
    assert not SEARCHES.file(run, "fast").with_name("fast" + SCORES).exists()
    assert main([*line, str(0.5 * BlockTimes(run.network, 16)(1.0))]) == 0
    said = capsys.readouterr().out
    record = run.searches["fast"]
    assert f"{record.best:g}x" in said
    assert SEARCHES.file(run, "fast").with_suffix(".png").exists()
    assert record.fits
    assert 0 < record.at(record.best).measured_ms < record.budgets["latency_ms"]
