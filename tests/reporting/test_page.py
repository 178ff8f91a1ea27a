import json
import re
from html.parser import HTMLParser

import pytest

from tests.made_runs import make_run
from us3l.reporting.page import COLOURS, page
from us3l.reporting.run_page import run_facts

HOSTILE = "</script><script>document.title = 'stolen'</script><img src=x onerror=alert(1)>\u2028&amp;\"'"


class Reader(HTMLParser):
    """Collects elements, and the text in scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("runs") / "run", classes=[HOSTILE, "one"])
    facts = run_facts(run, HOSTILE, run.network, 16) | {"gallery": None, "no_gallery": "none"}
    return {"title": HOSTILE, "runs": [facts], "compared": []}


def test_hostile_names_stay_text(report):
    reader = Reader(page(report))
    assert [attributes.get("type") for tag, attributes in reader.elements if tag == "script"] == [
        "application/json",
        None,
    ]
    assert "img" not in {tag for tag, _ in reader.elements}
    assert json.loads(reader.scripts[0]) == report


def test_it_needs_nothing_else(report):
    text = page(report)
    reader = Reader(text)
    addresses = [
        value for _, attributes in reader.elements for name, value in attributes.items() if name in ("src", "href")
    ]
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"url\(\s*[\"']?(?!data:|\$\{)", text)
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|WebSocket|sendBeacon|innerHTML|eval\(", text)
    policy = next(attributes["content"] for _, attributes in reader.elements if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_names_that_are_not_text(report):
    page(report | {"title": "caf\udce9"}).encode("utf-8")


def test_colours_are_those_of_the_figures(report):
    text = page(report)
    assert all(f"--c{number}: {colour};" in text for number, colour in enumerate(COLOURS) if number != 6)  # the ink


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_by_day_and_by_night(report):
    day, night = re.findall(r":root \{(.*?)\}", page(report), re.DOTALL)
    values = {}
    for scheme in (day, night):
        values |= dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for text, ground in [(t, g) for t in ("ink", "soft", "accent") for g in ("paper", "card", "wash")]:
            light, dark = sorted((luminance(values[text]), luminance(values[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
