"""The page in a real browser: Debian's Chromium, without a window."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from tests.made_runs import make_run
from us3l.commands.main import main

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()
HOSTILE = "</script><script>document.title = 'stolen'</script><img src=x onerror=\"document.title='stolen'\">"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that was given hostile names, and its page."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "<b>run", classes=[HOSTILE, "one"]).folder
    assert main(["report", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    yield driver
    driver.quit()


def show(browser, page: Path, width=1200, **media):
    """Open a page in a window of that width; `media` are features such as prefers_color_scheme."""
    media = {"prefers_reduced_motion": "reduce"} | media  # else we would have to wait for smooth scrolling
    features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())


@pytest.fixture
def page(browser, folder):
    show(browser, folder / "report.html")
    return browser


def find(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def unfold(browser, summary):
    """Open it, and wait for what the page then draws: browsers tell of it later."""
    summary.click()
    drawn = "return arguments[0].parentElement.childElementCount > 1"
    wait(browser, lambda: browser.execute_script(drawn, summary))


def wait(browser, condition):
    WebDriverWait(browser, 20, poll_frequency=0.05).until(lambda _: condition())


def tiles(browser):
    cards = browser.find_elements(By.CSS_SELECTOR, ".tiles .card")
    return {card.find_element(By.CSS_SELECTOR, ".label").text: card.text.split("\n")[1:] for card in cards}


def test_no_error_and_no_request(browser, folder):
    browser.get_log("browser"), browser.get_log("performance")
    show(browser, folder / "report.html")
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    addresses = [address for address in asked if not address.startswith(("data:", "chrome:"))]
    assert addresses == [(folder / "report.html").as_uri()]
    headings = [element.text for element in browser.find_elements(By.TAG_NAME, "h2")]
    assert headings == [
        "Summary",
        "Every width",
        "Accuracy and cost",
        "Training",
        "Nearest neighbours",
        "Map",
        "Configuration",
    ]


def test_hostile_names_are_shown_and_not_run(page):
    assert page.title == "<b>run"
    unfold(page, find(page, "#accuracy-and-cost-0 details summary"))
    assert HOSTILE in [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "th.text")]
    assert page.title == "<b>run"
    assert page.find_elements(By.TAG_NAME, "img") == []


def test_the_slider_moves_everything_together(page):
    slider = find(page, "input[type=range]")
    cursor = "return document.querySelector('#accuracy-and-cost-0 svg .cursor').getAttribute('x1')"
    full, at = tiles(page), float(page.execute_script(cursor))
    assert full["Linear probe, digits"] == ["90.0 %"]
    assert full["Latency, ONNX Runtime"] == ["1 ms"]
    slider.send_keys(Keys.ARROW_LEFT)
    narrower = tiles(page)
    width = find(page, ".slider output").text
    assert width != "1x"
    assert slider.get_attribute("aria-valuetext") == width
    assert narrower["Linear probe, digits"] == ["not evaluated", "nearest: 90.0 % at 1x"]
    assert narrower["Latency, ONNX Runtime"] == ["not timed", "nearest: 1 ms at 1x"]
    for cost in ("Parameters", "MACs per image", "Size of the weights"):
        assert narrower[cost] != full[cost]
        assert narrower[cost][1].endswith("% of 1x")
    assert float(page.execute_script(cursor)) < at
    slider.send_keys(Keys.HOME)
    assert tiles(page)["Linear probe, digits"] == ["60.0 %", "-30.0 points from 1x"]
    assert find(page, ".slider output").text == "0.25x"


AXES = """
return [...document.querySelectorAll("#training-0 .chart")].map((chart) => ({
  title: chart.querySelector("h4").textContent,
  y: [...chart.querySelectorAll("svg text[text-anchor=end]")].map((one) => one.textContent),
  x: [...chart.querySelectorAll("svg text[text-anchor=middle]")].map((one) => one.textContent),
}));
"""


def test_axes_do_not_exaggerate_and_name_each_value_once(page):
    axes = {one["title"]: one for one in page.execute_script(AXES)}
    assert [float(value) for value in axes["Collapse"]["y"]] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert [float(value) for value in axes["kNN accuracy"]["y"]] == [0, 20, 40, 60, 80, 100]
    assert float(axes["LiDAR"]["y"][0]) == 0
    rates = [float(value) for value in axes["Learning rate"]["y"]]  # always 0.1
    assert max(rates) - min(rates) < 0.02
    for one in axes.values():
        assert len(one["x"]) == len(set(one["x"])) > 1
        assert len(one["y"]) == len(set(one["y"])) > 1


def test_when_to_stop_is_answered(page):
    training = page.find_element(By.ID, "training-0").text
    assert "When can I stop?\nTrain longer: " in training
    assert "us3l pretrain --config" in training


def test_gauges_of_researchers_are_folded_away(page):
    assert "Consistency: turn" not in [one["title"] for one in page.execute_script(AXES)]
    fold = next(one for one in page.find_elements(By.CSS_SELECTOR, "#training-0 summary") if "research" in one.text)
    unfold(page, fold)
    assert "Consistency: turn" in [one["title"] for one in page.execute_script(AXES)]


def test_neighbours_carry_the_names_of_their_files(browser, folder, tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(24):
        pixels = random.integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"<b>{number}.png")
    out = tmp_path / "page.html"
    assert main(["report", str(folder), "--data", str(tmp_path / "photos"), "--out", str(out)]) == 0
    show(browser, out)
    assert find(browser, "#nearest-neighbours-0 .file").text == "<b>0.png"
    assert find(browser, "#nearest-neighbours-0 .strip .thumb").get_attribute("title").startswith("<b>")
    unfold(browser, find(browser, "#nearest-neighbours-0 summary"))
    assert len(find(browser, "#nearest-neighbours-0 .files").text.split("\n")) == 6
    assert browser.execute_script(OVERFLOWING) == {"page": 0, "wide": []}


def test_the_trade_off_can_be_chosen(page):
    section = find(page, "#accuracy-and-cost-0")
    labels = "return [...document.querySelectorAll('#accuracy-and-cost-0 svg text')].map(e => e.textContent)"
    assert {"0.25x", "1x"} < set(page.execute_script(labels))
    Select(section.find_elements(By.TAG_NAME, "select")[1]).select_by_visible_text("Latency, ONNX Runtime")
    assert section.find_element(By.TAG_NAME, "h4").text == "Linear probe, digits, against Latency, ONNX Runtime"
    assert "0.25x" not in page.execute_script(labels)  # which was not timed


def test_everything_by_the_keyboard(page):
    ActionChains(page).send_keys(Keys.TAB).perform()
    skip = page.switch_to.active_element
    assert skip.text == "Skip to the content"
    assert skip.rect["x"] >= 0
    chart = find(page, "#training-0 svg[tabindex]")
    chart.send_keys(Keys.ARROW_RIGHT)
    readout = find(page, "#training-0 .readout")
    first = readout.text
    assert first.startswith("step 1: 4.99")
    chart.send_keys(Keys.ARROW_RIGHT)
    assert readout.text.startswith("step ")
    assert readout.text != first
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.execute_script(outline) == "solid"
    chart.send_keys(Keys.ESCAPE)
    assert readout.text == ""
    find(page, "#map-0 svg[tabindex]").send_keys(Keys.ARROW_RIGHT)
    assert find(page, ".looked").text in list("0123456789")
    rings = page.find_elements(By.CSS_SELECTOR, "#map-0 .ring")
    assert [ring.get_attribute("visibility") for ring in rings] == ["visible", "visible"]  # the same image in both maps


def test_a_point_under_the_pointer(page):
    point = page.find_elements(By.CSS_SELECTOR, "#accuracy-and-cost-0 svg[tabindex] path")[-1]
    ActionChains(page).move_to_element(point).perform()
    assert find(page, "#accuracy-and-cost-0 .readout").text.startswith("1x: 90.0 % at ")


def test_one_class_alone(page):
    button = find(page, "#map-0 .legend button")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    faint = len(page.find_elements(By.CSS_SELECTOR, "#map-0 .faint"))
    assert faint > 100
    button.click()
    assert page.find_elements(By.CSS_SELECTOR, "#map-0 .faint") == []


COPIED = ["width", "parameters", "MACs", "linear probe (%)"]


def copied(page):
    return page.execute_async_script("navigator.clipboard.readText().then(arguments[0], arguments[0])")


def test_tables_can_be_copied(page):
    button = find(page, "#accuracy-and-cost-0 button")
    button.click()
    wait(page, lambda: "Copied" in find(page, "#accuracy-and-cost-0 [role=status]").text)
    rows = [line.split("\t") for line in copied(page).split("\n")]
    assert rows[0] == COPIED
    assert [row[-1] for row in rows[1:]] == ["90", "80", "60"]


def test_tables_can_be_copied_where_there_is_no_clipboard(page):
    page.execute_async_script("navigator.clipboard.writeText('old').then(arguments[0])")
    page.execute_script("navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed'))")
    status = find(page, "#accuracy-and-cost-0 [role=status]")
    find(page, "#accuracy-and-cost-0 button").click()
    wait(page, lambda: "Copied" in status.text)
    assert copied(page).split("\n")[0].split("\t") == COPIED
    page.execute_script("document.execCommand = () => false")
    find(page, "#accuracy-and-cost-0 button").click()
    wait(page, lambda: "keyboard" in status.text)
    assert find(page, "#accuracy-and-cost-0 textarea").get_attribute("value").startswith("width\t")


OVERFLOWING = """
document.querySelectorAll("details").forEach((one) => (one.open = true));
return new Promise((done) => setTimeout(() => done({
  page: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  wide: [...document.querySelectorAll("body *")]
    .filter((one) => !one.closest(".scroll, pre, .skip, svg"))
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
    .map((one) => one.outerHTML.slice(0, 80)),
}), 300));
"""


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_sticks_out(browser, folder, width):
    show(browser, folder / "report.html", width)
    assert browser.execute_script(OVERFLOWING) == {"page": 0, "wide": []}


STYLE = """
const style = getComputedStyle(document.querySelector(arguments[0]));
return [style.backgroundColor, style.color, style.transitionDuration];
"""


def test_dark_and_still(browser, folder):
    show(browser, folder / "report.html", prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    ground, ink, _ = browser.execute_script(STYLE, "body")
    assert (brightness(ground), brightness(ink)) == (True, False)
    assert browser.execute_script(STYLE, ".bar span")[2] == "0.15s"
    show(browser, folder / "report.html", prefers_color_scheme="dark")
    ground, ink, _ = browser.execute_script(STYLE, "body")
    assert (brightness(ground), brightness(ink)) == (False, True)
    assert browser.execute_script(STYLE, ".bar span")[2] == "0s"


def brightness(colour):
    """Whether an rgb(...) is a bright one."""
    return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")) > 3 * 128


def test_several_runs_and_an_unfinished_one(browser, folder, tmp_path):
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    shutil.rmtree(other / "profile")
    young = make_run(tmp_path / "young", finished=False)
    out = tmp_path / "compared.html"
    runs = [str(one) for one in (folder, other, young.folder)]
    assert main(["report", *runs, "--no-images", "--out", str(out)]) == 0
    browser.get_log("browser")
    show(browser, out, 360)
    assert browser.get_log("browser") == []
    assert [element.text for element in browser.find_elements(By.TAG_NAME, "h2")] == [
        "Compared",
        "<b>run",
        "other",
        "young",
    ]
    legend = find(browser, "#compared .legend").text
    assert legend.split("\n") == ["<b>run", "other"]
    assert "is not finished" in find(browser, "#every-width-2").text
    assert len(browser.find_elements(By.CSS_SELECTOR, "#training-2 .chart")) == 8
    assert browser.execute_script(OVERFLOWING) == {"page": 0, "wide": []}
