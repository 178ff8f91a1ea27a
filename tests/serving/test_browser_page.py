"""The live page in a real browser, and on a phone's screen."""

import pytest
from selenium.webdriver.common.by import By

from tests.reporting.test_browser import browser, find, pytestmark, wait
from tests.serving.services import encoded

__all__ = ["browser", "pytestmark"]


@pytest.mark.parametrize("width", [1200, 390])
def test_an_image_is_dropped_and_the_width_moved(browser, served, tmp_path, width):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser")
    browser.get(f"{served.listening.address}/")
    wait(browser, lambda: find(browser, "#title").text == served.service.model.name)
    files = [tmp_path / f"{seed}.png" for seed in range(3)]
    for seed, file in enumerate(files):
        file.write_bytes(encoded(seed=seed))
    find(browser, "#files").send_keys("\n".join(map(str, files)))
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, ".neighbour img")) == 2)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".rank")) == 3
    find(browser, "#auto").click()
    slide = "const s = document.getElementById('width'); s.value = 0; s.dispatchEvent(new Event('input'))"
    browser.execute_script(slide)
    width_of_the_answer = "return document.querySelector('#facts .value')?.textContent"  # it may be replaced meanwhile
    wait(browser, lambda: browser.execute_script(width_of_the_answer) == "0.5x")  # the narrowest of the classifiers
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#curves svg polyline")) >= 2)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


def test_a_damaged_image_is_told(browser, served, tmp_path):
    browser.get(f"{served.listening.address}/")
    wait(browser, lambda: find(browser, "#title").text == served.service.model.name)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    find(browser, "#files").send_keys(str(tmp_path / "bad.png"))
    wait(browser, lambda: "cannot read image 0: not an image" in find(browser, "#trouble").text)
