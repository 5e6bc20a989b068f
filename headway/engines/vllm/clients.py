"""What clients of a live server saw: a workload sent in open loop by a process of its own, and every token's stamp that came back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import headway
from headway.engines.vllm.machine import share_of_others, usage
from headway.engines.vllm.server import Server
from headway.experiments.whole_files import read_json, write_json
from headway.models.signals import Target
from headway.models.workload import Workload

SCHEMA = "headway/clients/1"
STATUSES = ("finished", "running", "gave up", "left", "shed", "refused", "failed", "future")
"""How a request ends for its client: all tokens came; the run ended first; no first token within its patience; it closed the stream;
the server ended the stream early; the server did not take it; anything else; it was never sent."""
LOOK_S = 2.0
"""Between two looks at who uses the cores: looking takes time of its own [s]."""
REST_S = 60.0
"""Longest wait for the server to come to rest after a run [s]."""


@dataclass(frozen=True)
class ClientRun:
    """One run as its clients saw it; all times from the run's own zero.

    Args:
        status: of each request, one of STATUSES, shape (n,).
        arrival_s: when each was to be sent, shape (n,) [s]; with a backlog, when it was.
        sent_s: when it was; NaN if never, shape (n,) [s].
        token_s: stamps of its tokens, n lists [s].
        end_s: when its client was done with it; NaN if never, shape (n,) [s].
        prompt_tokens: shape (n,) [tokens].
        output_tokens: asked for, shape (n,) [tokens].
        class_id: index into the targets, shape (n,).
        errors: sentence of the server's by request.
        lags_s: by how much the load generator's own loop was late, every 20 ms, shape (m,) [s].
        zero_s: of the run, on this machine's monotonic clock [s].
        zero_epoch_s: the same since 1970 [s].
        server_tokens: that the server counted as generated in the run; None where it does not say [tokens].
        others: share of the machine that other programs took.
        cpu_s: CPU time of the load generator [s].
        priority: that the system gave it over the server: "real time", "nicer" or "ordinary"; "" where nobody said.
    """

    status: np.ndarray
    arrival_s: np.ndarray
    sent_s: np.ndarray
    token_s: list[np.ndarray]
    end_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    class_id: np.ndarray
    errors: dict[int, str]
    lags_s: np.ndarray
    zero_s: float
    zero_epoch_s: float
    server_tokens: int | None
    others: float
    cpu_s: float
    priority: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Requests by status, those that occur."""
        return {name: n for name in STATUSES if (n := int((self.status == name).sum()))}

    @property
    def tokens(self) -> int:
        """Tokens that clients received."""
        return int(sum(len(x) for x in self.token_s))

    @property
    def late_s(self) -> np.ndarray:
        """By how much requests were sent late, of those that were sent, shape (k,) [s]."""
        return (self.sent_s - self.arrival_s)[np.isfinite(self.sent_s)]

    @property
    def span_s(self) -> float:
        """From zero to the last event [s]."""
        return float(np.nanmax(self.end_s)) if np.isfinite(self.end_s).any() else 0.0

    def token_words(self) -> str:
        """Whether clients and server counted alike.

        Returns:
            One sentence.
        """
        if self.server_tokens is None:
            return "the server does not count its tokens: nothing to compare with"
        if self.tokens == self.server_tokens:
            return f"clients received {self.tokens:,} tokens, as many as the server generated"
        stopped = sum(self.counts.get(name, 0) for name in ("running", "gave up", "left"))
        why = f": {stopped} streams were closed before their end" if stopped and self.server_tokens > self.tokens else ""
        return f"clients received {self.tokens:,} tokens, the server generated {self.server_tokens:,}{why}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, with the arrays of `vllm bench serve --save-detailed`: `headway transport` and `headway fit` read it.

        Returns:
            The content of a client file.
        """
        came = [len(x) > 0 for x in self.token_s]
        first = [float(x[0] - s) if ok else 0.0 for x, s, ok in zip(self.token_s, self.sent_s, came, strict=True)]
        failed = [str(self.errors.get(k, "" if s == "finished" else s)) for k, s in enumerate(self.status)]
        total = int(self.prompt_tokens.sum())
        return {
            "schema": SCHEMA,
            "num_prompts": len(self.status),
            "completed": int((self.status == "finished").sum()),
            "duration": self.span_s,
            "total_input_tokens": total,
            "total_output_tokens": self.tokens,
            "request_throughput": float((self.status == "finished").sum() / max(self.span_s, 1e-9)),
            "input_lens": [int(x) for x in self.prompt_tokens],
            "output_lens": [len(x) for x in self.token_s],
            "ttfts": first,
            "itls": [np.diff(x).tolist() for x in self.token_s],
            "start_times": [float(x + self.zero_s) if np.isfinite(x) else None for x in self.sent_s],
            "errors": failed,
            "headway": {
                "status": self.status.tolist(),
                "arrival_s": self.arrival_s.tolist(),
                "sent_s": self.sent_s.tolist(),
                "end_s": self.end_s.tolist(),
                "asked_tokens": self.output_tokens.tolist(),
                "class_id": self.class_id.tolist(),
                "errors": {str(k): v for k, v in self.errors.items()},
                "lags_s": np.quantile(self.lags_s, np.linspace(0, 1, 101)).tolist() if len(self.lags_s) else [],
                "zero_s": self.zero_s,
                "zero_epoch_s": self.zero_epoch_s,
                "server_tokens": self.server_tokens,
                "others": self.others,
                "cpu_s": self.cpu_s,
                "priority": self.priority,
            },
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> ClientRun:
        """Read what `to_json` wrote.

        Args:
            data: its content.

        Returns:
            The run; its lags are their quantiles.

        Raises:
            ValueError: another content.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"no client records of Headway's (schema {SCHEMA!r})")
        own = data["headway"]
        number = lambda rows: np.array([np.nan if x is None else x for x in rows], float)  # noqa: E731
        sent = number(own["sent_s"])
        stamps = [
            s + t + np.concatenate([[0.0], np.cumsum(gaps)]) if n else np.zeros(0)
            for s, t, gaps, n in zip(sent, data["ttfts"], data["itls"], data["output_lens"], strict=True)
        ]
        whole = lambda rows: np.array(rows, np.int64)  # noqa: E731
        return ClientRun(
            np.array(own["status"]),
            number(own["arrival_s"]),
            sent,
            stamps,
            number(own["end_s"]),
            whole(data["input_lens"]),
            whole(own["asked_tokens"]),
            whole(own["class_id"]),
            {int(k): v for k, v in own["errors"].items()},
            number(own["lags_s"]),
            own["zero_s"],
            own["zero_epoch_s"],
            own["server_tokens"],
            own["others"],
            own["cpu_s"],
            own.get("priority", ""),
        )


