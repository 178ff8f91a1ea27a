"""The guide's code runs, and what it makes is slimmable."""

import re
from pathlib import Path

import pytest
import torch

import us3l

GUIDE = Path(__file__).parents[2] / "docs" / "backbones.md"


@pytest.mark.filterwarnings("ignore:width .* is not calibrated")
def test_the_guides_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 9
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    assert "Cost(params=" in capsys.readouterr().out
    images = names["images"]
    for family in (names["my_family"], names["narrow_bottlenecks"], names["MyViT"]()):
        net = us3l.Slimmable(family)
        for width in (0.25, 0.37, 1.0):
            carved = net.carve(width).train()
            torch.testing.assert_close(net(images, width=width), carved(images), rtol=1e-4, atol=1e-4)
