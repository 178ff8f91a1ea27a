"""The service over HTTP: routes, tokens, and answers that tell strangers nothing about the inside."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from us3l.runtime.networks import Task
from us3l.serving.api import ENDPOINTS, Endpoint, openapi
from us3l.serving.bodies import content_kind, is_image
from us3l.serving.limits import KnownHosts
from us3l.serving.pages import docs_page, live_page
from us3l.serving.refusals import Refusal
from us3l.serving.service import PATHS, Answer, Service
from us3l.system.errors import UserError
from us3l.system.files import as_plain
from us3l.width import Width

LOG = logging.getLogger("us3l.serving.requests")
TOP = 5
RAW = "application/octet-stream"
SAFE = {"x-content-type-options": "nosniff", "cache-control": "no-store", "referrer-policy": "no-referrer"}
Handler = Callable[[Request], Awaitable[Response]]
TASKS: dict[str, Task] = {path: task for task, path in PATHS.items()}


def application(service: Service, host: str = "localhost") -> Starlette:
    """Return the ASGI application of a service: `us3l serve` runs it, and so can any ASGI server.

    Args:
        service: Prepared, or to be prepared: until then requests are refused.
        host: The name or address that it listens on.
    """
    handlers = Handlers(service)
    routes = [
        Route(endpoint.path, handlers.guarded(endpoint, getattr(handlers, endpoint.name)), methods=[endpoint.method])
        for endpoint in ENDPOINTS
    ]

    async def unknown(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        service.watch.replied("other", error.status_code)
        reasons = {404: "there is nothing here: see /docs", 405: "not by this method: see /docs"}
        reason = reasons.get(error.status_code, "the request cannot be understood")
        return plain({"error": reason}, error.status_code, dict(error.headers or {}))

    middleware = [
        Middleware(KnownHosts, host=host, allowed=service.settings.allow_host),
        Middleware(Admission, service=service, handlers=handlers),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown}, middleware=middleware)


class Handlers:
    """A function for each endpoint, by the name of its path."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._token = None if service.settings.token is None else service.settings.token.encode()
        self._live, self._docs = live_page(), docs_page()

    def guarded(self, endpoint: Endpoint, handler: Handler) -> Handler:
        """Return a handler that checks the token, and turns whatever goes wrong into an answer."""

        async def answer(request: Request) -> Response:
            started = time.perf_counter()
            try:
                if not endpoint.open:
                    self.check_token(request.headers)
                response = await handler(request)
            except Refusal as refusal:
                self.service.watch.refused(refusal.cause)
                response = plain({"error": refusal.reason}, refusal.status, refusal.headers)
            except UserError as error:
                self.service.watch.refused("request")
                response = plain({"error": str(error)}, 400)
            except Exception:
                LOG.exception("%s failed", endpoint.path)
                self.service.watch.refused("internal")
                response = plain({"error": "internal error"}, 500)
            ms = 1e3 * (time.perf_counter() - started)
            asyncio.get_running_loop().call_soon(self._note, endpoint, response.status_code, ms)
            return response

        return answer

    def _note(self, endpoint: Endpoint, status: int, ms: float) -> None:
        self.service.watch.replied(endpoint.path, status)
        LOG.info("%s %s %d %.1f ms", endpoint.method, endpoint.path, status, ms)

    def check_token(self, headers: Headers) -> None:
        """Raise a `Refusal` if a token is needed, and the headers do not have it."""
        if self._token is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token)
        if not same or scheme.lower() != "bearer":
            reason = "the token is missing or wrong: send it as Authorization: Bearer TOKEN"
            raise Refusal(401, reason, "token")

    async def embed(self, request: Request) -> Response:
        answer = await self._answer(request, "features")
        if RAW not in request.headers.get("accept", ""):
            return plain(shared(answer) | {"embeddings": answer.outputs.tolist()})
        rows, columns = answer.outputs.shape
        facts = shared(answer) | {"shape": f"{rows}x{columns}"}
        headers = {f"us3l-{name.replace('_', '-')}": str(value) for name, value in facts.items()}
        return Response(np.ascontiguousarray(answer.outputs, "<f4").tobytes(), 200, SAFE | headers, RAW)

    async def predict(self, request: Request) -> Response:
        top = number(request, "top") or TOP
        answer = await self._answer(request, "classes")
        classes = answer.model.classes
        best = np.argsort(-answer.outputs, axis=1, kind="stable")[:, : math.ceil(min(top, len(classes)))]
        predictions = [
            [{"class": classes[index], "probability": float(row[index])} for index in order]
            for row, order in zip(answer.outputs, best, strict=True)
        ]
        return plain(shared(answer) | {"predictions": predictions})

    async def _answer(self, request: Request, task: Task) -> Answer:
        """Return the answer to a request."""
        service = self.service
        service.check_ready()
        service.check_task(task)
        width, latency = asked_width(request), number(request, "latency_ms")
        if width is not None and latency is not None:
            raise Refusal(400, "give width or latency_ms, not both")
        if width is not None:
            service.model.width(width, task)
        service.scheduler.receiving += 1
        with service.bodies.holding() as sizes:
            try:
                images = await service.bodies.images(request, sizes)
            finally:
                service.scheduler.receiving -= 1
            return await service.answer(images, task, width, latency)

    async def widths(self, _: Request) -> Response:
        return plain(self.service.model.about())

    async def recent(self, _: Request) -> Response:
        return plain(self.service.watch.recent())

    async def metrics(self, _: Request) -> Response:
        return Response(self.service.watch.text(), headers=SAFE, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self, _: Request) -> Response:
        return plain({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        self.service.check_ready()
        return plain({"status": "ready"})

    async def openapi(self, _: Request) -> Response:
        return plain(openapi())

    async def docs(self, _: Request) -> Response:
        return self._docs.response()

    async def page(self, _: Request) -> Response:
        return self._live.response()


class Admission:
    """Middleware that refuses images which could not be answered in time, before anything else is done for them.

    Under too much load most requests end here: routing, parsing of the address and reading of the body would take the
    time of those that can be answered.

    Args:
        app: What answers.
        service: It says what could not be answered in time.
        handlers: They know the token.
    """

    def __init__(self, app: ASGIApp, service: Service, handlers: Handlers) -> None:
        self.app, self.service, self.handlers = app, service, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and self.service.ready:
            task = TASKS.get(scope["path"])
            query: bytes = scope["query_string"]
            if task is not None and task in self.service.model.gives and not (b"width" in query or b"latency" in query):
                headers = Headers(scope=scope)
                try:
                    self.handlers.check_token(headers)
                    self.service.check_load(task, one_image=is_image(content_kind(headers)))
                except Refusal as refusal:
                    self.service.watch.refused(refusal.cause)
                    self.service.watch.replied(scope["path"], refusal.status)
                    await plain({"error": refusal.reason}, refusal.status, refusal.headers)(scope, receive, send)
                    return
        await self.app(scope, receive, send)


def shared(answer: Answer) -> dict[str, Any]:
    """Return what every answer says."""
    times = {"waited_ms": round(answer.waited_ms, 3), "took_ms": round(answer.took_ms, 3)}
    return {"model": answer.model.identity, "width": answer.width} | times


def plain(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON. Floats have all their digits: read as float32 they are what was computed, to the bit."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=as_plain)
    content = text.encode("utf-8", "replace")  # names of classes need not be text
    return Response(content, status, SAFE | (headers or {}), "application/json")


def number(request: Request, name: str) -> float | None:
    """Return a positive number in the address."""
    text = parameter(request, name)
    if text is None:
        return None
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise Refusal(400, f"{name} must be a number above 0")


def asked_width(request: Request) -> Width | None:
    """Return a width in the address: 0.5, 0.5x, or the name of a sub-network."""
    text = parameter(request, "width")
    if text is None:
        return None
    try:
        width = Width(text.removesuffix("x"))
    except UserError:
        raise Refusal(400, "this is not a width") from None
    if not all(0 < part < math.inf for part in width.widths):
        raise Refusal(400, "a width must be above 0")
    return width


def parameter(request: Request, name: str) -> str | None:
    values = request.query_params.getlist(name) if request.scope["query_string"] else []
    if len(values) > 1:
        raise Refusal(400, f"{name} must be given once")
    return values[0] if values else None