def request_rows(
    workload: Workload, targets: Sequence[Target] | None, *, patience: float | None = None, backlog: bool = False
) -> list[dict[str, Any]]:
    """The requests of a workload as the load generator takes them.

    Args:
        workload: requests; their order of arrival stands.
        targets: one per class: each request tells the server its class and what it was promised; None tells nothing.
        patience: longest wait for a first token as a share of what was promised, beside the workload's own; None for none.
        backlog: leave the arrival times out.

    Returns:
        One mapping per request.

    Raises:
        ValueError: requests that wait for the end of others: a live load is open loop.
    """
    if workload.after is not None and (workload.after >= 0).any():
        raise ValueError(
            "this workload has requests that wait for the end of others; a live run is open loop: give one with arrivals of its own"
        )
    rows = []
    for k in range(len(workload)):
        row: dict[str, Any] = {"prompt_tokens": int(workload.prompt_tokens[k]), "output_tokens": int(workload.output_tokens[k])}
        if not backlog:
            row["at_s"] = float(workload.arrival_s[k])
        early_s = None if patience is None or targets is None else patience * targets[int(workload.class_id[k])].ttft_s
        for name, given in (("patience_s", early_s), ("cancel_s", None)):
            own = getattr(workload, name)
            limits = [x for x in (given, None if own is None else float(own[k])) if x is not None and np.isfinite(x)]
            if limits:
                row[name] = min(limits)
        if targets is not None:
            t = targets[int(workload.class_id[k])]
            row["extra"] = {"headway_class": t.name, "headway_ttft_ms": t.ttft_s * 1e3, "headway_itl_ms": t.itl_s * 1e3}
        rows.append(row)
    return rows


