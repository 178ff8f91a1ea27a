"""What the service offers, once: the routes, OpenAPI and the page about it are all made of this."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import escape
from typing import Any

from us3l import __version__
from us3l.serving.bodies import KINDS

IMAGES = f"One image as it is, or several: a form of files, or JSON, a list of base64 strings. Content type: {KINDS}."
CODE = re.compile("`([^`]+)`")
ERRORS = {
    400: "An image or a parameter cannot be used; the answer says why.",
    401: "The token is missing or wrong.",
    408: "The request did not arrive in time.",
    413: "Too many bytes or images.",
    415: "An unknown content type.",
    429: "The queue is full: try again after Retry-After seconds.",
    503: "It could not be answered in time, or the service starts: see Retry-After.",
}


@dataclass(frozen=True)
class Parameter:
    """A value in the address, after the question mark."""

    name: str
    kind: str
    """Of JSON schema, such as "number"."""
    about: str


@dataclass(frozen=True)
class Endpoint:
    """One thing that the service offers."""

    method: str
    path: str
    about: str
    answer: Any = None
    """An example; None for a page or text."""
    parameters: tuple[Parameter, ...] = ()
    media: str = "application/json"
    open: bool = False
    """Needs no token: it says nothing about images or the model."""
    internal: bool = False
    """Part of the pages: not in OpenAPI."""

    @property
    def name(self) -> str:
        """Return the name of its handler."""
        return self.path.strip("/").partition(".")[0] or "page"


WIDTH = Parameter("width", "string", "Width of the network, such as 0.5 (default: the controller decides).")
LATENCY = Parameter(
    "latency_ms", "number", "Take the widest network that should answer within this time, and refuse it otherwise."
)
TOP = Parameter("top", "integer", "How many classes to name, the most probable first (default: 5).")
SHARED = {"model": "3f9c02b1a7de", "width": 0.5, "waited_ms": 0.11, "took_ms": 4.2}

ENDPOINTS = (
    Endpoint(
        "POST",
        "/embed",
        "Features of images, each to the bit what `Runtime.embed` gives for it alone. With the header "
        "`Accept: application/octet-stream` the answer is their float32 values, little-endian, row by row; headers say "
        "the rest.",
        SHARED | {"embeddings": [[0.25, 1.5]]},
        (WIDTH, LATENCY),
    ),
    Endpoint(
        "POST",
        "/predict",
        "Classes of images, if the model has a classifier.",
        SHARED | {"predictions": [[{"class": "cat", "probability": 0.93}, {"class": "dog", "probability": 0.05}]]},
        (WIDTH, LATENCY, TOP),
    ),
    Endpoint(
        "GET",
        "/widths",
        "The model: its widths, how long they take on the idle machine, the present width, and the classes.",
        {
            "model": "3f9c02b1a7de",
            "name": "photos",
            "backend": "onnx",
            "space": "own",
            "image_size": 32,
            "target_ms": 50,
            "classes": ["cat", "dog"],
            "tasks": {
                "embed": {"width": 0.5, "widths": [0.5, 1], "idle_ms": [{"width": 0.5, "ms": 3}], "images_at_once": 8}
            },
        },
    ),
    Endpoint(
        "GET",
        "/recent",
        "The last five minutes: requests, their p95 per image, the width, and refusals.",
        {
            "every_seconds": 5,
            "width": 0.5,
            "rows": [{"seconds_ago": 5, "requests": 90, "p95_ms": 31.2, "width": 0.5, "refused": 0}],
        },
    ),
    Endpoint("GET", "/metrics", "For Prometheus.", media="text/plain"),
    Endpoint("GET", "/health", "Whether the process lives.", {"status": "ok"}, open=True),
    Endpoint("GET", "/ready", "Whether it takes requests; 503 if not.", {"status": "ready"}, open=True),
    Endpoint("GET", "/openapi.json", "This description, for programs.", open=True, internal=True),
    Endpoint("GET", "/docs", "This description, for people.", media="text/html", open=True, internal=True),
    Endpoint("GET", "/", "A page to try it and to watch it.", media="text/html", open=True, internal=True),
)


def openapi() -> dict[str, Any]:
    """Return the description of all endpoints, in OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        if not endpoint.internal:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "us3l serve", "version": __version__, "description": "One network at any width."},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def operation(endpoint: Endpoint) -> dict[str, Any]:
    """Return the description of an endpoint, in OpenAPI."""
    content = {endpoint.media: {} if endpoint.answer is None else {"example": endpoint.answer}}
    description: dict[str, Any] = {
        "summary": endpoint.about,
        "operationId": endpoint.path.strip("/"),
        "responses": {"200": {"description": "The answer.", "content": content}},
    }
    if endpoint.parameters:
        description["parameters"] = [
            {"name": parameter.name, "in": "query", "description": parameter.about, "schema": {"type": parameter.kind}}
            for parameter in endpoint.parameters
        ]
    if endpoint.method == "POST":
        binary = {"schema": {"type": "string", "format": "binary"}}
        files = {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}
        texts = {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}}
        description["requestBody"] = {
            "required": True,
            "description": IMAGES,
            "content": {
                "image/*": binary,
                "application/octet-stream": binary,
                "multipart/form-data": {"schema": files},
                "application/json": {"schema": texts},
            },
        }
        description["responses"] |= {str(status): {"description": text} for status, text in ERRORS.items()}
    if not endpoint.open:
        description["security"] = [{"token": []}, {}]
    return description


def description() -> str:
    """Return the endpoints for people: the body of the page /docs."""
    parts = [f'<p class=lead>{escape(IMAGES)} Everything else is JSON; errors are <code>{{"error": ...}}</code>.</p>']
    for endpoint in ENDPOINTS:
        parts.append(f"<section class=card><h3><code>{endpoint.method} {escape(endpoint.path)}</code></h3>")
        parts.append("<p>" + CODE.sub(r"<code>\1</code>", escape(endpoint.about)) + "</p>")
        if endpoint.parameters:
            rows = "".join(f"<dt><code>{p.name}</code></dt><dd>{escape(p.about)}</dd>" for p in endpoint.parameters)
            parts.append(f"<dl>{rows}</dl>")
        if endpoint.method == "POST":
            line = f"curl -X POST -T photo.jpg -H 'Content-Type: image/jpeg' 'http://127.0.0.1:8000{endpoint.path}?width=0.5'"
            parts.append(f"<pre>{escape(line)}</pre>")
        if endpoint.answer is not None:
            parts.append(f"<pre>{escape(json.dumps(endpoint.answer))}</pre>")
        parts.append("</section>")
    rows = "".join(f"<dt>{status}</dt><dd>{escape(text)}</dd>" for status, text in ERRORS.items())
    return "\n".join([*parts, f"<section><h2>Errors</h2><dl>{rows}</dl></section>"])
