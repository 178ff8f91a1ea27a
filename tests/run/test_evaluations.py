import json
import shutil
from dataclasses import replace

import pytest
import torch

import us3l
from us3l.run import Run
from us3l.run.evaluations import (
    EvaluationRecord,
    Score,
    WidthResult,
    find_evaluation,
    read_evaluation,
    settle,
    usual_evaluation,
    write_evaluation,
)
from us3l.run.identity import DataIdentity
from us3l.run.probes import keep_probes, read_probes
from us3l.system.errors import UserError

SCORE = Score(50.0, None, 40.0, 60.0, (50.0, None))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "run" / "model"
    us3l.create("resnet18", stem="cifar", base=8).save(folder)
    return folder


@pytest.fixture
def run(model, tmp_path):
    return Run(shutil.copytree(model.parent, tmp_path / "run"))


def record(source, *widths, name="photos", linear=50.0, **changes):
    rows = [WidthResult(width, 10, 20, linear=linear) for width in widths]
    about = EvaluationRecord(
        name,
        rows,
        data=source,
        identity=DataIdentity(source, 100, 50, 2, "abc"),
        protocol="fast",
        size=16,
        train_images=100,
        test_images=50,
        seeds=1,
        classes=["a", "b"],
        scores={width: {"linear": SCORE} for width in widths},
    )
    return replace(about, **changes)


def save(run, new, **options):
    settled = settle(run, new, **options)
    write_evaluation(run, settled)
    return settled


def test_it_comes_back(run):
    saved = save(run, record("/data/photos", 1.0, 0.5))
    assert read_evaluation(run, "photos") == saved
    assert run.evaluations == {"photos": saved}
    assert saved.weights == run.weights
    assert (saved.us3l, saved.torch) == (us3l.__version__, torch.__version__.split("+")[0])
    assert json.loads((run.evaluation_folder / "photos.json").read_text())["version"] == 3


def test_data_sets_in_folders_of_one_name_do_not_replace_each_other(run):
    first = save(run, record("/c10/data", 1.0, name="data", linear=100.0))
    second = save(run, record("/c100/data", 1.0, name="data", linear=40.0))
    assert first.name == "data"
    assert second.name.startswith("data-")
    assert find_evaluation(run, "/c10/data", "fast").percent("linear") == {1.0: 100.0}
    assert find_evaluation(run, "/c100/data", "fast").percent("linear") == {1.0: 40.0}
    assert find_evaluation(run, "/c100/data", "paper") is None
    assert save(run, record("/c100/data", 0.5, name="data")).name == second.name
    assert len(run.evaluations) == 2


def test_data_behind_a_link_is_found_by_either_name(run, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save(run, record(str(tmp_path / "real"), 1.0))
    assert find_evaluation(run, tmp_path / "link", "fast").percent("linear") == {1.0: 50.0}


def test_widths_are_added_and_new_figures_replace_old_ones(run):
    save(run, record("/photos", 1.0, 0.5, linear=10.0))
    saved = save(run, record("/photos", 0.5, 0.25, linear=20.0))
    assert saved.percent("linear") == {1.0: 10.0, 0.5: 20.0, 0.25: 20.0}
    assert list(saved.scores) == [1.0, 0.5, 0.25]
    assert save(run, record("/photos", 0.5), overwrite=True).percent("linear") == {0.5: 50.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": 7}, "other settings .train_images 100 instead of 7"),
        ({"training": {"epochs": 2}}, "other settings .training None instead of"),
        ({"seeds": 3}, "other settings .seeds"),
        ({"identity": DataIdentity("/photos", 100, 50, 2, "other")}, "held other images"),
    ],
)
def test_other_settings_are_refused_unless_named_or_overwritten(run, changes, message):
    save(run, record("/photos", 1.0))
    other = record("/photos", **changes)  # before the work: no widths yet
    with pytest.raises(UserError, match=f"{message}.*choose another `name`, or set `overwrite`"):
        settle(run, other)
    assert settle(run, other, name="second").name == "second"
    assert settle(run, other, overwrite=True).name == "photos"


def test_a_name_that_other_data_has_is_refused(run):
    save(run, record("/photos", 1.0))
    with pytest.raises(UserError, match="of other data"):
        settle(run, record("/birds", 1.0), name="photos")
    for name in ("../out", ".hidden", "", "a\nb"):
        if name:
            with pytest.raises(UserError, match="cannot name an evaluation"):
                settle(run, record("/photos", 1.0), name=name)
    assert settle(run, record("/odd", 1.0, name=".odd\n[x]")).name == "odd_[x]"


