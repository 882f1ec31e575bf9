"""The pages of this repository, as the builder of the site reads them."""

from __future__ import annotations

import re
from pathlib import Path

from docs.site.links import link_to, relinked, target
from docs.site.lists import indented

ROOT = Path(__file__).resolve().parents[2]
SOURCES = "source"


def places() -> list[str]:
    """Return the paths of all pages in the tree."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("tests/*/README.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def pages() -> dict[str, str]:
    """Return the text of each page by its place in the site, which is that in the tree."""
    known = {*places()}
    return {
        place: converted((ROOT / place).read_text(encoding="utf-8"), place, known)
        for place in known
    }


def converted(text: str, place: str, known: set[str]) -> str:
    """Return a page that the builder takes for what GitHub takes the original for."""

    def change(link: str) -> str:
        path = target(place, link)
        return link_to(site_place(path, known), place, link) if path else link

    return with_columns(indented(relinked(text, change)))


def site_place(path: str, known: set[str]) -> str:
    """Return where the site has a file or folder of the tree."""
    if path in known or Path(path).suffix in {".png", ".svg"}:
        return path
    if f"{path}/README.md" in known:
        return f"{path}/README.md"
    return f"{SOURCES}/{path}.md"


def with_columns(text: str) -> str:
    """Return a page in whose HTML tables Markdown is read, with the width that these need."""
    changed = re.sub(r"<(table|tr|td)>", r'<\1 markdown="1">', text)
    return f"---\nhide:\n  - toc\n---\n\n{changed}" if changed != text else text
