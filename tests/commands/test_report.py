import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.made_runs import make_run
from us3l.commands import report
from us3l.commands.main import main
from us3l.run.config import write_config

TINY = "--max-steps 4 --batch-size 8 --base 8 --size 8 --calibration 8 --accelerator cpu".split()
TINY += "--hidden 16 --predictor 16 --dim 8".split()

pytestmark = pytest.mark.pages


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "made").folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "made")


def facts_in(path):
    return json.loads(re.search(r'id="report">(.*?)</script>', path.read_text(encoding="utf-8")).group(1))


def test_one_run(folder, capsys):
    assert main(["report", str(folder)]) == 0
    assert f"written: {folder / 'report.html'}" in capsys.readouterr().out
    (run,) = facts_in(folder / "report.html")["runs"]
    assert run["gallery"]["data"] == "digits"
    assert run["gallery"]["count"] == 359
    assert (folder / "report.html").stat().st_size < 3_000_000
    assert main(["report", str(folder), "--no-images"]) == 0  # what is derived is replaced
    (run,) = facts_in(folder / "report.html")["runs"]
    assert (run["gallery"], run["no_gallery"]) == (None, "No images were wanted in this page.")


def test_nothing_else_is_replaced_unasked(folder, tmp_path, capsys):
    out = tmp_path / "mine.html"
    out.write_text("mine")
    assert main(["report", str(folder), "--no-images", "--out", str(out)]) == 2
    assert "mine.html already exists: choose another --out, or set --overwrite" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["report", str(folder), "--no-images", "--out", str(out), "--overwrite"]) == 0
    assert facts_in(out)["title"] == "made"


def test_images_of_ones_own(folder, tmp_path):
    """A folder without labels, with too few images to hold any out."""
    random = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(24):
        Image.fromarray(random.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(
            tmp_path / "photos" / f"{number}.png"
        )
    assert main(["report", str(folder), "--data", str(tmp_path / "photos")]) == 0
    gallery = facts_in(folder / "report.html")["runs"][0]["gallery"]
    assert (gallery["data"], gallery["count"], gallery["labelled"]) == ("photos", 24, False)
    assert set(gallery["files"]) == {f"{number}.png" for number in range(24)}


def test_odd_but_legal_names(tmp_path, capsys):
    """From a folder of images to the page, and nothing of its name reaches the screen as a command."""
    random = np.random.default_rng(0)
    odd = ["a $x^ $ b", "[red]", "caf\udce9", "two\x1b[2J"]
    photos = tmp_path.joinpath(*odd, "[photos] $")
    for number in range(24):
        place = photos / f"class {number % 2} [b] $" / f"{number} {odd[number % 4]}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(place)
    run = tmp_path / "run"
    assert main(["pretrain", str(photos), "--out", str(run), *TINY]) == 0
    assert main(["evaluate", str(run), "--widths", "1", "0.5x", "--no-floor"]) == 0
    assert main(["report", str(run)]) == 0
    captured = capsys.readouterr()
    assert "no page was made" not in captured.out
    assert "\x1b" not in captured.out + captured.err
    (facts,) = facts_in(run / "report.html")["runs"]
    assert "class 0 [b] $" in facts["gallery"]["images"]


def test_what_cannot_be_shown_is_left_out_with_the_reason(folder, tmp_path):
    assert main(["report", str(folder), "--data", str(tmp_path / "gone" / "photos")]) == 0
    run = facts_in(folder / "report.html")["runs"][0]
    assert run["gallery"] is None
    assert "no such file or folder" in run["no_gallery"]
    young = make_run(tmp_path / "young", finished=False).folder
    assert main(["report", str(young)]) == 0
    run = facts_in(young / "report.html")["runs"][0]
    assert "young is not finished: `us3l.pretrain(out=" in run["problem"]
    assert len(run["curves"]) == 9


def test_bad_input(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for arguments, message in [
        ([], "say which runs to report on"),
        ([folder, folder], "a run is given twice"),
        ([folder, tmp_path / "empty"], "several runs should go: set --out, such as compared.html"),
        ([tmp_path / "empty"], "empty is not a run: there is no config.yaml in it"),
        ([folder, "--out", tmp_path / "page.pdf"], "page.pdf: the page is written as .html"),
    ]:
        assert main(["report", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert len(captured.err.splitlines()) == 1
    for name, old, new, message in [
        ("eval/digits.json", "{", "nonsense", "digits.json"),
        ("eval/digits.json", '"high"', '"height"', "digits.json"),
        ("profile/profile.json", "{", "nonsense", "profile.json"),
        ("profile/profile.json", '"p50_ms": 1.0', '"p50_ms": NaN', "p50_ms"),
        ("metrics.jsonl", "{", "nonsense", "metrics.jsonl"),
    ]:
        whole = (folder / name).read_text()
        assert old in whole
        (folder / name).write_text(whole.replace(old, new))
        assert main(["report", str(folder), "--no-images"]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert len(captured.err.splitlines()) == 1
        (folder / name).write_text(whole)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_finished_run_does_not_fail_for_its_page(folder, monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("us3l.commands.report.reported", fail)
    report.after(folder)
    output = capsys.readouterr().out
    assert len(output.splitlines()) == 1
    assert "no page was made" in output
    assert f"report {folder}" in output


def test_only_the_first_process_makes_the_page(tmp_path, monkeypatch, capsys):
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    made: list[Path] = []
    monkeypatch.setattr("us3l.training.loop.train", lambda config, run, *_: write_config(run.config_file, config))
    monkeypatch.setattr("us3l.commands.report.after", made.append)
    for rank, pages in ((1, []), (0, [tmp_path / "0"])):
        monkeypatch.setattr(rank_zero_only, "rank", rank)
        assert main(["pretrain", "digits", "--out", str(tmp_path / str(rank))]) == 0
        assert made == pages
        assert ("What next" in capsys.readouterr().out) == (rank == 0)


def test_new_measurements_come_into_the_page_of_a_run_that_has_one(folder):
    shutil.rmtree(folder / "eval")
    few = "--data digits --widths 1 0.25 --train-images 60 --test-images 60 --no-floor".split()
    assert main(["evaluate", str(folder), *few]) == 0
    assert not (folder / "report.html").exists()
    shutil.rmtree(folder / "eval")
    assert main(["report", str(folder), "--no-images"]) == 0
    assert facts_in(folder / "report.html")["runs"][0]["evaluations"] == []
    assert main(["evaluate", str(folder), *few]) == 0
    assert len(facts_in(folder / "report.html")["runs"][0]["evaluations"]) == 1
