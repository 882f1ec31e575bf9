"""Lists as Python-Markdown reads them: what belongs to an item is indented by four columns."""

from __future__ import annotations

import re

_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
_FENCE = "```"


def indented(text: str) -> str:
    """Return a page with the lists of CommonMark, whose items are indented by their marks."""
    lines: list[str] = []
    items: list[int] = []  # the columns at which the text of open items begins
    is_code = False
    for line in text.splitlines():
        content = line.lstrip()
        column = len(line) - len(content)
        if content and not is_code:
            items = [each for each in items if each <= column]
        surplus = max(column - items[-1], 0) if items else column
        lines.append(" " * (4 * len(items) + surplus) + content if content else "")
        is_code ^= content.startswith(_FENCE)
        if not is_code and (item := _ITEM.match(content)):
            items.append(column + item.end())
            lines[-1] = lines[-1].replace(item[0], item[0].strip().ljust(3) + " ", 1)
    return "\n".join(lines) + "\n"
