import copy
import json
import pickle
from dataclasses import asdict, dataclass
from random import Random

import pytest

from us3l.families.resnet import ResNetFamily
from us3l.run.bundles import plain
from us3l.width import Subnet, Width, decode, distinct_widths, encode, read_width, round_channels, roundest, write_width


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


def test_names_of_subnets_are_reversible_file_names():
    random = Random(0)
    for stages in (1, 4, 7) * 20:
        widths = [random.choice([1.0, 0.25, 1 / 3, 1e-05, random.random()]) for _ in range(stages)]
        depths = random.choice([None, [random.randint(1, 12) for _ in range(stages)]])
        subnet = Subnet(widths, depths)
        assert Subnet.parse(subnet.name) == subnet
        assert plain(f"resnet18-{subnet:g}x.onnx")
        if stages > 1 or depths:
            assert decode(encode(subnet)) == subnet == read_width(json.loads(json.dumps(subnet, default=write_width)))
    assert f"{Subnet((1, 0.5), (2, 1)):.4g}x" == "1d2-0.5d1x"
    assert decode("0.25,0.5") == Subnet((0.25, 0.5))  # as earlier versions wrote it
    assert Subnet(0.5, (2, 1)) == Subnet((0.5, 0.5), (2, 1))


@pytest.mark.parametrize("name", ["", "0.5-", "0.5d2-0.5", "wide", "0.5d", "0.5dx", "-0.5-1", "0.5 0.5", "nan-1"])
def test_what_is_not_a_name_is_refused(name):
    with pytest.raises(ValueError, match="is not a sub-network"):
        Subnet.parse(name)


@pytest.mark.parametrize("value", [True, None, "2-1", "0-1", "0.5", 0, 1.5, [0.5], "0.5;1"])
def test_what_is_not_a_width_in_a_file_is_refused(value):
    with pytest.raises((ValueError, TypeError)):
        read_width(value)


@dataclass(frozen=True)
class Row:
    width: Width


def test_subnets_are_frozen_values_that_stand_among_widths():
    subnet = Subnet((0.75, 0.5), (2, 1))
    with pytest.raises(AttributeError, match="frozen"):
        subnet.widths = (1.0,)
    assert pickle.loads(pickle.dumps(subnet)) == copy.deepcopy(subnet) == subnet
    assert asdict(Row(subnet)) == {"width": subnet}
    assert len({subnet, Subnet((0.75, 0.5), (2, 1)), Subnet((0.75, 0.5)), 0.625}) == 3
    some: list[Width] = [1.0, subnet, 0.5, Subnet((0.75, 0.5))]
    assert sorted(some) == [0.5, Subnet((0.75, 0.5)), subnet, 1.0]
    with pytest.raises(ValueError, match="2 widths do not go with 3 depths"):
        Subnet((0.5, 0.5), (1, 2, 3))
