"""Drills on a live vLLM server with the adapter in control: break one thing at a time, and see that it serves on and says so."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.table import Row
from headway.controllers.default import default_candidate
from headway.controllers.record import ControllerRecord
from headway.engines.vllm.clients import ClientRun, run_clients
from headway.engines.vllm.recording import vocabulary
from headway.engines.vllm.server import Server, serving
from headway.engines.vllm.service import read_back
from headway.engines.vllm.starting import Start, limits_of
from headway.engines.vllm.step_rows import read_rows
from headway.experiments.whole_files import write_whole
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

Told = Callable[[str, float], None]

PLANT = AffinePlant((6e-3, 2e-4, 8e-7, 1.4e-4, 1.5e-10, 1e-3))
"""Roughly the 17M model on one core; a drill is about faults, not about figures."""
TARGETS = (Target(ttft_s=2.0, itl_s=0.2),)
SMALL = {"kv_tokens": 4096, "max_seqs": 32, "max_tokens": 512, "max_len": 2048}
"""A cache so small that it is full with a few requests."""
LOOK_S = 1.5
"""The adapter looks at its gains every half second [s]."""


def record_of(limits: Limits) -> ControllerRecord:
    """An untuned controller, with what a record must hold.

    Args:
        limits: of the engine.

    Returns:
        Record.
    """
    hull = Hull(decode_requests=64.0, decode_kv_tokens=60_000.0, prefill_tokens=2048.0, prefill_pairs=2e6)
    identified = IdentifiedPlant(PLANT, Noise.none(), hull, {"decode": 0.2, "mixed": 0.2}, {}, limits, {})
    candidate = default_candidate(identified, TARGETS, limits)
    about = {"file": "plant.json", "sha256": None}
    return ControllerRecord(candidate, TARGETS, limits, PLANT, hull, about, {"spec": "poisson:rate=1/s,prompt=100,output=20"}, {})


def some(n: int, prompt: int, output: int, apart_s: float = 0.05) -> Workload:
    """Requests of one size.

    Args:
        n: how many.
        prompt: of each [tokens].
        output: of each [tokens].
        apart_s: between two [s].

    Returns:
        Workload.
    """
    return Workload(np.arange(n) * apart_s, np.full(n, prompt), np.full(n, output), np.zeros(n, np.int64), "drill")


class Drill:
    """A server under drill: what it printed since the last look, and whether it still serves.

    Args:
        start: how it was started.
        server: that runs.
    """

    def __init__(self, start: Start, server: Server) -> None:
        """Nothing that it printed was read yet."""
        self.start, self.server, self.vocab, self.seed, self.seen = start, server, vocabulary(start.model), 0, 0

    def text(self) -> str:
        """All that it printed."""
        return Path(str(self.server.log)).read_text(encoding="utf-8", errors="replace")

    def said(self, words: str) -> str:
        """The first new line that matches."""
        new = self.text()[self.seen :]
        found = next((line for line in new.splitlines() if re.search(words, line, re.IGNORECASE)), "")
        self.seen += len(new)
        return re.sub(r"^.*?\] ", "", found)[:160]

    def load(self, workload: Workload, **options: object) -> ClientRun:
        """Send requests, with targets unless told otherwise."""
        self.seed += 1
        asked = {"targets": TARGETS, "seed": self.seed, "vocab": self.vocab, "cores": self.start.cores.rest, **options}
        return run_clients(self.server, workload, **asked)  # pyright: ignore[reportArgumentType]

    def serves(self) -> bool:
        """Whether ten requests come through whole."""
        run = self.load(some(10, 40, 8))
        return run.counts == {"finished": 10}

    def row(self, what: str, bar: str, said: str, fine: bool, *, must_say: bool = True) -> Row:
        """A drill's row: it holds if the server serves on, what was asked holds, and the log says what happened."""
        serves = self.serves()
        words = f"serves on; {said or 'the log says nothing'}" if serves else f"does NOT serve; {said}"
        return Row(what, bar, words, serves and fine and bool(said or not must_say))