def run_clients(
    server: Server,
    workload: Workload,
    *,
    targets: Sequence[Target] | None = None,
    patience: float | None = None,
    outstanding: int | None = None,
    limit_s: float | None = None,
    seed: int = 0,
    vocab: int = 16_000,
    cores: tuple[int, ...] = (),
    also: Sequence[int] = (),
    enough: Callable[[], bool] | None = None,
    progress: Callable[[float], None] | None = None,
) -> ClientRun:
    """Send a workload to a server and stamp what comes back.

    Args:
        server: that answers.
        workload: requests.
        targets: one per class, told to the server with each request; None tells it nothing.
        patience: longest wait for a first token as a share of its target; None for the workload's own.
        outstanding: send as soon as fewer are on their way, instead of at the arrival times [requests].
        limit_s: end of the run [s]; None waits until all requests have ended.
        seed: of the prompts' content: with another one no cache of prefixes knows them.
        vocab: token ids to draw prompts from [tokens].
        cores: for the load generator; () leaves it where it is.
        also: processes besides the server's that count as ours.
        enough: asked every two seconds; True ends the run, requests on their way are closed.
        progress: called with the share of the time that has passed.

    Returns:
        The run.

    Raises:
        ValueError: aiohttp is missing, the load generator ended with an error, or the server's first process ended.
    """
    job: dict[str, Any] = {
        "url": server.service.url,
        "model": server.service.model()[0],
        "seed": seed,
        "vocab": vocab,
        "cores": list(cores),
    }
    job |= {"requests": request_rows(workload, targets, patience=patience, backlog=outstanding is not None)}
    job |= {"outstanding": outstanding, "limit_s": limit_s}
    counted = server.service.figure("vllm:generation_tokens_total")
    with tempfile.TemporaryDirectory(prefix="headway-clients-") as folder:
        files = [Path(folder) / name for name in ("job.json", "records.json")]
        write_json(files[0], job)
        command = [sys.executable, "-m", "headway.engines.vllm.sender", *map(str, files)]
        process = subprocess.Popen(command, cwd=Path(headway.__file__).resolve().parents[1], stderr=subprocess.PIPE, text=True)
        # what this process started is ours, the load generator and servers of its own among it
        roots = [os.getpid(), *([server.pid] if server.pid else []), *also]
        before, after = usage(roots), usage(roots)
        try:
            usual_s = limit_s or float(workload.arrival_s[-1]) or 1.0
            began = time.monotonic()
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
                    break
                after = usage(roots)
                if progress:
                    progress(min((time.monotonic() - began) / usual_s, 1.0))
                if enough is not None and enough():
                    process.terminate()
                if not server.alive:
                    raise ValueError(f"the server ended during the run; its log: {server.log}")
            if process.returncode:
                said = (process.stderr.read() if process.stderr else "").strip().splitlines() or ["it printed nothing"]
                raise ValueError(f"the load generator ended with {process.returncode}: {said[-1]}")
            found = read_json(files[1])
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
    return _run_of(
        found, workload, outstanding is not None, _generated(server, counted), share_of_others(before, after, os.cpu_count() or 1)
    )


def _generated(server: Server, before: float | None) -> int | None:
    """Tokens that the server has counted since, once it has come to rest."""
    if before is None or not server.service.wait_idle(REST_S):
        return None
    after = server.service.figure("vllm:generation_tokens_total")
    return None if after is None else int(after - before)


def _run_of(found: dict[str, Any], workload: Workload, backlog: bool, generated: int | None, others: float) -> ClientRun:
    records = found["records"]
    number = lambda name: np.array([one.get(name, np.nan) for one in records], float)  # noqa: E731
    sent = number("sent_s")
    return ClientRun(
        status=np.array([one["status"] for one in records]),
        arrival_s=sent if backlog else workload.arrival_s,
        sent_s=sent,
        token_s=[np.array(one.get("token_s", []), float) for one in records],
        end_s=number("end_s"),
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        class_id=workload.class_id,
        errors={k: one["error"] for k, one in enumerate(records) if "error" in one},
        lags_s=np.array(found["lags_s"], float),
        zero_s=found["zero_monotonic_s"],
        zero_epoch_s=found["zero_epoch_s"],
        server_tokens=generated,
        others=others,
        cpu_s=found["cpu_s"],
        priority=found["priority"],
    )
