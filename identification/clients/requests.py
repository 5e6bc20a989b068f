"""The stamps of single requests, as clients and engines write them, in the same columns whatever tool wrote them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from headway.identification.trace import Source

STATUSES = ("ok", "cancelled", "failed")
"""How a request ended, as its client saw it."""

STAMPS = ("token", "chunk")
"""What one arrival in `token_s` is: one token, or a chunk of one or several that the server or the client bundled."""

REQUEST_CLOCKS = ("epoch", "monotonic", "per_request")
"""What stamps count from: 1970, an unknown instant, or, where no common clock was written, each request's own sending."""

BACKWARDS = "a stamp before the one it must follow, on the client's own clock: no duration taken from it"

TPOT_FORMULA = "(E2E - TTFT) / (n - 1), n output tokens"
"""The one time per output token that Headway computes and compares."""

GIVEN: dict[str, pl.DataType | type[pl.DataType]] = {
    "source": pl.String,
    "run": pl.String,
    "request_id": pl.String,
    "status": pl.String,
    "sent_s": pl.Float64,
    "first_token_s": pl.Float64,
    "last_token_s": pl.Float64,
    "input_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "chunks": pl.Int64,
    "stamps": pl.String,
    "token_s": pl.List(pl.Float64),
    "engine_arrival_s": pl.Float64,
    "queue_s": pl.Float64,
    "prefill_s": pl.Float64,
    "decode_s": pl.Float64,
    "engine_first_token_s": pl.Float64,
    "engine_last_token_s": pl.Float64,
}
"""What a reader may give; what it leaves out is null, never zero."""

DERIVED = ("ttft_s", "e2e_s", "tpot_s", "max_token_gap_s", "max_chunk_gap_s")
"""What is computed from it, the same way for every tool."""


@dataclasses.dataclass(frozen=True)
class RequestStamps:
    """Requests with the instants at which their tokens were seen. Build one with `RequestStamps.of` or `read_requests`.

    tpot = (e2e - ttft) / (n - 1)

    Args:
        frame: one row per request: the columns of `GIVEN`, then `DERIVED`, then a tool's own figures under names that
            begin with the tool's; in order of sending, shape (n,).
        clock: of the client's stamps, one of `REQUEST_CLOCKS`.
        aside: records that hold no request or only part of one, by reason in words [records].
        warnings: what the reader has to say, one sentence each.
        formulas: by column of a tool's own, the formula it stands for.
        sources: the files.
    """

    frame: pl.DataFrame
    clock: str = "epoch"
    aside: Mapping[str, int] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    formulas: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sources: tuple[Source, ...] = ()

    @staticmethod
    def of(
        frame: pl.DataFrame,
        *,
        clock: str = "epoch",
        aside: Mapping[str, int] | None = None,
        warnings: Sequence[str] = (),
        formulas: Mapping[str, str] | None = None,
        sources: Sequence[Source] = (),
    ) -> RequestStamps:
        """Put requests in order and compute what follows from their stamps.

        Args:
            frame: any of the columns of `GIVEN`, `request_id` and `status` among them, and a tool's own, shape (n,).
            clock: one of `REQUEST_CLOCKS`.
            aside: records that hold no request, by reason [records].
            warnings: what the reader has to say.
            formulas: by column of a tool's own, the formula it stands for.
            sources: the files.

        Returns:
            The requests. A duration that would be negative on the client's own clock is null and counted in `aside`.

        Raises:
            ValueError: no request, an unknown status, kind of stamps or clock, or a column of unclear meaning.
        """
        if clock not in REQUEST_CLOCKS:
            raise ValueError(f"clock must be one of {list(REQUEST_CLOCKS)}, got {clock!r}")
        if frame.height == 0 or not {"request_id", "status"} <= set(frame.columns):
            raise ValueError(f"request stamps need a row per request with request_id and status, got {frame.height} rows")
        if computed := [name for name in DERIVED if name in frame.columns]:
            raise ValueError(f"{computed[0]} is computed from the stamps; give a tool's own under another name")
        own = [name for name in frame.columns if name not in GIVEN]
        given = [(pl.col(n) if n in frame.columns else pl.lit(None)).cast(kind).alias(n) for n, kind in GIVEN.items()]
        frame = frame.select(*given, *own)
        for name, words in (("status", STATUSES), ("stamps", STAMPS)):
            other = frame[name].drop_nulls().filter(~frame[name].drop_nulls().is_in(list(words)))
            if len(other) or (name == "status" and frame[name].null_count()):
                raise ValueError(f"{name} of a request must be one of {list(words)}, got {other.to_list()[:1]}")
        frame, backwards = _derived(frame.sort("sent_s", maintain_order=True, nulls_last=True))
        aside = dict(aside or {})
        if backwards:
            aside[BACKWARDS] = aside.get(BACKWARDS, 0) + backwards
        return RequestStamps(frame, clock, aside, tuple(warnings), dict(formulas or {}), tuple(sources))

    def __len__(self) -> int:
        """Number of requests."""
        return self.frame.height

    @property
    def reader(self) -> str:
        """Name of the format, or of several joined by "+"."""
        return "+".join(dict.fromkeys(source.reader for source in self.sources))

    @property
    def counts(self) -> dict[str, int]:
        """Requests by status, all of them: a cancelled one is counted, never dropped."""
        return {status: int((self.frame["status"] == status).sum()) for status in STATUSES}

    @property
    def tpot_counts(self) -> dict[str, int]:
        """Finished requests by what is known of their time per output token."""
        ok = self.frame.filter(pl.col("status") == "ok")
        count = lambda rule: int(ok.select(rule.sum()).item() or 0)  # noqa: E731
        known = pl.col("output_tokens").is_not_null()
        return {
            "measured": count(pl.col("tpot_s").is_not_null()),
            "TPOT n/a": count(known & (pl.col("output_tokens") < 2)),
            "tokens unknown": count(~known),
            "no client stamps": count(known & (pl.col("output_tokens") >= 2) & pl.col("tpot_s").is_null()),
        }

    def token_gaps_s(self) -> np.ndarray:
        """Gaps between consecutive tokens of a request, only of requests whose every arrival is one token [s].

        Returns:
            All gaps, shape (k,) [s]; a gap between chunks of several tokens is never among them.
        """
        return self._gaps("token")

    def chunk_gaps_s(self) -> np.ndarray:
        """Gaps between consecutive chunks of a request, of requests whose chunks hold several tokens or unknown numbers [s].

        Returns:
            All gaps, shape (k,) [s]. They are no gaps between tokens: compare them with nothing that is.
        """
        return self._gaps("chunk")

    def _gaps(self, kind: str) -> np.ndarray:
        rows = self.frame.filter((pl.col("stamps") == kind) & pl.col("token_s").is_not_null())["token_s"]
        return np.concatenate([np.zeros(0), *(np.diff(np.asarray(row, float)) for row in rows.to_list())])


