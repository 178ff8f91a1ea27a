"""The pages of a service, in the look of a run's page. They load nothing from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from string import Template

from starlette.responses import Response

from us3l.reporting.page import part, script_digest, style
from us3l.serving.api import description


@dataclass(frozen=True)
class Page:
    """A page and what it may do."""

    html: str
    policy: str

    def response(self) -> Response:
        headers = {
            "content-security-policy": self.policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }
        return Response(self.html, headers=headers, media_type="text/html")


def live_page() -> Page:
    """Return the page where people drop images, choose widths, and watch the last minutes."""
    script = part("draw.js") + resource_text("live.js")
    policy = f"script-src 'sha256-{script_digest(script)}'; connect-src 'self'; img-src blob: data:"
    return page("us3l serve", resource_text("live.html"), script, policy)


def docs_page() -> Page:
    """Return the description of all endpoints; it needs no script."""
    heading = '<header><h1>us3l serve</h1><nav><ul><li><a href="/">Try it</a></li>'
    links = '<li><a href="/openapi.json">openapi.json</a></li></ul></nav></header>'
    return page(
        "us3l serve: the interface", f"{heading}{links}<main class=docs>{description()}</main>", "", "img-src data:"
    )


def page(title: str, body: str, script: str, policy: str) -> Page:
    """Return a page that may do no more than a policy says."""
    element = f"<script>{script}</script>" if script else ""
    look = style() + resource_text("live.css")
    html = Template(resource_text("frame.html")).substitute(title=title, style=look, body=body, script=element)
    forbidden = (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    return Page(html, f"{forbidden}; {policy}")


def resource_text(name: str) -> str:
    """Return a file of this package."""
    return files("us3l.serving").joinpath(name).read_text(encoding="utf-8")
