from tests.made_runs import make_run
from us3l.run.cards import MARK, model_card, write_card


def test_a_card_says_what_the_model_is_and_how_good(tmp_path):
    run = make_run(tmp_path / "run")
    text = model_card(run)
    assert text.startswith("---\nlibrary_name: ")
    for line in ("# resnet18, slimmable", "- min width: 0.25", "- data: digits", "- steps: 300", "| width | MACs |"):
        assert line in text
    assert "| 0.5 |" in text
    assert "80.0" in text
    assert str(tmp_path) not in text  # nothing about the machine


def test_one_that_somebody_has_made_their_own_stays(tmp_path):
    run = make_run(tmp_path / "run", evaluated=False, profiled=False)
    path = write_card(run)
    assert MARK in path.read_text()
    assert "How good it is" not in path.read_text()
    path.write_text("mine")
    assert write_card(run).read_text() == "mine"
