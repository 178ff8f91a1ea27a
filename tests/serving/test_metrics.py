"""What a service tells of itself: metrics, the last minutes, its interface and its pages."""

import re
from html.parser import HTMLParser

from prometheus_client.parser import text_string_to_metric_families

from tests.serving.services import encoded
from us3l.serving.api import ENDPOINTS, openapi
from us3l.serving.metrics import EVERY, POINTS, ServiceWatch

IMAGE = encoded()


def values(client):
    families = text_string_to_metric_families(client.get("/metrics").body.decode())
    return {(one.name, *sorted(one.labels.values())): one.value for family in families for one in family.samples}


def test_metrics_count_what_happened(served):
    before = values(served)
    for _ in range(3):
        served.post("/embed?width=0.5", IMAGE)
    served.post("/embed", b"nothing")
    served.get("/nowhere")
    after = values(served)

    def more(*key):
        return after[key] - before.get(key, 0)

    assert more("us3l_requests_total", "/embed", "200") == 3
    assert more("us3l_requests_total", "/embed", "400") == 1
    assert more("us3l_requests_total", "404", "other") == 1
    assert more("us3l_refusals_total", "image") == 1
    assert more("us3l_images_total", "/embed", "0.5") == 3
    assert more("us3l_request_seconds_count", "/embed", "0.5") == 3
    assert more("us3l_batch_images_count") >= 3
    assert after["us3l_queue_images",] == 0
    assert 0.25 <= after["us3l_width",] <= 1


def test_the_last_minutes():
    now, width = [1000.0], [1.0]
    watch = ServiceWatch(lambda: width[0], lambda: 0, lambda: now[0])
    assert watch.recent()["rows"] == []
    for ms in range(1, 101):
        watch.answered("/embed", 1.0, 1, ms / 1e3)
    now[0] += 2 * EVERY
    width[0] = 0.5
    watch.refused("queue")
    first, second = watch.recent()["rows"]
    assert 0.97 * 95 < first.pop("p95_ms") < 1.03 * 95
    assert first == {"seconds_ago": 2 * EVERY, "requests": 100, "width": 1.0, "refused": 0}
    assert second == {"seconds_ago": 0, "requests": 0, "p95_ms": None, "width": 0.5, "refused": 1}
    now[0] += POINTS * EVERY
    assert watch.recent()["rows"] == []


def test_the_description_is_that_of_the_endpoints(served):
    found = served.get("/openapi.json").json
    assert found == openapi()
    assert {(path, method.upper()) for path, ways in found["paths"].items() for method in ways} == {
        (one.path, one.method) for one in ENDPOINTS if not one.internal
    }
    for path, ways in found["paths"].items():
        for method, operation in ways.items():
            if method == "get":
                assert served.get(path).status == 200
            example = operation["responses"]["200"]["content"].get("application/json", {}).get("example")
            reply = served.get(path) if method == "get" else served.post(path, IMAGE)
            if example is not None:
                assert reply.json.keys() == example.keys()
    assert {parameter["name"] for parameter in found["paths"]["/predict"]["post"]["parameters"]} == {
        "width",
        "latency_ms",
        "top",
    }


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_pages_load_nothing_from_elsewhere(served):
    for path in ("/", "/docs"):
        reply = served.get(path)
        assert reply.status == 200
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline'; frame" in policy
        assert "script-src 'unsafe" not in policy
        text = reply.body.decode()
        assert not re.search(r"https?://(?!www\.w3\.org|127\.0\.0\.1)", text)
        for tag, attributes in Elements(text).found:
            assert attributes.get("src", "data:").startswith("data:"), tag
            assert tag != "link" or attributes["href"] == "data:,"
    for endpoint in ENDPOINTS:
        assert f"{endpoint.method} {endpoint.path}" in text
