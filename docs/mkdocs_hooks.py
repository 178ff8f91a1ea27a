"""mkdocs: pages of the site that lie outside docs/, and the links that lead to them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "report-a-hole.md",
    "benchmarks/README.md": "benchmarks.md",
}


def on_files(files: Files, config: Any) -> Files:
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=with_links_of_the_site(text, posixpath.dirname(source))))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in PAGES.values():
        return markdown
    folder = posixpath.dirname(page.file.src_uri)
    return with_links_of_the_site(markdown, posixpath.join("docs", folder), folder)


def with_links_of_the_site(text: str, folder: str, site_folder: str = "") -> str:
    """Return a page of the project's folder with its relative links as links among the pages of the site.

    Args:
        text: The page.
        folder: Its folder in the project.
        site_folder: Its folder on the site.
    """

    def on_the_site(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        return posixpath.relpath(PAGES.get(path) or path.removeprefix("docs/"), site_folder or ".")

    return re.sub(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)", on_the_site, text)