def drills(start: Start, told: Told) -> Iterator[Row]:
    """All drills on two starts of one server.

    Args:
        start: how servers are started; cache and limits are made small.
        told: called with what is done.

    Yields:
        A row per drill.
    """
    small = Start.of(start.model, start.folder, place=start.place, limits=SMALL)
    limits = Limits(
        kv_tokens=SMALL["kv_tokens"], block_tokens=128, max_seqs=SMALL["max_seqs"], max_len=2048, max_tokens=SMALL["max_tokens"]
    )
    how = small.serving("server", "control", record_of(limits), uncertified=True)
    gains = small.folder / "server" / "adapter" / "controller.json"
    whole = gains.read_text(encoding="utf-8")
    told("drills: starting the server", 0.0)
    with serving(how) as server:
        drill = Drill(small, server)
        found = limits_of(small, read_back(server.service, server.log))
        right = all(getattr(found, k) == v for k, v in SMALL.items())
        yield Row("limits read back after the start", str(SMALL), str({k: getattr(found, k) for k in SMALL}), right)
        yield drill.row("at rest", "serves", drill.said("mode control"), True)
        told("drills: gains", 0.1)
        yield from _gains(drill, gains, whole)
        told("drills: load", 0.4)
        yield from _load(drill, small)
        told("drills: killed", 0.8)
        os.killpg(server.pid, signal.SIGKILL)
        time.sleep(1.0)
    with serving(how) as server:
        drill = Drill(small, server)
        header = read_rows(small.trace_of("server")).header
        said, fine = drill.said("mode control"), header.get("mode") == "control"
        yield drill.row("killed with SIGKILL and started anew", "the same gains, a header of its own in the trace", said, fine)


def _gains(drill: Drill, gains: Path, whole: str) -> Iterator[Row]:
    """Gains that cannot be used, and good ones again."""
    law = json.loads(whole)
    first = next(iter(law["law"]["gains"]))
    number = json.loads(whole)
    number["law"]["gains"][first]["value"] = float("nan")
    other = json.loads(whole)
    other["law"]["gains"]["late_rate"]["value"] = 0.02
    for what, text, words in (
        ("gains file truncated", whole[: len(whole) // 2], "refused"),
        ("gains file with NaN", json.dumps(number), "refused"),
        ("gains file empty", "", "refused"),
        ("gains file put right, another late rate", json.dumps(other), "gains|taken over|reload"),
    ):
        write_whole(gains, text)
        drill.load(some(40, 60, 12, apart_s=LOOK_S / 20))
        yield drill.row(what, "what was in force stays" if words == "refused" else "taken over", drill.said(words), True)
    write_whole(gains, whole)


def _load(drill: Drill, start: Start) -> Iterator[Row]:
    """More than it can bear, and what it was never told about."""
    before = drill.server.service.figure("vllm:num_preemptions_total") or 0.0
    run = drill.load(some(12, 300, 400, apart_s=0.01), targets=None)
    after = drill.server.service.figure("vllm:num_preemptions_total") or 0.0
    usage = read_rows(start.trace_of("server")).columns["kv_usage"].max(initial=0.0)
    said = f"requests {run.counts}, {after - before:.0f} preemptions, cache up to {usage:.0%} full"
    ended = sum(n for name, n in run.counts.items() if name in ("finished", "shed"))
    yield drill.row(
        "KV pool full: 12 answers of 400 tokens in a pool of 4,096", "every request ends, no error", said, ended == 12 and usage > 0.85
    )
    run = drill.load(some(10, 40, 8), targets=(Target(ttft_s=1.0, itl_s=0.1, name="nobody"),))
    fine = run.counts == {"finished": 10}
    yield drill.row(
        "a class that the gains do not name", "served", f"requests {run.counts}; {drill.said('nobody|class')}".rstrip("; "), fine
    )
    run = drill.load(some(10, 40, 8), targets=None)
    yield drill.row("requests without targets", "served by the gains' own", f"requests {run.counts}", run.counts == {"finished": 10})
    run = drill.load(some(400, 200, 20, apart_s=0.0), limit_s=15.0)
    errors = run.counts.get("failed", 0)
    yield drill.row(
        "client flood: 400 requests at one instant, their clients gone after 15 s",
        "no failed request",
        f"requests {run.counts}",
        not errors,
    )
