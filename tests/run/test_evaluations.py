import json
import shutil
from dataclasses import replace

import pytest
import torch

import us3l
from tests.made_runs import result
from us3l.run import Run
from us3l.run.evaluations import EVALUATIONS, EvaluationRecord, find_evaluation, usual_evaluation, with_earlier
from us3l.run.identity import DataIdentity
from us3l.run.linear_maps import keep_probes, read_probes
from us3l.system.errors import UserError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "run" / "model"
    us3l.create("resnet18", stem="cifar", base=8).save(folder)
    return folder


@pytest.fixture
def run(model, tmp_path):
    return Run(shutil.copytree(model.parent, tmp_path / "run"))


def record(source, *widths, name="photos", linear=50.0, **changes):
    rows = [result(width, linear=linear, linear_untrained=12.5, rankme=3.5, classes=2) for width in widths]
    about = EvaluationRecord(
        rows,
        name=name,
        data=source,
        identity=DataIdentity(source, 100, 50, 2, "abc"),
        protocol="fast",
        size=16,
        train_images=100,
        test_images=50,
        seeds=1,
        classes=["a", "b"],
    )
    return replace(about, **changes)


def save(run, new, **options):
    return EVALUATIONS.write(run, with_earlier(run, new, **options))


def test_it_comes_back(run):
    saved = save(run, record("/data/photos", 1.0, 0.5))
    assert EVALUATIONS.read(run, "photos") == saved
    assert run.evaluations == {"photos": saved}
    assert saved.weights == run.weights
    assert (saved.us3l, saved.torch) == (us3l.__version__, torch.__version__.split("+")[0])
    content = json.loads((run.evaluation_folder / "photos.json").read_text())
    assert (content["version"], content["scores"].keys()) == (3, {"1", "0.5"})
    row = content["widths"][1]
    assert (row["width"], row["params"], row["macs"], row["bytes"]) == (0.5, 10, 20, 40)
    assert (row["linear"], row["linear_untrained"], row["linear_top5"], row["knn"]) == (50.0, 12.5, None, None)
    assert (row["linear_low"], row["linear_high"], row["rankme"]) == (48.0, 52.0, 3.5)


def test_widths_that_six_digits_do_not_tell_keep_their_scores(run):
    saved = save(run, record("/data/photos", 1 / 3))
    assert EVALUATIONS.read(run, "photos") == saved
    assert saved.percent("linear") == {1 / 3: 50.0}


def test_fields_that_are_not_known_are_ignored(run):
    saved = save(run, record("/data/photos", 1.0))
    path = EVALUATIONS.file(run, "photos")
    content = json.loads(path.read_text())
    content["widths"][0]["beauty"] = content["beauty"] = content["scores"]["1"]["linear"]["beauty"] = [{"a": 1}]
    path.write_text(json.dumps(content))
    assert EVALUATIONS.read(run, "photos") == saved


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
    assert [row.scores["linear"].top1 for row in EVALUATIONS.read(run, "photos").widths] == [10.0, 20.0, 20.0]
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
        with_earlier(run, other)
    assert with_earlier(run, other, name="second").name == "second"
    assert with_earlier(run, other, overwrite=True).name == "photos"


def test_a_name_that_other_data_has_is_refused(run):
    save(run, record("/photos", 1.0))
    with pytest.raises(UserError, match="of other data"):
        with_earlier(run, record("/birds", 1.0), name="photos")
    for name in ("../out", ".hidden", "", "a\nb"):
        if name:
            with pytest.raises(UserError, match="cannot name an evaluation"):
                with_earlier(run, record("/photos", 1.0), name=name)
    assert with_earlier(run, record("/odd", 1.0, name=".odd\n[x]")).name == "odd_[x]"


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
        with_earlier(run, record("/photos", 0.5))


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
        '{"version": 3}',
        '{"version": 3, "widths": 3}',
        '{"version": 3, "widths": [3]}',
        '{"version": 3, "widths": [{"width": 1}]}',
        '{"version": 3, "widths": [{"width": NaN, "params": 1, "macs": 1}]}',
        '{"version": 3, "widths": [{"width": 1, "params": true, "macs": 1}]}',
        '{"version": 3, "widths": [{"width": 1, "params": 1, "macs": 1}], "scores": {"1": {"knn": {"top1": 1}}}}',
        '{"version": 3, "widths": [], "weights": {"weights": 1}}',
        '{"version": 3, "widths": [], "size": ' + "9" * 400 + "}",
        '{"version": 3, "widths": [], "classes": [1]}',
        '{"version": 3, "widths": [{"width": 1, "params": 1, "macs": 1}], "classes": ["a"], "scores": {"1": {"knn":'
        ' {"top1": 1, "top5": null, "low": 0, "high": 2, "per_class": [1, 2]}}}}',
        '{"version": 4, "widths": []}',
        '{"version": [3], "widths": []}',
        '{"version": 3, "widths": [{"width": 1, "params": 1, "macs": 1, "rankme": "many"}]}',
        "[" * 100_000,
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
        return EvaluationRecord([], name=name, data=data, protocol=protocol, date=date)

    finetuned, fast = record("a-finetune", "photos", "finetune", "2026-02"), record("b", "photos", "fast", "2026-01")
    assert usual_evaluation({one.name: one for one in (finetuned, fast)}) is fast
    newer = record("c", "photos", "fast", "2026-03")
    assert usual_evaluation({one.name: one for one in (finetuned, fast, newer)}) is newer
    with pytest.raises(UserError, match="several data sets, b, d: say which counts"):
        usual_evaluation({one.name: one for one in (fast, record("d", "pets", "fast"))})
