"""What a fit says of itself beside its numbers, in miniature, and how the tests read the page that shows it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any


class Read(HTMLParser):
    """What a browser would see: elements, attributes, text outside scripts and styles, and the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.lines: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("script", "style"):
            self.inside.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag in ("p", "h1", "h2", "h3", "li", "tr", "figcaption", "pre", "caption", "summary", "title"):
            self.lines.append("")
        if tag in ("td", "th") and self.lines[-1]:
            self.lines[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside == ["script"]:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif not self.inside and data.strip():
            self.lines[-1] += data.replace("\N{NO-BREAK SPACE}", " ")

    def figures(self) -> list[dict[str, Any]]:
        """Figures as plotly gets them."""
        return [json.loads(text) for attrs, text in self.scripts if attrs.get("type") == "application/json" and "id" not in attrs]


def rung(name: str, regime: str, before: float, after: float, errors: float, taken: bool) -> dict[str, Any]:
    return {"name": name, "regime": regime, "before": before, "after": after, "errors": errors, "taken": taken}


SHARES = {"bandwidth": 0.62, "arithmetic": 0.14, "interconnect": 0.0, "launch": 0.24}
IDENTIFIED: dict[str, Any] = {
    "ladder": [
        rung("one law for each regime", "decode", 0.0240, 0.0239, 0.1, True),
        rung("jump at a number of tokens", "mixed", 0.049, 0.039, 3.8, True),
        rung("longest sequence", "mixed", 0.039, 0.041, -1.2, False),
    ],
    "margin_ci95": {"decode": [0.021, 0.044], "mixed": None},
    "binding": [
        {
            "point": "typical decode step",
            "step_time_s": 0.0202,
            "resource": "bandwidth",
            "shares": SHARES,
            "sentence": "of 20.2 ms: bandwidth 62%; bandwidth binds (the links are not told from the rest)",
        }
    ],
    "implied": {
        "rates": [
            {
                "what": "weights",
                "coefficient": "decode.floor",
                "value": 4.94e12,
                "ci95": [4.9e12, None],
                "peak": 8e12,
                "share": 0.6175,
                "unit": "bytes/s",
            },
            {
                "what": "cache",
                "coefficient": "decode.per_kv_token",
                "value": None,
                "ci95": None,
                "peak": 8e12,
                "share": None,
                "unit": "bytes/s",
            },
        ]
    },
    "excitation": {
        "decode": {"negative": {}, "terms": {"decode_requests": {"moved": True, "vif": 2.0}}},
        "mixed": {
            "negative": {"per_kv_token": -1e-9},
            "terms": {
                "prefill_tokens": {"moved": True, "vif": 12.0},
                "prefill_pairs": {"moved": True, "vif": 11.0},
                "decode_requests": {"moved": False, "vif": None},
            },
        },
    },
    "diagnostics": {
        "whiteness": {"decode": {"white": True}, "mixed": None},
        "independence": {"decode": {}, "mixed": {}},
        "lack_of_fit": {"decode": None, "mixed": None},
        "variance": {"decode": {}, "mixed": {}},
        "drift": {"streams": []},
        "outliers": {"gap": {}},
        "actuator": {"token_budget": None, "running_limit": None},
        "closed_loop": {"pi": {}},
        "clock": {"verdict": "start_to_start"},
        "host_gap": {"median_s": 1e-4},
        "sentences": {
            "outliers": ["gap: 12 steps: many times as long as steps like them; set aside"],
            "independence": ["decode: the residual depends on the inputs of the step before: time is booked one step late"],
            "closed_loop": ["token_budget follows earlier step times: recorded in closed loop"],
        },
    },
}
"""What a fit says of itself beside its numbers, every kind of row once."""
