"""The site as it was built: complete, without broken links, and without anything from elsewhere."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import stratagem
from docs.site.building import SITE, build
from docs.site.pages import places
from docs.site.public_names import FOLDERS, members
from tests.site.html import Page

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(500),
    pytest.mark.skipif(find_spec("zensical") is None, reason="`make docs` installs the builder"),
]
# What a browser loads by itself, by the tag and its attribute.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "srcset")}
LOADED |= {("link", "href"), ("object", "data"), ("video", "src"), ("audio", "src")}


@pytest.fixture(scope="module", autouse=True)
def site() -> None:
    build()


@cache
def html_pages() -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html")}


def test_every_page_of_the_repository_is_there() -> None:
    expected = {
        re.sub(r"(^|/)README\.html$", r"\1index.html", place.removesuffix(".md") + ".html")
        for place in places()
    }
    built = {path.relative_to(SITE).as_posix() for path in html_pages()}
    assert expected - built == set()


def test_a_browser_loads_nothing_from_elsewhere() -> None:
    loaded = {
        value
        for page in html_pages().values()
        for tag, name, value in page.attributes
        if (tag, name) in LOADED and is_outside(value)
    }
    assert loaded == set()


def test_style_sheets_load_nothing_from_elsewhere() -> None:
    sheets = [path.read_text(encoding="utf-8") for path in SITE.rglob("*.css")]
    styles = [style for page in html_pages().values() for style in page.styles]
    assert sheets
    for sheet in [*sheets, *styles]:
        assert not [url for url in re.findall(r"url\(['\"]?([^)'\"]+)", sheet) if is_outside(url)]
        assert not re.search(r"@import\s+['\"](?:https?:)?//", sheet)


def test_no_page_asks_for_what_scripts_would_load_from_elsewhere() -> None:
    for path, page in html_pages().items():
        assert not page.classes & {"mermaid", "arithmatex"}, path


def is_outside(url: str) -> bool:
    return bool(re.match(r"(?:https?:)?//", url))


def test_links_lead_to_pages_and_headings() -> None:
    broken = [
        (path.relative_to(SITE).as_posix(), link)
        for path, page in html_pages().items()
        if path.name != "404.html"  # its links are from the root of a host
        for link in page.links
        if not leads_somewhere(path, link)
    ]
    assert broken == []


def leads_somewhere(path: Path, link: str) -> bool:
    """Whether a link leads out of the site, or to a file and a heading of it."""
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return True
    file = (path.parent / unquote(url.path)).resolve() if url.path else path
    if file.is_dir():
        file /= "index.html"
    if not url.fragment or file.suffix != ".html":
        return file.exists()
    return file in html_pages() and unquote(url.fragment) in html_pages()[file].ids


def test_the_reference_has_every_public_name() -> None:
    there = {
        identifier
        for path, page in html_pages().items()
        if path.parent == SITE / "reference"
        for identifier in page.ids
    }
    named = {f"stratagem.{name}" for name in stratagem.__all__ if name not in FOLDERS}
    for folder in FOLDERS:
        module = folder if folder == "stratagem_deploy" else f"stratagem.{folder}"
        named |= {f"{module}.{member}" for member in members(module)}
    assert len(named) > 150
    assert named - there == set()


def test_what_strategies_inherit_from_private_classes_is_explained() -> None:
    page = html_pages()[SITE / "reference" / "strategies.html"]
    methods = {"save", "restore", "run", "snapshot", "experimental_distribute_dataset"}
    assert {f"stratagem.ParameterServerStrategy.{name}" for name in methods} <= page.ids


def test_arguments_are_explained() -> None:
    text = (SITE / "reference" / "strategies.html").read_text(encoding="utf-8")
    assert "How long a server may be away before its requests fail." in text


def test_programs_stand_side_by_side() -> None:
    text = (SITE / "docs" / "how-to" / "from-ddp.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td>\s*<div class=\"[^\"]*highlight[^\"]*\">", text)
    assert len(cells) == 8


def test_the_index_of_the_search_can_be_loaded_as_a_file() -> None:
    index = (SITE / "search.js").read_text(encoding="utf-8")
    assert index.startswith("var __index")
    assert "docs/how-to/stalls.html" in index
    assert "source/examples" not in index
