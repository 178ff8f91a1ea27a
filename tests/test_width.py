import copy
import json
import pickle
import re
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import pytest
import torch

from us3l.families.resnet import ResNetFamily
from us3l.run.bundles import FILE_NAME
from us3l.system.errors import UserError
from us3l.system.files import as_plain
from us3l.width import Width, distinct_widths, round_channels, roundest


def authors_rounding(channels: float) -> int:
    rounded = int(channels + 4) // 8 * 8
    return rounded + 8 if rounded < 0.9 * channels else rounded


def test_channels_are_rounded_as_in_the_authors_code():
    for tenths in range(40, 20480):
        assert round_channels(tenths / 10) == max(8, authors_rounding(tenths / 10))


@pytest.mark.parametrize(("name", "count"), [("resnet18", 90), ("resnet50", 378)])
def test_every_distinct_network_is_found_once(name, count):
    family = ResNetFamily(name)
    widths = distinct_widths(family.signature, 0.25, 1.0)
    assert len(widths) == count
    assert widths == sorted(widths)
    by_brute_force = {family.signature(0.25 + 0.75 * i / 50_000) for i in range(50_001)}
    assert {family.signature(width) for width in widths} == by_brute_force


def test_the_ends_and_the_papers_widths_are_canonical():
    widths = distinct_widths(ResNetFamily("resnet18").signature, 0.25, 1.0)
    assert {1.0, 0.9, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25} <= set(widths)
    assert distinct_widths(lambda _: 0, 0.25, 1.0) == [0.25]


def test_roundest_stays_within_its_bounds():
    for first, last in [(0.3672, 0.3828), (0.72, 0.76), (0.500001, 0.500004), (0.9999999, 0.99999995)]:
        assert first <= roundest(first, last) <= last


def test_names_are_reversible_file_names():
    random = Random(0)
    for stages in (1, 4, 7) * 20:
        widths = [random.choice([1.0, 0.25, 1 / 3, 1e-05, random.random()]) for _ in range(stages)]
        depths = random.choice([None, [random.randint(1, 12) for _ in range(stages)]])
        width = Width(widths, depths)
        assert Width(str(width)) == width == Width.from_plain(json.loads(json.dumps(width, default=as_plain)))
        assert re.fullmatch(FILE_NAME, f"resnet18-{width:g}x.onnx")
    assert f"{Width((1, 0.5), (2, 1)):.4g}x" == "1d2-0.5d1x"
    assert Width(0.5, (2, 1)) == Width((0.5, 0.5), (2, 1))


@pytest.mark.parametrize("name", ["", "0.5-", "0.5d2-0.5", "wide", "0.5d", "0.5dx", "-0.5-1", "0.5 0.5", "nan-1"])
def test_what_is_not_a_name_is_refused(name):
    with pytest.raises(UserError, match="is not a width"):
        Width(name)


@pytest.mark.parametrize("value", [True, None, "2-1", "0-1", 0, 1.5, [0.5], "0.5;1", float("nan"), 10**400])
def test_what_is_not_a_width_in_a_file_is_refused(value):
    with pytest.raises(ValueError, match="width"):
        Width.from_plain(value)


@dataclass(frozen=True)
class Row:
    width: Width


def test_widths_are_frozen_values_in_one_order():
    deep = Width((0.75, 0.5), (2, 1))
    with pytest.raises(AttributeError, match="frozen"):
        deep.widths = (1.0,)
    assert pickle.loads(pickle.dumps(deep)) == copy.deepcopy(deep) == Width(deep) == deep
    assert asdict(Row(deep)) == {"width": deep}
    assert len({deep, Width((0.75, 0.5), (2, 1)), Width((0.75, 0.5)), 0.625}) == 3
    in_order: list[Any] = [Width(0.5), 0.625, Width((0.75, 0.5)), deep, 1.0]
    assert sorted({*in_order}) == in_order
    assert 0.625 < deep <= Width("0.75d2-0.5d1") < 1
    with pytest.raises(TypeError):
        deep < "0.5"  # noqa: B015
    with pytest.raises(UserError, match="2 widths do not go with 3 depths"):
        Width((0.5, 0.5), (1, 2, 3))


@pytest.mark.parametrize("number", [0.5, 1.0, 1 / 3, 1e-05, 1])
def test_a_plain_width_is_like_its_number(number):
    for width in map(Width, (number, str(number), (number,), torch.tensor(number, dtype=torch.float64))):
        assert width.plain
        assert width == number == width
        assert {number: "value"}[width] == {width: "value"}[number] == "value"
        assert (str(width), repr(width), f"{width}") == (repr(float(number)),) * 3
        assert f"{width:g} {width:>8.2f}" == f"{number:g} {number:>8.2f}"
        assert json.dumps({"width": width}, default=as_plain) == json.dumps({"width": float(number)})
    assert number not in (Width((number, number)), Width(number, (2,)))
