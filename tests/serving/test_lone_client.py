"""A client who is alone is answered by the event loop itself: the same answers, and nobody is held up for long."""

import asyncio
import io
import socket
import struct
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image

import us3l.serving.model
from tests.serving.services import WAIT, encoded, serving
from us3l.commands import serve
from us3l.serving.guarding import LoopGuard
from us3l.serving.model import RETRY, SMALL_FILE, TRIES, QuickerRun, ServedModel, quick_to_read
from us3l.serving.server import KEEP_ALIVE
from us3l.serving.settings import ServiceSettings

IMAGE = encoded()
RAW = "Accept: application/octet-stream\r\n"


def request(path, body=IMAGE, more="", version="1.1"):
    head = (
        f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


class Wire:
    """One connection, on which every byte counts."""

    def __init__(self, client):
        self.socket = socket.create_connection(("127.0.0.1", client.port), timeout=WAIT)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def reply(self):
        """The status, the headers without those that differ each time, and the body."""
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        body = self.file.read(int(headers["content-length"]))
        return status, {k: v for k, v in headers.items() if k != "date" and not k.endswith("-ms")}, body


def alone(client):
    """Wait until nobody is connected."""
    while client.listening.server.server_state.connections:
        time.sleep(0.01)


@pytest.fixture
def counted(served, monkeypatch):
    """How many answers went which way."""
    alone(served)
    ways, service = [], served.service
    now, usual = service.answer_now, service.answer

    def answer_now(*given):
        answer = now(*given)
        ways.append("early" if answer else "not early")
        return answer

    async def answer(*given):
        ways.append("usual")
        return await usual(*given)

    monkeypatch.setattr("us3l.serving.server.late_ms", lambda _: 0.0)  # on a busy machine all are late
    monkeypatch.setattr(service, "answer_now", answer_now)
    monkeypatch.setattr(service, "answer", answer)
    return ways


@pytest.mark.parametrize("more", ["", RAW])
def test_both_ways_give_the_same_answer(served, counted, more):
    expected = served.service.model.runtime.embed(IMAGE, 0.5)
    whole = request("/embed?width=0.5", more=more)
    replies = []
    with Wire(served) as wire:
        wire.send(whole)
        replies.append(wire.reply())
        wire.send(whole[:-10])  # which has to be waited for
        time.sleep(0.1)
        wire.send(whole[-10:])
        replies.append(wire.reply())
    assert counted == ["early", "usual"]
    assert replies[0][0] == 200
    if more:
        assert replies[0] == replies[1]
        np.testing.assert_array_equal(np.frombuffer(replies[0][2], "<f4"), expected[0])
    else:
        assert replies[0][1].keys() == replies[1][1].keys()
        assert replies[0][2].partition(b"embeddings")[2] == replies[1][2].partition(b"embeddings")[2]


def test_classes_too(served, counted):
    with Wire(served) as wire:
        wire.send(request("/predict?top=2&width=0.5"))
        status, _, body = wire.reply()
        other = served.post("/predict?top=2&width=0.5", IMAGE)  # with two connections
    assert (status, body.partition(b"predictions")[2]) == (200, other.body.partition(b"predictions")[2])
    assert body.count(b"class") == 2
    assert counted == ["early", "usual"]


def test_of_requests_that_come_together_one_is_early(served, counted):
    with Wire(served) as wire:
        wire.send(3 * request("/embed?width=0.5", more=RAW))
        replies = [wire.reply() for _ in range(3)]
        assert replies[0] == replies[1] == replies[2]
        assert counted == ["early", "usual", "usual"]
        wire.send(request("/embed?width=0.5", more=RAW))
        assert wire.reply() == replies[0]
    assert counted[3] == "early"


def test_the_connection_ends_when_the_client_wants_it(served, counted):
    for asked in (request("/embed", more="Connection: close\r\n"), request("/embed", version="1.0")):
        alone(served)
        with Wire(served) as wire:
            wire.send(asked)
            status, headers, _ = wire.reply()
            assert (status, headers["connection"]) == (200, "close")
            assert wire.socket.recv(1) == b""
    assert counted == ["early", "early"]


def test_what_is_refused_is_refused_in_the_same_words(served, counted):
    with Wire(served) as wire:
        for path, body, status, reason in (
            ("/embed?width=7", IMAGE, 400, b"there is no width 7"),
            ("/embed?width=1&latency_ms=1", IMAGE, 400, b"not both"),
            ("/embed", b"", 400, b"an image of no bytes"),
            ("/embed", IMAGE[:50], 400, b"cannot read image 0"),
        ):
            wire.send(request(path, body))
            found = wire.reply()
            assert (found[0], reason in found[2]) == (status, True)
        wire.send(request("/embed").replace(b"image/png", b"text/html"))
        assert wire.reply()[0] == 415
    assert "early" not in counted


def test_no_more_is_held_than_allowed(served, counted, monkeypatch):
    with Wire(served) as wire:
        for settings, status in (({"max_buffered_mb": 1e-4}, 503), ({"max_body_mb": 1e-4}, 413), ({}, 200)):
            monkeypatch.setattr(served.service.bodies, "settings", ServiceSettings(**settings))
            wire.send(request("/embed?width=0.5"))
            assert wire.reply()[0] == status
    assert counted == ["early"]


def test_a_token_is_asked_for_first(run_folder, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("a token of some length\n")
    with serving(run_folder, token_file=secret) as client, Wire(client) as wire:
        wire.send(request("/embed"))
        assert wire.reply()[0] == 401
        wire.send(request("/embed", more="Authorization: Bearer a token of some length\r\n"))
        assert wire.reply()[0] == 200


def test_every_answer_is_counted(run_folder):
    with serving(run_folder) as client:
        with Wire(client) as wire:
            for _ in range(3):
                wire.send(request("/embed?width=0.5"))
                wire.reply()
        metrics = client.get("/metrics").body
    assert b'us3l_requests_total{path="/embed",status="200"} 3.0' in metrics
    assert b'us3l_images_total{path="/embed",width="0.5"} 3.0' in metrics


def test_an_answer_that_ends_like_a_head_is_sent(served, counted, monkeypatch):
    """The transport holds back what looks like a head, until its body comes."""
    row = np.frombuffer(b"abcd\r\n\r\n", np.float32)[None]
    monkeypatch.setattr(served.service.model, "compute", lambda *_: row)
    with Wire(served) as wire:
        wire.socket.settimeout(KEEP_ALIVE / 2)  # not when the connection is closed
        wire.send(request("/embed?width=0.5", more=RAW))
        assert wire.reply()[2] == b"abcd\r\n\r\n"
    assert counted == ["early"]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def saved(kind, **options):
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, kind, **options)
    return file.getvalue()


def test_what_may_take_long_to_read_is_not_read_in_the_loop(run_folder):
    png, jpeg = saved("PNG"), saved("JPEG")
    packed = png[:33] + chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2**19))) + png[33:]
    slow = [saved("JPEG", progressive=True), packed, saved("GIF"), saved("TIFF"), png + bytes(SMALL_FILE), b""]
    assert [quick_to_read(image) for image in slow] == [False] * len(slow)
    model = ServedModel(run_folder, ServiceSettings(), "torch")
    for image in (png, jpeg):
        np.testing.assert_array_equal(model.read_small(image), model.read(image))
    many = Image.new("RGB", (600, 600))
    file = io.BytesIO()
    many.save(file, "PNG")
    assert len(file.getvalue()) < SMALL_FILE
    assert model.read_small(file.getvalue()) is None  # too many pixels
    assert model.read_small(jpeg[:200]) is None


