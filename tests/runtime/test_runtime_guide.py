import re
from pathlib import Path

import us3l
from us3l.runtime.runtime import Runtime

GUIDE = Path(__file__).parents[2] / "docs" / "runtime.md"


def test_the_python_of_the_guide_runs(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(us3l, "Runtime", Runtime, raising=False)
    small.save("runs/cifar10/model")
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        exec(code, names)
    assert names["features"].shape[0] == 1  # of the width that this machine can hold just now
    assert names["runtime"].embed(names["images"], latency_ms=100_000).shape == (1, 64)
    assert "0.25" in capsys.readouterr().out
    assert Path("decisions.json").exists()
