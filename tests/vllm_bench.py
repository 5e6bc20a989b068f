"""An exported adapter beside a fake scheduler, on a clock of its own: for the tests of what the adapter does."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.engines.vllm.adapter import write_adapter
from tests.fake_vllm import FakeQueue, FakeRequest, FakeScheduler, Output, Outputs, Sampling
from tests.test_export import LAWS

TRACKER = LAWS[5]
SLACK = Policy(order="slack", triage="reject", aging_rate=0.1)
MEMBERS = frozenset(
    ("add_request", "pop_request", "peek_request", "prepend_request", "prepend_requests", "remove_request", "remove_requests", "__len__")
)


def loaded(folder: Path) -> ModuleType:
    """The exported file, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"headway_vllm_{folder.name}", folder / "headway_vllm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


WRITTEN: dict[str, dict[str, str]] = {}


def put(folder: Path, written: ControllerRecord | None) -> None:
    """An export; one that was made before is written from memory."""
    key = json.dumps(written.to_json(), sort_keys=True) if written else ""
    if key not in WRITTEN:
        out = write_adapter(folder, written, force=True)
        WRITTEN[key] = {name: (out.folder / name).read_text() for name in out.files}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in WRITTEN[key].items():
        (folder / name).write_text(text)


class Clock:
    """Time as a test wants it; the adapter's clocks are set to it."""

    def __init__(self, module: ModuleType) -> None:
        self.now_s, self.apart_s = 1000.0, 1.7e9
        module.monotonic_s = lambda: self.now_s  # pyright: ignore[reportAttributeAccessIssue]
        module.wall_s = lambda: self.now_s + self.apart_s  # pyright: ignore[reportAttributeAccessIssue]


OPEN: list[Bench] = []
"""Benches of the test that runs, whose traces are closed after it."""


class Bench:
    """An adapter beside a fake scheduler."""

    def __init__(self, folder: Path, written: ControllerRecord | None, base: type = FakeScheduler, **settings: Any) -> None:
        self.folder = folder / "gains"
        put(self.folder, written)
        self.module = loaded(self.folder)
        self.clock = Clock(self.module)
        names = self.module.VllmNames(Output, Outputs, "abort", lambda _: FakeQueue(), MEMBERS, "0.0-fake", False)
        given = self.module.vllm_settings({"headway": settings}, has_gains=written is not None, environment={})
        inlined = self.module.gains_from_text(self.module.INLINED_GAINS) if written else None
        made = self.module.steered(base, names, given, inlined, self.folder / "controller.json")
        self.scheduler = made()
        self.pilot = self.scheduler.headway
        self.count, self.ended = 0, {}
        OPEN.append(self)

    def add(self, prompt: int, output: int = 5, xargs: Any = None, age_s: float = 0.0) -> str:
        self.count += 1
        stamp = self.clock.now_s + self.clock.apart_s - age_s
        self.scheduler.add_request(FakeRequest(f"q{self.count}", prompt, output, stamp, Sampling(xargs)))
        return f"q{self.count}"

    def step(self, took_s: float = 0.015) -> Any:
        out = self.scheduler.schedule()
        self.clock.now_s += took_s
        self.take(self.scheduler.update_from_output(out, None))
        return out

    def take(self, found: dict[int, Outputs]) -> None:
        for outputs in found.values():
            self.ended |= {o.request_id: o.finish_reason for o in outputs.outputs if o.finish_reason}


def loaded_steps(bench: Bench, steps: int) -> list[int]:
    """Steps under a steady load; the budgets in force."""
    found = []
    for k in range(steps):
        if k % 4 == 0:
            bench.add(700, 30, {"headway_class": "batch"})
        bench.step(0.012 + 2e-5 * (k % 5))
        found.append(bench.scheduler.max_num_scheduled_tokens)
    return found