def test_after_one_that_took_long_others_are_not_computed_in_the_loop(run_folder, monkeypatch):
    with serving(run_folder, target_ms=200.0, workers=2) as client:
        model, names = client.service.model, []
        compute = model.compute

        def slow(*given):
            names.append(threading.current_thread().name)
            time.sleep(1.0 if len(names) == 1 else 0)
            return compute(*given)

        monkeypatch.setattr(model, "compute", slow)
        began = time.perf_counter()
        with Wire(client) as wire:
            wire.send(request("/embed?width=0.25"))
            while not names:
                time.sleep(0.01)
            health = client.get("/health")  # who comes meanwhile waits for that one image, and not longer
            assert wire.reply()[0] == health.status == 200
            alone_names = len(names)
        alone(client)
        client.post("/embed?width=0.25", IMAGE)
        assert time.perf_counter() - began < WAIT
    assert alone_names == 1
    assert [name.startswith("us3l-serving") for name in names] == [False, True]


def test_several_threads_for_a_lone_client_give_the_same_bits(bundle, monkeypatch):
    monkeypatch.setattr(us3l.serving.model, "SHORT_MS", 1e9)
    model = ServedModel(bundle, ServiceSettings(batch_size=2), "onnx", threads=2)
    model.prepare()
    for task, width in model._runs:
        assert (task, width) in model._lone_runs
        assert isinstance(model._lone_runs[task, width], QuickerRun)
        pixels = [model.read(IMAGE)]
        np.testing.assert_array_equal(
            model.compute(pixels, task, width, alone=True), model.compute(pixels, task, width)
        )
    for width in 4 * model.widths["features"]:  # both ways
        found = model.compute([model.read(IMAGE)], "features", width, alone=True)
        np.testing.assert_array_equal(found, model.runtime.embed(IMAGE, width))


