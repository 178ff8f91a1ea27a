from dataclasses import replace

import pytest

from tests.checkup.made import INVENTORY, MEASURED
from us3l.checkup.findings import DeviceCheck, Gpu, Measured
from us3l.checkup.recommending import recommend

GPU = replace(INVENTORY, device="cuda", gpus=[Gpu("A100", 2**34, (8, 0))])
BOTH = replace(MEASURED, steps={"32-true": 100.0, "bf16-mixed": 180.0})


def recommended(inventory=INVENTORY, measured=MEASURED, checks=(), batch=128) -> dict[str, str]:
    return {each.setting: each.value for each in recommend(inventory, list(checks), measured, batch)}


def test_what_suits_a_cpu():
    assert recommended() == {"precision": "32-true", "US3L_WORKERS": "1", "batch_size": "128"}


@pytest.mark.parametrize(("speed", "expected"), [(180.0, "bf16-mixed"), (105.0, "32-true"), (50.0, "32-true")])
def test_the_faster_precision_if_it_is_faster(speed, expected):
    measured = replace(MEASURED, steps={"32-true": 100.0, "bf16-mixed": speed})
    assert recommended(GPU, measured)["precision"] == expected


def test_a_precision_whose_check_failed_is_not_recommended():
    failed = DeviceCheck("training step in bf16-mixed", False)
    assert recommended(GPU, BOTH, [failed])["precision"] == "32-true"
    assert recommended(GPU, BOTH, [DeviceCheck("training step in bf16-mixed", True)])["precision"] == "bf16-mixed"


@pytest.mark.parametrize(("speed", "expected"), [(100.0, "1"), (250.0, "3"), (4000.0, "4")])
def test_as_many_readers_as_keep_up_and_no_more_than_there_are_cores(speed, expected):
    found = recommend(INVENTORY, [], replace(MEASURED, steps={"32-true": speed}), 128)
    (readers,) = [each for each in found if each.setting == "US3L_WORKERS"]
    assert readers.value == expected
    assert ("`memory_gib`" in readers.why) == (speed == 4000.0)


def test_a_batch_that_does_not_fit_is_computed_in_parts():
    heavy = replace(MEASURED, memory_per_image=2.0**27)  # 128 of them take 16 GiB
    assert recommended(GPU, heavy)["accumulate"] == "2"
    assert "batch_size" not in recommended(GPU, heavy)
    assert recommended(INVENTORY, heavy)["accumulate"] == "4"
    assert int(recommended(INVENTORY, replace(MEASURED, memory_per_image=2.0**40))["accumulate"]) <= 64


def test_nothing_without_measurements():
    assert recommended(measured=Measured("mini", 32, 64, 0)) == {}
