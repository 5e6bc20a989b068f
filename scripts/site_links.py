"""Links of the site: what points out of docs/, at a file of the repository, is shown as the file's name; the site does not hold it."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page before it is rendered.

    Args:
        markdown: text of the page.
        **_: the page, the configuration and the files, which are not needed.

    Returns:
        The text with such links as plain names.

    Example:
        >>> on_page_markdown("see [the schema](../headway/x.json) and [theory](theory.md)")
        'see the schema (`headway/x.json`) and [theory](theory.md)'
    """
    return OUTSIDE.sub(lambda link: f"{link[1]} (`{link[2].removeprefix('../')}`)", markdown)
