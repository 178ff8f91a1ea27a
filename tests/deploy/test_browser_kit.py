"""The page of a bundle in a real browser: the outputs of Python's runtime, at every width."""

import json
import re
import shutil
import subprocess
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.reporting.test_browser import OVERFLOWING, browser, find, pytestmark, wait
from us3l.deploy import benchmark, example, proof
from us3l.deploy.exporting import BROWSER, COMPANIONS, place_companions
from us3l.deploy.latency import read_device_profile
from us3l.run.bundles import encode_floats, read_bundle, write_bundle
from us3l.runtime.backends import run_onnx

__all__ = ["browser", "pytestmark"]
PACKAGE = "onnxruntime-web@1.30.0"
LIBRARY = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
WIDTHS = (0.5, 1.0)


@pytest.fixture(scope="session")
def library(pytestconfig, tmp_path_factory) -> Path:
    """The files that a user copies from the npm package, downloaded once."""
    cache = getattr(pytestconfig, "cache", None)  # unless pytest is told to keep none
    kept = Path(cache.mkdir(re.sub(r"\W", "-", PACKAGE))) if cache else tmp_path_factory.mktemp("library")
    if all((kept / name).exists() for name in LIBRARY):
        return kept
    if not (npm := shutil.which("npm")):
        pytest.skip(f"{PACKAGE} comes from npm, which is not here")
    folder = tmp_path_factory.mktemp("npm")
    command = [npm, "pack", PACKAGE, "--ignore-scripts", "--fetch-retries=0", "--fetch-timeout=30000", "--silent"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    except subprocess.SubprocessError as error:
        pytest.skip(f"{PACKAGE} cannot be had from npm's registry: {error}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        for name in LIBRARY:
            archive.extract(f"package/dist/{name}", folder, filter="data")
            (folder / "package" / "dist" / name).replace(kept / name)
    return kept


@pytest.fixture(scope="module")
def page(bundle, tmp_path_factory) -> Path:
    """A bundle with its page, and the outputs of Python's runtime in the manifest."""
    folder = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("kit") / "bundle"))
    found = read_bundle(folder)
    entries = [
        replace(entry, reference=encode_floats(outputs(folder, entry.width, [COMPANIONS["check.png"]])[0].tolist()))
        for entry in found.entries
    ]
    write_bundle(replace(found, entries=entries, others=place_companions(folder, "onnx")))
    return folder


@pytest.fixture(scope="module")
def kit(page, library) -> Path:
    for name in LIBRARY:
        shutil.copy(library / name, page / name)
    return page


def outputs(folder: Path, width: float, paths: list[Path]) -> np.ndarray:
    run = run_onnx(folder / f"net-{width}.onnx", threads=1)
    wanted = {"preprocessing": read_bundle(folder, check=False).preprocessing.to_plain()}
    return np.concatenate([run(example.preprocess(path, wanted)) for path in paths])


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/browser.html"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def images(folder: Path) -> list[Path]:
    """A JPEG by a camera that was turned, a transparent PNG larger than the network's images, and a small one."""
    draw = np.random.default_rng(0)
    coarse = Image.fromarray(draw.integers(0, 255, (6, 9, 4), dtype=np.uint8))
    paths = [folder / name for name in ("turned.jpg", "transparent.png", "small.png")]
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    coarse.convert("RGB").resize((60, 40)).save(paths[0], quality=85, exif=turned)
    coarse.resize((301, 200)).save(paths[1])
    coarse.convert("RGB").save(paths[2])
    return paths


def ready(browser, address: str, width: int = 1200) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(address)
    wait(browser, lambda: find(browser, "#again").is_enabled() or find(browser, "#trouble").is_displayed())


ROWS = "return [...document.querySelectorAll('#rows tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
OUTPUTS = """
const entry = network();
return state.images.every((image) => image.outputs.has(entry)) && document.querySelector("#answer h2")
  ? [entry.width, state.images.map((image) => Array.from(image.outputs.get(entry)))] : null;
"""
CHOOSE = "get('width').value = arguments[0]; get('width').dispatchEvent(new Event('input'));"


