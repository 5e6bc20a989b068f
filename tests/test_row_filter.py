"""Rows by value and by range: which are taken, what is refused, and that a plant remembers it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headway.cli import main
from headway.cli.options import where_given
from headway.identification.row_filter import chosen, column_range
from tests.synthetic_steps import composed, durations, traced

NUMBERS = pl.Series("level", [1.0, 2.0, 2.5, 4.0, None, float("nan")])
WORDS = pl.Series("span", ["16:64", "a:b", "B", None])


@pytest.mark.parametrize(
    ("text", "rows"),
    [("2:2.5", [1, 2]), ("2:", [1, 2, 3]), (":2", [0, 1]), ("4:4", [3]), (" 1 : 2 ", [0, 1]), ("-5:1e1", [0, 1, 2, 3]), ("2", [1])],
)
def test_a_range_holds_both_its_ends_and_no_row_without_a_number(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(chosen(NUMBERS, text)).tolist() == rows


def test_a_value_with_a_colon_is_a_value_where_the_column_holds_text() -> None:
    assert np.flatnonzero(chosen(WORDS, "16:64")).tolist() == [0]
    assert np.flatnonzero(chosen(WORDS, "A:B")).tolist() == [1]
    assert np.flatnonzero(chosen(WORDS, "b")).tolist() == [2]


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        (WORDS, "1:2", "span holds no numbers, so it has no range 1:2; the trace holds ['16:64', 'a:b', 'B', None]"),
        (WORDS, "x:y", "no row has span=x:y; the trace holds ['16:64', 'a:b', 'B', None]"),
        (NUMBERS, "5:9", "no row has level in 5:9; the trace holds 1 to 4"),
        (NUMBERS, "3:2", "level=3:2 is a range whose low end is above its high one; write level=2:3"),
        (NUMBERS, "a:2", "level=a:2 is no range of numbers; write level=16:64, level=16: or level=:64"),
        (NUMBERS, "1:2:3", "level=1:2:3 is no range of numbers; write level=16:64, level=16: or level=:64"),
        (NUMBERS, ":", "level=: is no range of numbers; write level=16:64, level=16: or level=:64"),
        (NUMBERS, "nan:2", "level=nan:2 is no range of numbers; write level=16:64, level=16: or level=:64"),
        (NUMBERS.head(0), "1:2", "no row has level in 1:2; the trace holds no number there"),
        (NUMBERS, "7", "no row has level=7; the trace holds [1.0, 2.0, 2.5, 4.0, None, nan]"),
    ],
)
def test_what_is_no_range_or_holds_nothing_is_refused(column: pl.Series, text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        chosen(column, text)
    assert str(caught.value) == said


def test_a_range_is_written_as_it_is_read() -> None:
    assert column_range("level", 2.0, 2.5) == "--where level=2:2.5"
    assert column_range("level", -np.inf, 4096.0) == "--where level=:4096"
    (text,) = [column_range("level", 2.0, np.inf).removeprefix("--where ")]
    assert chosen(NUMBERS, where_given([text])["level"]).sum() == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "decode_requests>=16",
            "--where takes column=value or column=low:high, got 'decode_requests>=16'; write --where decode_requests=16: ",
        ),
        ("kv < 5", "got 'kv < 5'; write --where kv=:5 "),
        ("decode_requests", "write for example --where workload_segment=real, or --where decode_requests=16:64"),
    ],
)
def test_a_comparison_is_answered_with_the_range(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        where_given([text])
    assert said in str(caught.value)


def test_ranges_and_values_hold_together_in_a_trace() -> None:
    batch = composed(400)
    trace = traced(batch, durations(batch), mode=np.where(np.arange(400) < 200, "a", "b"))
    mask = trace.matching({"decode_requests": "16:32", "mode": "a", "prefill_tokens": "0:0"})
    assert (
        mask == ((batch.decode_requests >= 16) & (batch.decode_requests <= 32) & (np.arange(400) < 200) & (batch.prefill_tokens == 0))
    ).all()
    assert mask.any()
    with pytest.raises(ValueError, match=r"no row has all of step=0:9, mode=b"):
        trace.matching({"step": "0:9", "mode": "b"})


def test_the_commands_take_ranges_and_the_plant_remembers_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = composed(1200, seed=3)
    frame = pl.DataFrame({"step": np.arange(1200), "step_time_s": durations(batch, 0.04, seed=3), **batch._asdict()})
    steps, out = str(tmp_path / "steps.csv"), str(tmp_path / "plant.json")
    frame.write_csv(steps)

    def spoken(*arguments: str) -> dict[str, object]:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    wanted = int(((batch.decode_requests >= 16) & (batch.decode_requests <= 32)).sum())
    fitted = spoken("fit", steps, "--where", "decode_requests=16:32", "--out", out)
    assert fitted["rows"]["read"] == wanted  # pyright: ignore[reportIndexIssue]
    assert json.loads(Path(out).read_text())["training"]["where"] == {"decode_requests": "16:32"}
    inside = {text: "in-sample" in " ".join(spoken("score", out, steps, "--where", text)["warnings"]) for text in (  # pyright: ignore[reportArgumentType, reportCallIssue]
        "decode_requests=16:32", "decode_requests=24:", "decode_requests=20", "decode_requests=33:", "decode_requests=:15", "step=0:600",
    )}  # fmt: skip
    assert list(inside.values()) == [True, True, True, False, False, True]
    for text in ("decode_requests=64:16", "decode_requests=1e6:", "source=1:2", "kv=1:2", "decode_requests>=16"):
        assert main(["score", out, steps, "--where", text]) == 2
        assert capsys.readouterr().err.count("\n") == 1
