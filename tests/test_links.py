"""Links between the pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import PAGES, prose, title


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert not [link for link in links(page) if not leads_somewhere(page, link)]


def links(page: Path) -> list[str]:
    """Return the targets of a page's links to files and headings of this project."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if not target.startswith("http")]


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not heading or heading in anchors(target))


def anchors(page: Path) -> set[str]:
    """Return the names under which a page's headings can be linked to."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
