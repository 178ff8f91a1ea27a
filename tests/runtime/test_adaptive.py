"""The controller on a simulated device: a request takes its width's time, times the load, times noise."""

import json

import numpy as np
import pytest

import us3l
from us3l.deploy.latency import percentile
from us3l.runtime.adaptive import Adaptive, Controller

IDLE = {0.25: 2.0, 0.4: 3.5, 0.5: 5.0, 0.6: 6.5, 0.75: 9.0, 0.9: 12.0, 1.0: 15.0}
TARGET = 20.0


def serve(controller, loads, noise=0.1, seed=0):
    """The latencies of one request after another, one for each load."""
    factors = np.random.default_rng(seed).lognormal(0, noise, len(loads))
    found = []
    for number, (load, factor) in enumerate(zip(loads, factors, strict=True)):
        latency = IDLE[controller.width] * load * factor
        found.append(latency)
        controller.observe(controller.width, latency, now=float(number))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_after_the_load_doubles_p95_returns_under_the_target(seed):
    controller = Controller(IDLE, TARGET)
    before = serve(controller, [1.0] * 500, seed=seed)
    assert controller.width == 1.0
    assert percentile(before, 95) <= TARGET
    after = serve(controller, [2.0] * 500, seed=seed + 100)
    assert percentile(after[:40], 95) > TARGET  # the load was felt
    assert percentile(after[100:], 95) <= TARGET  # and met
    assert 0.4 <= controller.width <= 0.6  # without giving away more than needed
    serve(controller, [1.0] * 1000, seed=seed + 200)
    assert controller.width >= 0.9  # when the load has gone, the width comes back


@pytest.mark.parametrize("load", [0.5, 1.3, 1.7, 3.0, 20.0])
@pytest.mark.parametrize(("noise", "most"), [(0.0, 1), (0.1, 2), (0.3, 8)])
def test_constant_load_does_not_make_it_oscillate(load, noise, most):
    for seed in range(2):
        controller = Controller(IDLE, TARGET)
        latencies = serve(controller, [load] * 5000, noise, seed)
        assert len(controller.decisions) <= most
        if load * IDLE[0.25] * np.exp(2 * noise) < TARGET:  # there is a width that can hold it
            assert percentile(latencies, 95) <= TARGET


def test_a_rise_that_fails_makes_the_next_one_wait_longer():
    """A device that breaks the model: every width above 0.5 is over the target, however fast 0.5 is."""
    controller = Controller(IDLE, TARGET)
    for number in range(10_000):
        controller.observe(controller.width, 25.0 if controller.width > 0.5 else 6.0, float(number))
    rises = [decision.request for decision in controller.decisions if decision.new > max(decision.old, 0.5)]
    waits = np.diff(rises)
    assert len(rises) < 15
    assert list(waits[:4]) == sorted(waits[:4])
    assert waits[3] > 6 * waits[0]


def test_it_is_deterministic_and_says_what_it_did():
    records = []
    for _ in range(2):
        controller = Controller(IDLE, TARGET)
        serve(controller, [1.0] * 100 + [2.0] * 100)
        records.append(controller.decisions)
    assert records[0] == records[1]
    first = records[0][0]
    assert (first.old, first.time + 1) == (1.0, first.request)
    assert first.new < 1
    assert first.p95_ms > TARGET


def test_requests_of_an_earlier_width_do_not_count():
    controller = Controller(IDLE, TARGET)
    for _ in range(100):
        controller.observe(0.25, 1000.0, 0.0)
    assert controller.width == 1.0
    assert controller.decisions == []


def test_one_slow_request_among_twenty_moves_nothing():
    controller = Controller(IDLE, TARGET)
    for number in range(400):
        controller.observe(controller.width, 500.0 if number % 20 == 0 else 15.0, 0.0)
    assert controller.decisions == []


def test_where_nothing_fits_the_narrowest_serves():
    controller = Controller(IDLE, 0.1)
    serve(controller, [1.0] * 500)
    assert controller.width == 0.25
    assert controller.decisions == []


def test_measured_latencies_need_not_rise_with_the_width():
    controller = Controller({0.25: 2.0, 0.5: 6.0, 0.75: 5.0, 1.0: 10.0}, 10.0)
    assert list(controller.latencies.values()) == [2.0, 6.0, 6.0, 10.0]
    assert controller.width == 0.75


def test_the_adaptive_runtime_measures_and_records(tmp_path):
    class Runtime:
        def embed(self, images, width):
            return np.full((len(images), 2), width)

    adaptive = Adaptive(Runtime(), Controller({0.5: 1e-9, 1.0: 2e-9}, 1e-6, window=2, patience=4))
    assert adaptive.width == 1.0
    for _ in range(10):  # no call is as fast as a nanosecond
        adaptive.embed(np.zeros((1, 3, 2, 2), np.uint8))
    assert adaptive.width == 0.5
    adaptive.save(tmp_path / "record.json")
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["requests"], record["width"], record["target_ms"]) == (10, 0.5, 1e-6)
    (move,) = record["decisions"]
    assert (move["request"], move["old"], move["new"]) == (2, 1.0, 0.5)
    assert move["time"] > 0
    assert move["p95_ms"] > 1e-6


@pytest.mark.parametrize("settings", [{"target_ms": 0}, {"headroom": 1.0}, {"window": 0}, {"window": 200}])
def test_settings_that_make_no_sense(settings):
    with pytest.raises(us3l.UserError):
        Controller(IDLE, **{"target_ms": TARGET} | settings)


@pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), float("inf")])
def test_latencies_that_cannot_be(latency):
    with pytest.raises(us3l.UserError, match=r"at width 0.5 cannot be"):
        Controller({0.5: latency, 1.0: 1.0}, TARGET)
    controller = Controller(IDLE, TARGET)
    for number in range(1000):  # as a clock tells them that was set back
        assert controller.observe(controller.width, latency, float(number)) is None
    assert (controller.width, controller.requests) == (1.0, 1000)