def _derived(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """TTFT, E2E, TPOT and longest gaps; and how many requests had a duration below zero."""
    ttft, e2e = pl.col("first_token_s") - pl.col("sent_s"), pl.col("last_token_s") - pl.col("sent_s")
    ordered = (ttft >= 0) & (e2e >= ttft)
    backwards = int(frame.select((~ordered).fill_null(False).sum()).item())
    sound = ordered.fill_null(True)
    frame = frame.with_columns(ttft_s=pl.when(sound).then(ttft), e2e_s=pl.when(sound).then(e2e))
    n = pl.col("output_tokens")
    tpot = pl.when((pl.col("status") == "ok") & (n >= 2)).then((pl.col("e2e_s") - pl.col("ttft_s")) / (n - 1))
    longest = pl.col("token_s").list.diff().list.max()
    gaps = [pl.when(pl.col("stamps") == kind).then(longest).alias(f"max_{kind}_gap_s") for kind in STAMPS]
    return frame.with_columns(tpot.alias("tpot_s"), *gaps), backwards


def kind_of(gaps_s: Sequence[float] | None, output_tokens: int | None) -> str | None:
    """Whether the arrivals of a request are tokens or chunks.

    Args:
        gaps_s: between its arrivals, shape (a - 1,) [s]; None where the tool did not write them.
        output_tokens: how many tokens came in all; None where the tool did not write it [tokens].

    Returns:
        "token" if there are as many arrivals as tokens and their gaps were measured one by one, "chunk" otherwise, None
        without arrivals. Gaps that are the same to the last bit were not measured: some tools spread the gap before a
        chunk evenly over its tokens.

    Example:
        >>> kind_of([0.04, 0.041], 3), kind_of([0.04, 0.04], 8), kind_of([0.04, 0.04], None), kind_of([], 1)
        ('token', 'chunk', 'chunk', 'token')
    """
    if gaps_s is None:
        return None
    same = int(np.sum(np.diff(np.asarray(gaps_s, float)) == 0))
    spread = same >= SPREAD_LEAST and same >= SPREAD_SHARE * len(gaps_s)
    return "token" if output_tokens == len(gaps_s) + 1 and not spread else "chunk"


SPREAD_LEAST, SPREAD_SHARE = 2, 0.02
"""Pairs of equal neighbours from which on the gaps of a request count as spread, not measured: clocks tick in ns or us."""
