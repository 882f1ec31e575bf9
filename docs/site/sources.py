"""Pages that show the source files to which other pages link."""

from __future__ import annotations

import re
from pathlib import Path

from docs.site.links import target
from docs.site.pages import ROOT, SOURCES

LANGUAGES = {".py": "python", ".proto": "protobuf", ".yaml": "yaml", ".yml": "yaml"}
LANGUAGES |= {".toml": "toml", ".json": "json", ".sh": "sh"}
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"


def source_pages(pages: dict[str, str]) -> dict[str, str]:
    """Return the pages of files and folders, to which these pages link, and of files in folders."""
    wanted = {
        Path(path).relative_to(SOURCES).with_suffix("")
        for place, text in pages.items()
        for link in re.findall(r"\]\(([^)\s]+)\)", text)
        if (path := target(place, link)).startswith(f"{SOURCES}/")
    }
    wanted |= {file for path in wanted for file in files(path)}
    return {f"{SOURCES}/{path}.md": HIDDEN + shown(path) for path in sorted(wanted)}


def files(path: Path) -> list[Path]:
    """Return the files of a folder that people write; those of a file are none."""
    written = (each for each in sorted((ROOT / path).glob("*")) if each.is_file())
    return [each.relative_to(ROOT) for each in written if not re.search(r"_pb2\.pyi?$", each.name)]


def shown(path: Path) -> str:
    """Return the page of a file or of a folder."""
    if (ROOT / path).is_dir():
        rows = [f"- [{each.name}]({path.name}/{each.name}.md)" for each in files(path)]
        return "\n".join([f"# {path}", "", *rows, ""])
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {path}\n\n````{language}\n{text}\n````\n"