def test_every_width_gives_the_outputs_of_python(browser, kit, serve, small, tmp_path):
    address = serve(kit)
    ready(browser, address)
    assert "All give the outputs of the export" in find(browser, "#about").text
    rows = browser.execute_script(ROWS)
    assert [row[0] for row in rows] == ["0.5x", "1x"]
    assert all(float(p95) >= float(p50) > 0 for _, p50, p95, *_ in rows)
    (tmp_path / "latencies.csv").write_text(browser.execute_script("return table()"))
    assert [row.width for row in read_device_profile(small, tmp_path / "latencies.csv")] == list(WIDTHS)

    paths = images(tmp_path)
    find(browser, "#files").send_keys("\n".join(map(str, paths)))
    for place, width in enumerate(WIDTHS):
        browser.execute_script(CHOOSE, place)
        wait(browser, lambda width=width: (browser.execute_script(OUTPUTS) or [None])[0] == width)
        found = np.array(browser.execute_script(OUTPUTS)[1], np.float32)
        assert proof.difference(found, outputs(kit, width, paths)) < 1e-5
    assert "Nearest of your images" in find(browser, "#answer").text

    (tmp_path / "bad.png").write_bytes(b"nothing")
    find(browser, "#files").send_keys(str(tmp_path / "bad.png"))
    wait(browser, lambda: "bad.png is not an image" in find(browser, "#trouble").text)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    here = address.removesuffix("browser.html")
    known = (here, "data:", f"blob:{here}", "chrome:")  # the browser's own first page may still load
    assert {url for url in asked if not url.startswith(known)} == set()


RESIZED = "return Array.from(resize(Uint8ClampedArray.from(arguments[0]), arguments[1], arguments[2]));"


@pytest.mark.parametrize(("side", "to"), [(37, 16), (16, 37), (24, 24), (90, 7), (33, 32)])
def test_pixels_are_those_of_pillow(browser, page, serve, side, to):
    if not browser.current_url.endswith("browser.html"):
        ready(browser, serve(page))
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 4), dtype=np.uint8)
    found = browser.execute_script(RESIZED, pixels.ravel().tolist(), side, to)
    resized = Image.fromarray(pixels[..., :3]).resize((to, to), Image.Resampling.BILINEAR)
    assert (np.reshape(found, (to, to, 4))[..., :3] == np.asarray(resized)).all()


def test_other_outputs_and_a_missing_library_are_told_on_a_phone(browser, kit, serve, tmp_path):
    folder = Path(shutil.copytree(kit, tmp_path / "bundle"))
    manifest = json.loads((folder / "manifest.json").read_text())
    first, last = (entry for entry in manifest["entries"] if entry["format"] == "onnx")
    first["files"] = last["files"]  # another network
    (folder / "manifest.json").write_text(json.dumps(manifest))
    ready(browser, serve(folder), 360)
    wait(browser, lambda: "Not the outputs of the export: 0.5x." in find(browser, "#trouble").text)
    assert [row[3][0] for row in browser.execute_script(ROWS)] == ["✗", "✓"]
    assert browser.execute_script(OVERFLOWING) == {"page": 0, "wide": []}
    for name in (LIBRARY[2], LIBRARY[0]):
        (folder / name).unlink()
        ready(browser, serve(folder), 360)
        assert "onnxruntime-web is not here. Copy three files" in find(browser, "#trouble").text
    assert browser.execute_script(OVERFLOWING) == {"page": 0, "wide": []}


def test_limits_are_those_of_the_proof():
    script = BROWSER["browser.js"].read_text(encoding="utf-8")
    said = {name: float(value) for name, value in re.findall(r"const (TOLERANCE|MIN_COSINE) = ([\d.e-]+);", script)}
    assert said == {"TOLERANCE": proof.TOLERANCE, "MIN_COSINE": proof.MIN_COSINE}
    assert (benchmark.TOLERANCE, benchmark.MIN_COSINE) == (proof.TOLERANCE, proof.MIN_COSINE)
