"""What the builder of the site is given, and how it is called."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.pages import ROOT, pages
from docs.site.reference import reference_pages
from docs.site.sources import source_pages

FOLDER = ROOT / "build" / "docs"
PAGES = FOLDER / "pages"
SITE = FOLDER / "site"
OWN = Path(__file__).parent
SETTINGS = OWN / "zensical.toml"


def build() -> None:
    """Build the site anew.

    Raises:
        SystemExit: Something was warned of.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    gather()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(
        [*command, "--config-file", FOLDER / SETTINGS.name],
        cwd=FOLDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(built.stdout, end="")
    if built.returncode or "warning" in built.stdout.lower():
        raise SystemExit("The site was not built without warnings.")


def gather() -> None:
    """Write all pages, and what they show, for the builder."""
    texts = pages()
    texts |= source_pages(texts)
    texts |= reference_pages()
    for place, text in texts.items():
        write(PAGES / place, text)
    for picture in pictures():
        target = PAGES / picture.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)
    shutil.copy(OWN / "site.css", PAGES)
    shutil.copytree(OWN / "iframe-worker", PAGES / "iframe-worker")
    shutil.copy(SETTINGS, FOLDER)


def pictures() -> list[Path]:
    """Return the pictures that pages may show."""
    return [path for path in (ROOT / "docs").rglob("*") if path.suffix in {".png", ".svg"}]


def write(path: Path, text: str) -> None:
    """Write a file, and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
