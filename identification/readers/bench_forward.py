"""Forward passes of exact batches, as `vllm bench forward --output-json` times them: each replay of a case is one step."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from headway.identification.readers.columns import MOST, Opened, Table
from headway.identification.readers.errors import TraceError

FORM = "timed forward passes of vllm bench forward"
UNSTABLE = 0.5
"""Spread of a case's sample medians from which on vLLM itself calls its timing unstable [%]."""


class Request(msgspec.Struct):
    """One request of a batch.

    Args:
        query_len: tokens computed in the step [tokens].
        kv_len: of its cache after the step, these included [tokens].
        num_draft_tokens: drafts that a decode verifies [tokens].
    """

    query_len: int
    kv_len: int
    num_draft_tokens: int = 0

    @property
    def decodes(self) -> bool:
        """Whether it emits: it has a prefix, and computes one token and its drafts."""
        return self.kv_len > self.query_len == 1 + self.num_draft_tokens


class Latency(msgspec.Struct):
    """Times of a case.

    Args:
        median: of its replays [us].
        samples_us: every replay [us]; may be empty.
        sample_spread_pct: spread of the medians of its samples [%].
        count: replays.
    """

    median: float
    samples_us: list[float] = []
    sample_spread_pct: float = 0.0
    count: int = 1


class Rank(msgspec.Struct):
    """What one rank wrote.

    Args:
        latency_us: its times: of each replay the longest over all ranks.
    """

    latency_us: Latency


class Case(msgspec.Struct):
    """One batch.

    Args:
        case: its name.
        requests: in it.
        ranks: all ranks.
    """

    case: str
    requests: list[Request]
    ranks: list[Rank]


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is this format.

    Args:
        opened: the file.

    Returns:
        True for a list whose first cases hold requests with `query_len` and `kv_len`.
    """
    start = opened.start.lstrip()
    return start.startswith(b"[") and all(key in start for key in (b'"case"', b'"query_len"', b'"kv_len"'))


def read(opened: Opened) -> Table:
    """Read the cases; each replay is a row, so that their scatter is seen. The clock is the device's.

    Args:
        opened: the file.

    Returns:
        The trace's columns, and `case`.

    Raises:
        TraceError: no such list, a case without requests, or a length or time that cannot be.
    """
    try:
        cases = msgspec.json.decode(opened.data, type=list[Case])
    except msgspec.ValidationError as error:
        raise TraceError(opened.file, FORM, found=str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(opened.file, f"a whole JSON list ({FORM})", found=str(error)) from None
    if not cases:
        raise TraceError(opened.file, f"at least one case in {FORM}, found none")
    rows: list[dict[str, Any]] = []
    unstable, verify = [], []
    for number, case in enumerate(cases, 1):
        sums = _sums(opened.file, number, case)
        times = _times(opened.file, number, case)
        rows += [{**sums, "step_time_s": t / 1e6, "case": case.case, "steps_averaged": n} for t, n in times]
        if case.ranks[0].latency_us.sample_spread_pct > UNSTABLE:
            unstable.append(case.case)
        if any(r.num_draft_tokens for r in case.requests):
            verify.append(case.case)
    frame = pl.DataFrame(rows).with_row_index("step").with_columns(pl.col("step").cast(pl.Int64), source=pl.lit("forward"))
    if (frame["steps_averaged"] == 1).all():
        frame = frame.drop("steps_averaged")
    said = []
    if unstable:
        said.append(
            f"{len(unstable)} of {len(cases)} cases were timed while the device was not steady ({', '.join(unstable[:3])}): time them again"
        )
    if verify:
        said.append(f"{len(verify)} cases verify drafts ({', '.join(verify[:3])}): a request of theirs computes several tokens in a step")
    return Table(frame, warnings=tuple(said), clock="device")


def _sums(file: str, number: int, case: Case) -> dict[str, float]:
    if not case.requests:
        raise TraceError(file, "at least one request in a case", row=number, column="requests", found=0)
    for r in case.requests:
        if not (1 <= r.query_len <= r.kv_len <= MOST and r.num_draft_tokens >= 0):
            raise TraceError(file, "1 <= query_len <= kv_len", row=number, column="requests", found=f"{r.query_len}, {r.kv_len}")
    decodes, chunks = [r for r in case.requests if r.decodes], [r for r in case.requests if not r.decodes]
    return {
        "decode_requests": float(len(decodes)),
        "decode_kv_tokens": float(sum(r.kv_len for r in decodes)),
        "prefill_tokens": float(sum(r.query_len for r in chunks)),
        "prefill_pairs": float(sum(r.query_len * (r.kv_len - r.query_len + r.query_len / 2) for r in chunks)),
        "prefill_requests": float(len(chunks)),
    }


def _times(file: str, number: int, case: Case) -> list[tuple[float, int]]:
    """(duration, replays that it averages) of each row of a case [us]."""
    if not case.ranks:
        raise TraceError(file, "the times of at least one rank", row=number, column="ranks", found=0)
    latency = case.ranks[0].latency_us
    times = [(t, 1) for t in latency.samples_us] or [(latency.median, max(latency.count, 1))]
    for t, _ in times:
        if not 0 < t <= MOST:
            raise TraceError(file, "a time above zero", row=number, column="latency_us", found=t)
    return times
