import re
from pathlib import Path

import torch

import us3l
from tests.shapes import write_coco

GUIDE = Path(__file__).parents[2] / "docs" / "detect.md"


def test_the_python_of_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_coco(tmp_path / "my-boxes", train2017=2, val2017=1)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(4, 3, 32, 32), widths=[0.5])
    net.save("runs/photos/model")
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["detector"].classes == ["block", "disc"]
    assert names["findings"].masks == names["record"].masks is not None