def test_results_of_other_weights_are_refused(run):
    saved = save(run, record("/photos", 1.0))
    keep_probes(run, saved, {1.0: (torch.zeros(2, 8), torch.zeros(2))})
    assert list(read_probes(run, "photos").linear) == [1.0]
    torch.manual_seed(1)
    us3l.create("resnet18", stem="cifar", base=8).save(run.model, overwrite=True)
    with pytest.raises(UserError, match=r"photos\.json belongs to another model, whose weights differ: evaluate again"):
        _ = run.evaluations
    with pytest.raises(UserError, match=r"probes\.safetensors belongs to another model"):
        read_probes(run, "photos")
    with pytest.raises(UserError, match="other weights"):
        settle(run, record("/photos", 0.5))


def test_probes_of_earlier_widths_are_kept(run):
    linear = torch.zeros(2, 8), torch.zeros(2)
    keep_probes(run, save(run, record("/photos", 1.0)), {1.0: linear})
    keep_probes(run, save(run, record("/photos", 0.5)), {0.5: linear})
    assert list(read_probes(run, "photos").linear) == [1.0, 0.5]
    keep_probes(run, save(run, record("/photos", 0.25), overwrite=True), {0.25: linear}, overwrite=True)
    assert list(read_probes(run, "photos").linear) == [0.25]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"widths": 3}',
        '{"widths": [{"width": NaN, "params": 1, "macs": 1}]}',
        '{"widths": [], "scores": {"wide": {}}}',
        '{"widths": [], "scores": {"1": {"knn": {"top1": 1}}}}',
        '{"widths": [], "weights": {"weights": 1}}',
        '{"widths": [], "size": ' + "9" * 400 + "}",
        '{"widths": [], "classes": [1]}',
        '{"widths": [], "classes": ["a"], "scores": {"1": {"knn": {"top1": 1, "top5": null, "low": 0, "high": 2,'
        ' "per_class": [1, 2]}}}}',
        '{"version": 4, "widths": []}',
        '{"version": [3], "widths": []}',
        '{"version": 3, "widths": [{"width": 1, "params": 1, "macs": 1, "rankme": "many"}]}',
    ],
)
def test_damaged_files_are_one_line(run, text):
    run.evaluation_folder.mkdir()
    (run.evaluation_folder / "photos.json").write_text(text)
    with pytest.raises(UserError, match=r"photos\.json") as error:
        _ = run.evaluations
    assert "\n" not in str(error.value)


def test_a_link_that_leads_out_is_not_followed(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run.evaluation_folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of"):
        save(run, record("/photos", 1.0))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_widths_that_are_calibrated_later_do_not_matter_but_new_statistics_do(run):
    net = us3l.load(run.model)
    us3l.calibrate(net, torch.randn(16, 3, 8, 8), [1.0, 0.5])
    net.save(run.model, overwrite=True)
    saved = save(run, record("/photos", 1.0, 0.5))
    us3l.calibrate(net, torch.randn(16, 3, 8, 8), [0.25])
    net.save(run.model, overwrite=True)
    assert run.evaluations == {"photos": saved}
    us3l.calibrate(net, torch.randn(16, 3, 8, 8), [0.5])
    net.save(run.model, overwrite=True)
    with pytest.raises(UserError, match="whose statistics differ"):
        _ = run.evaluations


def test_the_evaluation_that_counts_when_none_is_named():
    def record(name: str, data: str, protocol: str, date: str = "") -> EvaluationRecord:
        return EvaluationRecord(name, [], data=data, protocol=protocol, date=date)

    finetuned, fast = record("a-finetune", "photos", "finetune", "2026-02"), record("b", "photos", "fast", "2026-01")
    assert usual_evaluation({one.name: one for one in (finetuned, fast)}) is fast
    newer = record("c", "photos", "fast", "2026-03")
    assert usual_evaluation({one.name: one for one in (finetuned, fast, newer)}) is newer
    with pytest.raises(UserError, match="several data sets, b, d: say which counts"):
        usual_evaluation({one.name: one for one in (fast, record("d", "pets", "fast"))})
