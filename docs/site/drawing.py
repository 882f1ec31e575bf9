"""Boxes, arrows and words, as SVG that is light or dark as the reader's system is."""

from __future__ import annotations

from html import escape

STYLE = """
  svg { font: 13px system-ui, sans-serif; --ink: #1f2933; --page: #fff; --worker: #dbeafe;
    --server: #fde68a; --down: #1d4ed8; --up: #b45309; }
  @media (prefers-color-scheme: dark) { svg { --ink: #e5e7eb; --page: #1e2129; --worker: #1e3a5f;
    --server: #5a4310; --down: #93c5fd; --up: #fcd34d; } }
  text { fill: var(--ink); text-anchor: middle; }
  .left { text-anchor: start; }
  .title { font-weight: 600; font-size: 14px; }
  .code { font-family: ui-monospace, monospace; }
  .label { paint-order: stroke; stroke: var(--page); stroke-width: 5px; }
  rect { stroke: var(--ink); rx: 5px; }
  rect.page { fill: var(--page); stroke: none; }
  .worker { fill: var(--worker); }
  .server { fill: var(--server); }
  .wait { fill: url(#hatched); stroke-dasharray: 3 3; }
  line { stroke: var(--ink); }
  .down { stroke: var(--down); stroke-width: 1.6px; }
  .up { stroke: var(--up); stroke-width: 1.6px; }
  .lost { stroke: var(--up); stroke-width: 1.6px; stroke-dasharray: 4 3; }
"""
DEFINITIONS = """
  <marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
    orient="auto"><path d="M0 0 8 4 0 8z" fill="context-stroke"/></marker>
  <pattern id="hatched" width="7" height="7" patternUnits="userSpaceOnUse"
    patternTransform="rotate(45)"><path d="M0 0V7" stroke="gray"/></pattern>
"""


class Drawing:
    """A picture in the making; places and sizes are pixels from its upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        self._title = title
        self._parts = [f'<rect class="page" width="{width}" height="{height}"/>']

    def box(self, left: int, top: int, width: int, height: int, kind: str) -> None:
        """Draw a box of a kind, which the style knows."""
        place = f'x="{left}" y="{top}" width="{width}" height="{height}"'
        self._parts.append(f'<rect class="{kind}" {place}/>')

    def text(self, x: int, y: int, words: str, kind: str = "") -> None:
        """Write words around a point on their base line, or, of kind "left", from there on."""
        self._parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>')

    def line(self, x: int, y: int, to_x: int, to_y: int) -> None:
        """Draw a line."""
        self._parts.append(f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"/>')

    def arrow(self, x: int, y: int, to_x: int, to_y: int, kind: str) -> None:
        """Draw an arrow of a kind, which the style knows."""
        place = f'x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"'
        self._parts.append(f'<line class="{kind}" {place} marker-end="url(#head)"/>')

    def svg(self) -> str:
        """Return the whole picture."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {self._size} role="img">'
        title = f"<title>{escape(self._title)}</title>"
        style = f"<style>{STYLE}</style>\n<defs>{DEFINITIONS}</defs>"
        return "\n".join([head, title, style, *self._parts, "</svg>", ""])
