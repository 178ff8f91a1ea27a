from pathlib import Path

import pytest

from us3l.commands.main import main

GUIDE = Path(__file__).parents[2] / "docs" / "backbones.md"


def test_the_table_is_that_of_the_guide(capsys):
    assert main(["backbones"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 2 + 8 * 4
    guide = [line.strip() for line in GUIDE.read_text().splitlines()]
    assert [line for line in lines if line not in guide] == []


def test_other_sizes_and_widths(capsys):
    assert main("backbones --size 32 --stem cifar --classes 10 --widths 0.37".split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "0.37x" in line] == [
        "resnet18",
        "resnet50",
        "mobilenet_v2",
        "efficientnet_b0",
        "convnext_atto",
        "convnext_tiny",
        "vit_tiny",
        "vit_small",
    ]


@pytest.mark.parametrize("arguments", ["--widths 0.1", "--size 30"])
def test_impossible_sizes_and_widths(arguments, capsys):
    assert main(["backbones", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("us3l: ")
    assert error.count("\n") == 1
