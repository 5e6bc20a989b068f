"""The frame of the benchmarks: exit statuses, the last line, and going on after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import table
from benchmarks.table import Missing, Row, at_least, at_most, informs, run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept rows go to a folder of the test."""
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")


def part(*rows: Row) -> Callable[[], list[Row]]:
    """A part that yields these rows."""
    return lambda: list(rows)


def lacking() -> Iterator[Row]:
    """A part that needs what is not there."""
    raise Missing("the peer is not installed")


def half_lacking() -> Iterator[Row]:
    """A part that finds out late."""
    yield BAD
    raise Missing("the peer is not installed")


GOOD, BAD = at_most("error", 2.0, 3.0, "%"), at_least("speed", 1.0, 2.0, "steps/s")


@pytest.mark.parametrize(
    ("parts", "status", "last"),
    [
        ({"a": part(GOOD, informs("size", 3))}, 0, "x: 1 of 1 bars hold (measuring"),
        ({"a": part(GOOD, BAD)}, 1, "x: 1 of 2 bars hold; short: speed (measuring"),
        ({"a": part(GOOD), "b": lacking}, 2, "x: 1 of 1 bars hold; not measured, something is missing: b (measuring"),
        ({"a": half_lacking}, 1, "x: 0 of 1 bars hold; short: speed; not measured, something is missing: a (measuring"),
        ({"a": part(BAD), "b": lacking}, 1, "x: 0 of 1 bars hold; short: speed; not measured"),
        ({"a": part(at_most("error", float("nan"), 3.0))}, 1, "x: 0 of 1 bars hold; short: error"),
    ],
)
def test_the_last_line_and_the_exit_status_say_the_verdict(parts: dict, status: int, last: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("x", parts, []) == status
    assert capsys.readouterr().out.splitlines()[-1].startswith(last)


def test_a_run_that_was_killed_goes_on_and_fresh_starts_anew(capsys: pytest.CaptureFixture[str]) -> None:
    measured: list[str] = []

    def first() -> list[Row]:
        measured.append("first")
        return [GOOD]

    def killed() -> list[Row]:
        raise KeyboardInterrupt

    assert run("x", {"a": first, "b": killed}, []) == 130
    assert run("x", {"a": first, "b": part(GOOD)}, []) == 0
    assert measured == ["first"]
    assert "1 of 2 parts kept" in capsys.readouterr().out
    assert run("x", {"a": first, "b": part(GOOD)}, ["--fresh"]) == 0
    assert measured == ["first", "first"]
