"""What a page of HTML has."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What tests ask of a page.

    Attributes:
        attributes: Each tag with the name and the value of each of its attributes.
        links: Where the page's links lead.
        ids: What can be linked to.
        classes: All classes of its elements.
        styles: The style sheets in it, and the styles of single elements.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.classes: set[str] = set()
        self.styles: list[str] = []
        self._is_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the attributes of a tag."""
        self._is_style = tag == "style"
        for name, given in attrs:
            value = given or ""
            self.attributes.append((tag, name, value))
            if name in {"id", "name"}:
                self.ids.add(value)
            elif name == "class":
                self.classes |= {*value.split()}
            elif name == "style":
                self.styles.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)

    def handle_data(self, data: str) -> None:
        """Take what stands in a style sheet."""
        if self._is_style:
            self.styles.append(data)
            self._is_style = False
