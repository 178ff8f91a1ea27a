"""What `us3l serve` says before it serves."""

from us3l.commands import serve
from us3l.commands.main import main


class Listening:
    """Stands for a service that ends at once."""

    address = "http://nowhere"

    def run(self, ready):
        ready()


def test_several_classifiers_are_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "eval").mkdir()
    monkeypatch.setattr(serve.serve, "with_settings", lambda _: Listening())
    for name in ("digits", "pets"):
        (tmp_path / "eval" / f"{name}.probes.safetensors").touch()
        assert main(["serve", str(tmp_path)]) == 0
        said = capsys.readouterr().out.replace("\n", " ")
        assert ("has classifiers for digits, pets; choose one, --head digits" in said) == (name == "pets")
    assert serve.unchosen(serve.Serve(tmp_path, head="pets")) == []
