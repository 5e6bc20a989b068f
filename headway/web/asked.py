"""What a page is asked to show."""

from __future__ import annotations

from typing import NamedTuple

from headway.web.root import Root
from headway.web.views import View


class Asked(NamedTuple):
    """What a page is asked to show.

    Args:
        view: the run.
        picks: from the URL: further names and places of sliders.
        dark: whether the page is dark.
        root: where the runs are.
    """

    view: View
    picks: dict[str, str]
    dark: bool
    root: Root
