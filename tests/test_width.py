import pytest

from us3l.families.resnet import ResNetFamily
from us3l.width import distinct_widths, round_channels, roundest


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
