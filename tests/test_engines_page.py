"""docs/engines.md: its tables are those of the exporters, and what it names is there.

Write the tables anew with `python -m tests.test_engines_page`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.engines.export import EXPORTERS
from headway.engines.knob_tables import KNOBS, VERSIONS
from headway.engines.vllm.versions import KNOBS as ADAPTER_KNOBS
from headway.engines.vllm.versions import TRIED

PAGE = Path(__file__).resolve().parents[1] / "docs" / "engines.md"
if not (Path(__file__).resolve().parents[1] / "docs" / "engines.md").exists():
    pytest.skip("the documentation lies in the checkout; these tests run from a copy", allow_module_level=True)
BLOCK = re.compile(r"(<!-- knobs: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ADAPTER = re.compile(r"(<!-- adapter: vllm -->\n)(.*?)(<!-- end -->)", re.DOTALL)
HEAD = (
    "| flag | carries | versions | without it | what it does | when it does nothing | where that stands |\n|---|---|---|---|---|---|---|\n"
)


def knob_table(engine: str) -> str:
    """The flags of an engine as the page shows them.

    Args:
        engine: a key of VERSIONS.

    Returns:
        Markdown.
    """
    rows = []
    for k in (k for k in KNOBS if k.engine == engine):
        versions = f"{k.since} to {k.until or VERSIONS[engine][-1]}"
        cells = (f"`{k.flag}`", k.carries.replace("_", " ") or "-", versions, k.default, k.acts, k.idle, k.source)
        rows.append(f"| {' | '.join(cells)} |\n")
    return f"Versions that were read: {', '.join(VERSIONS[engine])}.\n\n{HEAD}{''.join(rows)}"


def adapter_table() -> str:
    """What the adapter moves while vLLM serves, as the page shows it.

    Returns:
        Markdown.
    """
    rows = [f"| `{k.name}` | {k.since} | {k.without} |\n" for k in ADAPTER_KNOBS if k.kind == "member"]
    return f"| member of vLLM's scheduler | since | in versions without it |\n|---|---|---|\n{''.join(rows)}"


def written(text: str) -> str:
    """The page with its tables of today.

    Args:
        text: the page.

    Returns:
        The page.
    """
    text = ADAPTER.sub(lambda found: f"{found[1]}{adapter_table()}{found[3]}", text)
    return BLOCK.sub(lambda found: f"{found[1]}{knob_table(found[2])}{found[4]}", text)


def test_the_tables_are_those_of_the_exporters() -> None:
    text = PAGE.read_text()
    assert {found[1] for found in BLOCK.findall(text)} == set(VERSIONS)
    assert text == written(text), "write them anew: python -m tests.test_engines_page"


def test_the_versions_that_are_named_are_those_that_were_run() -> None:
    said = re.search(r"ran in versions (.*?), with synchronous", PAGE.read_text(), re.DOTALL)
    assert said
    assert re.findall(r"\d+\.\d+\.\d+", said[1]) == list(TRIED)


def test_the_two_tables_of_flags_agree() -> None:
    flags = {k.flag: k.since for k in KNOBS if k.engine == "vllm"}
    both = [k for k in ADAPTER_KNOBS if k.name in flags]
    assert len(both) >= 4
    assert {k.name: k.since for k in both} == {k.name: flags[k.name] for k in both}


def test_every_exporter_is_on_the_page_and_nothing_else() -> None:
    first = PAGE.read_text().split("## vLLM")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", first, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)}
    assert named - {"--engine"} == set(EXPORTERS)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text()) if PAGE.is_file() else [])
def test_its_links_lead_somewhere(link: str) -> None:
    assert (PAGE.parent / link).exists()


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()), encoding="utf-8", newline="\n")
