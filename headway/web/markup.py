"""The report's own HTML as components of the page: tables and sentences are made by the same functions as there."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from dash import html

TAGS: dict[str, Any] = {
    tag: getattr(html, tag.capitalize())
    for tag in (
        "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "ul", "ol", "li",
        "details", "summary", "code", "strong", "pre", "section", "h2", "h3", "span",
    )
}  # fmt: skip
"""Elements that the report writes. Anything else is shown as its text."""

KEPT = {"class": "className", "colspan": "colSpan", "scope": "scope", "id": "id", "role": "role", "tabindex": "tabIndex"}


class _Reader(HTMLParser):
    """Builds components; text is text, whatever is in it."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[tuple[str, dict[str, Any], list[Any]]] = [("", {}, [])]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in TAGS:
            kept: dict[str, Any] = {KEPT[k]: v for k, v in attrs if k in KEPT and v is not None}
            kept |= {k: v for k, v in attrs if k.startswith("aria-") and v is not None}
            if "colSpan" in kept:
                kept["colSpan"] = int(kept["colSpan"])
            self.stack.append((tag, kept, []))

    def handle_endtag(self, tag: str) -> None:
        if tag in TAGS and len(self.stack) > 1 and self.stack[-1][0] == tag:
            name, kept, inside = self.stack.pop()
            self.stack[-1][2].append(TAGS[name](inside, **kept))

    def handle_data(self, data: str) -> None:
        self.stack[-1][2].append(data)


def components(text: str) -> list[Any]:
    """HTML that the report made, as components.

    Args:
        text: HTML.

    Returns:
        Components and plain text, in order.

    Example:
        >>> components("<p>a &lt; b</p>")[0].children
        ['a < b']
    """
    reader = _Reader()
    reader.feed(text)
    reader.close()
    while len(reader.stack) > 1:  # what was left open closes at the end
        name, kept, inside = reader.stack.pop()
        reader.stack[-1][2].append(TAGS[name](inside, **kept))
    return reader.stack[0][2]
