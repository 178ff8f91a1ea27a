"""Requests that get no result, and why."""

import json
import socket
from base64 import b64encode

import pytest

from tests.serving.services import encoded, serving
from tests.serving.test_answers import form
from us3l.serving.settings import ServiceSettings
from us3l.system.errors import UserError

IMAGE = encoded()
TEXT = b64encode(IMAGE).decode()


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "reason"),
    [
        ("/embed", b"nothing", "image/png", 400, "cannot read image 0: not an image"),
        ("/embed", IMAGE[:-30], "image/png", 400, "cannot read image 0: "),
        ("/embed", b"", "image/png", 400, "an image of no bytes"),
        ("/embed", IMAGE, "text/plain", 415, "the content type must be image/*"),
        ("/embed", IMAGE, "", 415, "the content type must be image/*"),
        ("/embed", json.dumps([TEXT, "%%%"]), "application/json", 400, "image 1 is not base64"),
        ("/embed", json.dumps([TEXT, 3]), "application/json", 400, "must be a list of base64 strings"),
        ("/embed", json.dumps({"images": [TEXT], "width": 1}), "application/json", 400, "a width goes into"),
        ("/embed", "[" * 100_000, "application/json", 400, "not JSON"),
        ("/embed", "[]", "application/json", 400, "there is no image"),
        ("/embed", json.dumps([TEXT] * 5), "application/json", 413, "may have 4 images"),
        ("/embed", form([IMAGE] * 5)[0], "multipart/form-data; boundary=x", 413, "may have 4 images"),
        ("/embed", form([IMAGE], end=b"")[0], "multipart/form-data; boundary=x", 400, "the form is not complete"),
        ("/embed", b"nothing", "multipart/form-data; boundary=x", 400, "the form cannot be read"),
        ("/embed", b"nothing", "multipart/form-data", 400, "the form cannot be read"),
        ("/embed", b'--x\r\nContent-Disposition: form-data; name="width"\r\n\r\n1\r\n--x--\r\n',
         "multipart/form-data; boundary=x", 400, "a field of the form is not a file"),
        ("/embed?width=2", IMAGE, "image/png", 400, "there is no width 2 for features: choose from"),
        ("/embed?width=nan", IMAGE, "image/png", 400, "this is not a width"),
        ("/embed?width=wide", IMAGE, "image/png", 400, "this is not a width"),
        ("/embed?width=1-1-1-0.5", IMAGE, "image/png", 400, "there is no width 1-1-1-0.5 for features"),
        ("/embed?width=1&width=1", IMAGE, "image/png", 400, "width must be given once"),
        ("/embed?latency_ms=-1", IMAGE, "image/png", 400, "latency_ms must be a number above 0"),
        ("/embed?latency_ms=9&width=1", IMAGE, "image/png", 400, "not both"),
        ("/embed", bytes(200_000), "image/png", 413, "larger than 0.1 MB"),
        ("/embed", encoded(120), "image/png", 400, "120x120 are more than 10,000 pixels"),
        ("/embed/../../etc/passwd", IMAGE, "image/png", 404, "there is nothing here"),
        ("/health", IMAGE, "image/png", 405, "not by this method"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told(limited, path, body, kind, status, reason):
    reply = limited.post(path, body, kind)
    assert reply.status == status, reply.body
    assert reason in reply.json["error"]
    assert reply.headers["content-type"] == "application/json"
    assert limited.service.bodies.held == 0


@pytest.fixture(scope="module")
def limited(run_folder):
    with serving(run_folder, max_images=4, max_body_mb=0.1, max_megapixels=0.01, body_seconds=0.3) as client:
        yield client


def test_a_damaged_image_does_not_harm_others(limited):
    reply = limited.post("/embed", *form([IMAGE, b"nothing", IMAGE]))
    assert (reply.status, reply.json) == (400, {"error": "cannot read image 1: not an image"})
    assert limited.post("/embed", *form([IMAGE, IMAGE])).status == 200


def test_a_request_cannot_name_a_file(limited, tmp_path):
    (tmp_path / "own.png").write_bytes(IMAGE)
    path = str(tmp_path / "own.png")
    for body, kind in ((path, "image/png"), (json.dumps([path]), "application/json")):
        assert limited.post("/embed", body, kind).status == 400


def test_chunked_bodies_are_counted_too(limited):
    reply = limited.post("/embed", iter([bytes(50_000)] * 4))
    assert reply.status == 413
    assert limited.post("/embed", iter([IMAGE[:40], IMAGE[40:]])).status == 200


def half_sent(client, head, body=b""):
    """What comes back, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(head + body)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


def test_a_body_that_does_not_come_is_not_waited_for(limited):
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\n"
    assert b"408" in half_sent(limited, head, IMAGE[:20]).split(b"\r\n")[0]
    assert limited.service.bodies.held == 0


def test_a_head_that_does_not_come_is_not_waited_for(limited, monkeypatch):
    monkeypatch.setattr("us3l.serving.limits.HEAD_SECONDS", 0.05)
    assert half_sent(limited, b"") == b""
    assert half_sent(limited, b"POST /embed HT") == b""


def test_a_head_without_an_end(limited):
    assert b"400" in half_sent(limited, b"GET / HTTP/1.1\r\nX: " + bytes(80_000).replace(b"\0", b"a")).split(b"\r\n")[0]
    assert b"400" in half_sent(limited, b"\x16\x03\x01 not HTTP\r\n\r\n").split(b"\r\n")[0]


def test_no_more_is_held_than_allowed(limited, monkeypatch):
    monkeypatch.setattr(limited.service.bodies, "settings", ServiceSettings(max_buffered_mb=0.0001))
    reply = limited.post("/embed", IMAGE)
    assert reply.status == 503
    assert "too many requests are being received" in reply.json["error"]
    assert reply.headers["retry-after"] == "1"


def test_a_mistake_of_ours_tells_strangers_nothing(served, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(served.service.model, "compute", broken)
        reply = served.post("/embed", IMAGE)
    assert (reply.status, reply.json) == (500, {"error": "internal error"})
    assert "secret" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(served.service, "answer", broken)
        assert served.post("/embed", IMAGE).json == {"error": "internal error"}
    assert served.post("/embed", IMAGE).status == 200


def test_the_token(run_folder, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("a token of some length\n")
    with serving(run_folder, token_file=secret) as client:
        for wrong in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Basic a token of some length"}):
            for reply in (
                client.post("/embed", IMAGE, **wrong),
                client.get("/metrics", **wrong),
                client.get("/widths"),
            ):
                assert reply.status == 401
                assert reply.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer a token of some length"}
        assert client.post("/embed", IMAGE, **right).status == 200
        assert client.get("/metrics", **right).status == 200
        for path in ("/health", "/ready", "/", "/docs", "/openapi.json"):
            assert client.get(path).status == 200


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"token": "short"}, "at least 16"),
        ({"target_ms": 0}, "`target_ms` must be above 0"),
        ({"queue": 10, "max_images": 11}, "`queue` has room for 10 images"),
    ],
)
def test_settings_that_make_no_sense(settings, reason):
    with pytest.raises(UserError, match=reason):
        ServiceSettings(**settings)
