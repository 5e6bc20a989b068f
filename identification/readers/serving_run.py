"""A run of a server beside kernel tables: the seconds in which it only decoded, to hold composed steps against."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from headway.identification.readers.columns import Opened, numbers, text_table
from headway.identification.readers.errors import TraceError

FORM_REQUESTS = "a server's record of its requests, one JSON object a line"
FORM_SERIES = "a server's record of its throughput by the second"


class Request(msgspec.Struct):
    """One line of requests.jsonl.

    Args:
        input_toks: prompt [tokens].
        output_toks: output [tokens].
        queued_ts: clock when it came [s].
        first_token_ts: clock at its first token [s].
        last_token_ts: clock at its last token [s].
    """

    input_toks: float
    output_toks: float
    queued_ts: float
    first_token_ts: float
    last_token_ts: float


class ServingRun(NamedTuple):
    """Seconds of a run without a prompt in them.

    Args:
        tp: ranks of tensor parallelism; 0 if the run does not say.
        decode_requests: requests that decoded, in the middle of the second, shape (k,) [requests].
        context_tokens: mean context of these, shape (k,) [tokens].
        step_time_s: requests over tokens per second, shape (k,) [s].
        tpot_s: of every request of the run, (last - first token) / (output - 1), shape (r,) [s].
    """

    tp: int
    decode_requests: np.ndarray
    context_tokens: np.ndarray
    step_time_s: np.ndarray
    tpot_s: np.ndarray


def read_serving_run(folder: Path) -> ServingRun:
    """Read `requests.jsonl`, `timeseries.csv` and, where it is there, `meta.json`.

    A second in which no prompt was computed holds decode-only steps: each gives one token to each of n requests, so the
    step took n / (tokens per second).

    Args:
        folder: that holds them.

    Returns:
        The seconds; none if the run never only decoded.

    Raises:
        TraceError: a file that is not there, or not what its name says.
    """
    requests = _requests(folder / "requests.jsonl")
    series, _ = text_table(_opened(folder / "timeseries.csv"), ("t", "prompt_throughput", "gen_throughput"), FORM_SERIES)
    series = numbers(series, str(folder / "timeseries.csv"), ("t", "prompt_throughput", "gen_throughput"))
    alone = series.filter((pl.col("prompt_throughput") == 0) & (pl.col("gen_throughput") > 0))
    prompt, output, queued, first, last = (np.array([getattr(r, name) for r in requests]) for name in Request.__struct_fields__)
    middle = queued.min() + alone["t"].to_numpy()[:, None] - 0.5
    decoding = (first <= middle) & (last > middle)
    count = decoding.sum(axis=1)
    held = prompt + output * np.clip((middle - first) / np.maximum(last - first, 1e-9), 0.0, 1.0)
    context = (held * decoding).sum(axis=1) / np.maximum(count, 1)
    kept = count > 0
    many = output > 1
    return ServingRun(
        _tp(folder / "meta.json"),
        count[kept].astype(float),
        context[kept],
        (count / alone["gen_throughput"].to_numpy())[kept],
        ((last - first)[many] / (output[many] - 1)),
    )


def _opened(path: Path) -> Opened:
    if not path.is_file():
        raise TraceError(path, "this file of a server's run, but there is none of this name")
    return Opened(str(path))


def _requests(path: Path) -> list[Request]:
    found, decoder = [], msgspec.json.Decoder(Request)
    for row, line in enumerate(_opened(path).data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(path, f"a request ({FORM_REQUESTS})", row=row, found=str(error)) from None
    if not found:
        raise TraceError(path, f"at least one request in {FORM_REQUESTS}, found none")
    return found


def _tp(path: Path) -> int:
    """Ranks of tensor parallelism by the run's own record; 0 where it does not say."""
    if not path.is_file():
        return 0
    try:
        content: Any = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(path, "the run's own record, a JSON object", found=str(error)) from None
    engine = content.get("engine_kwargs") if isinstance(content, dict) else None
    tp = engine.get("tensor_parallel_size") if isinstance(engine, dict) else None
    return tp if isinstance(tp, int) and not isinstance(tp, bool) else 0