def test_the_quicker_way_is_taken_and_the_other_tried_again():
    now, cost, calls = [0.0], {"a": 2.0, "b": 1.0}, []  # seconds

    def way(name):
        def run(images):
            now[0] += cost[name]
            calls.append(name)
            return images

        return run

    run = QuickerRun(way("a"), way("b"), clock=lambda: now[0])
    for _ in range(RETRY - 1):
        assert run("x") == "x"
    assert "".join(calls) == TRIES * "ba" + (RETRY - 1 - 2 * TRIES) * "b"
    cost["b"], calls[:] = 9.0, []  # a call that was interrupted
    run("x")
    assert calls == ["a"]  # its turn to be tried again
    for _ in range(TRIES - 1):
        run("x")
    run("x")
    cost["b"] = 1.0
    for _ in range(10):
        run("x")
    assert "".join(calls) == TRIES * "a" + 11 * "b"
    cost["b"] = 5.0  # other jobs have come, to stay
    calls.clear()
    for _ in range(20):
        run("x")
    assert "".join(calls) == "bb" + 18 * "a"


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_loop_that_stands_still_is_noticed(seconds):
    hung = threading.Event()

    async def work():
        guard = LoopGuard(hung.set, still=0.2, every=0.05)
        guard.watch(asyncio.get_running_loop())
        await asyncio.sleep(0.5)
        time.sleep(seconds)
        guard.end()

    asyncio.run(work())
    assert hung.is_set() == (seconds > 0)


def test_a_service_that_hangs_says_so_and_ends(run_folder, monkeypatch, caplog, capfd):
    monkeypatch.setattr("us3l.serving.server.LoopGuard", lambda hung: LoopGuard(hung, still=0.2, every=0.05))
    codes, go = [], threading.Event()
    monkeypatch.setattr(serve.os, "_exit", lambda code: (codes.append(code), go.set()))
    with serving(run_folder) as client:
        client.listening.hung = serve.end_at_once
        compute = client.service.model.compute
        monkeypatch.setattr(client.service.model, "compute", lambda *given: (go.wait(WAIT), compute(*given))[1])
        assert client.post("/embed?width=0.5", IMAGE).status == 200
    assert codes == [serve.HUNG]
    assert "a computation hangs" in caplog.text
    assert "compute_now" in capfd.readouterr().err  # where


def test_the_head_of_a_second_request_is_not_waited_for_either(served, monkeypatch):
    monkeypatch.setattr("us3l.serving.server.HEAD_SECONDS", 0.3)
    alone(served)
    with Wire(served) as wire:
        wire.socket.settimeout(KEEP_ALIVE / 2)
        wire.send(request("/embed?width=0.5"))
        assert wire.reply()[0] == 200
        wire.send(request("/embed?width=0.5")[:20])
        assert wire.socket.recv(1) == b""
