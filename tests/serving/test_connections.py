"""Clients that send or take nothing, and clients that are too many."""

import io
import json
import logging
import socket
import time
from base64 import b64encode
from types import SimpleNamespace

import pytest
from PIL import Image, ImageFile, WebPImagePlugin

from tests.serving.services import WAIT, encoded, serving
from us3l.serving.limits import HEAD_SECONDS, ConnectionGuard, OncePerMinute

IMAGE = encoded()
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Transport:
    def __init__(self, unsent=0):
        self.unsent, self.aborted = unsent, False

    def get_write_buffer_size(self):
        return self.unsent

    def is_closing(self):
        return self.aborted

    def abort(self):
        self.aborted = True


class Connection:
    """As uvicorn's: idle after a request unless something else is said."""

    def __init__(self, unsent=0, address="10.0.0.1", busy=False, timer=True):
        self.transport, self.client = Transport(unsent), (address, 1)
        self.cycle = SimpleNamespace(response_complete=not busy)
        self.timeout_keep_alive_task = object() if timer and not busy else None


def swept(connections, seconds, most=100, per_address=100):
    """Which of them are open after some time."""
    now = [0.0]
    guard = ConnectionGuard(set(connections), most, per_address, send_seconds=30, clock=lambda: now[0])
    for now[0] in (0.0, seconds):
        guard.sweep()
    return [not connection.transport.aborted for connection in connections]


def test_a_client_that_does_not_take_its_answer_is_cut_off():
    connections = [Connection(unsent=1000, busy=True), Connection(busy=True), Connection()]
    assert swept(connections, 29) == [True, True, True]
    assert swept(connections, 31) == [False, True, True]


def test_a_client_that_does_not_send_its_request_is_cut_off():
    connections = [Connection(timer=False), Connection(), Connection(busy=True)]
    assert swept(connections, HEAD_SECONDS - 1) == [True, True, True]
    assert swept(connections, HEAD_SECONDS + 1) == [False, True, True]


def test_of_too_many_those_that_are_blocked_and_then_those_that_wait_are_closed():
    connections = [Connection(), Connection(busy=True), Connection(unsent=9, busy=True), Connection(address="10.0.0.2")]
    assert swept(connections, 0, per_address=2) == [True, True, False, True]
    connections = [Connection(), Connection(busy=True), Connection(address="10.0.0.2", busy=True)]
    assert swept(connections, 0, most=2) == [False, True, True]


def test_clients_that_pipeline_and_never_read(run_folder, monkeypatch):
    monkeypatch.setattr("us3l.serving.server.KEEP_ALIVE", 30)
    with serving(run_folder, send_seconds=0.5) as client:
        hostile = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(8)]
        try:
            for connection in hostile:
                connection.setblocking(False)
                try:
                    while connection.send(GET * 2000):
                        pass
                except BlockingIOError:
                    pass
            assert client.get("/health").status == 200
            assert client.post("/embed", IMAGE).status == 200
            ends = time.monotonic() + WAIT
            while client.listening.server.server_state.connections and time.monotonic() < ends:
                time.sleep(0.05)
            assert not client.listening.server.server_state.connections
        finally:
            for connection in hostile:
                connection.close()


def test_one_line_per_cause_and_minute(caplog):
    now = [0.0]
    logger = logging.getLogger("us3l.tests.once")
    logger.addFilter(OncePerMinute(lambda: now[0]))
    for now[0] in (0.0, 1.0, 59.0, 61.0):
        logger.error("no more files: %s", "cause")
        logger.error("another")
    assert [record.getMessage() for record in caplog.records] == [
        "no more files: cause",
        "another",
        "no more files: cause (and 2 more like it)",
        "another (and 2 more like it)",
    ]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"Host": "evil.example"}, 403),
        ("GET", {"Host": "evil.example:8000"}, 403),
        ("GET", {"Host": "localhost"}, 200),
        ("GET", {"Host": "[::1]:8000"}, 200),
        ("GET", {"Host": "models.example"}, 200),
        ("POST", {"Origin": "http://evil.example"}, 403),
        ("POST", {"Origin": "null"}, 403),
        ("POST", {"Origin": "https://models.example"}, 200),
        ("POST", {"Host": "localhost:1234", "Origin": "http://localhost:1234"}, 200),
        ("POST", {"Host": "localhost:1234", "Origin": "http://localhost:99"}, 403),
    ],
)
def test_foreign_hosts_and_pages_are_refused(known, method, headers, status):
    reply = known.get("/widths", **headers) if method == "GET" else known.post("/embed?width=0.5", IMAGE, **headers)
    assert reply.status == status
    assert status == 200 or "allow_host" in reply.json["error"]


@pytest.fixture(scope="module")
def known(run_folder):
    with serving(run_folder, allow_host=("models.example",)) as client:
        yield client


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_upgrade_is_ignored(known, protocol):
    reply = known.post("/embed?width=0.5", IMAGE, Connection="Upgrade", Upgrade=protocol)
    assert reply.status == 200


def flat(side, kind):
    """A large picture in few bytes."""
    file = io.BytesIO()
    Image.new("L" if kind == "PNG" else "RGB", (side, side)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["WEBP", "GIF", "PNG"])
def test_pixels_of_a_request_are_counted_before_anything_is_decoded(run_folder, kind, monkeypatch):
    with serving(run_folder, max_request_megapixels=1.0) as client:
        image = b64encode(flat(600, kind)).decode()
        plugins = {"WEBP": WebPImagePlugin.WebPImageFile, "GIF": ImageFile.ImageFile, "PNG": ImageFile.ImageFile}
        monkeypatch.setattr(plugins[kind], "load", lambda *_: pytest.fail("it was decoded"))
        reply = client.post("/embed", json.dumps([image] * 3), "application/json")
        assert (reply.status, "1 million pixels" in reply.json["error"]) == (413, True)
