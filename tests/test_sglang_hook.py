"""The SGLang plugin on a stand-in: the attributes and hooks of its scheduler that the plugin uses, in both of its loops."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.controllers.policy import Policy
from headway.controllers.tracker import TrackerLaw
from headway.controllers.updown import UpDownLaw
from headway.engines.export import EXPORTERS
from headway.engines.runtime import Runtime
from headway.engines.sglang_hook import SglangLoop, guarded
from headway.models.identified import Hull
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from tests.guarded_loops import record

PLANT = RegimePlant((0.006, 1e-4, 1e-8, 0.0, 0.0, 0.0), (0.006, 1e-4, 1e-8, 5e-5, 0.0, 0.0))
ITL_S = 0.03


def exported(folder: Path, law: Any, order: str = "slack") -> Any:
    limits = Limits(kv_tokens=400_000, max_seqs=64, max_tokens=4096)
    targets = (Target(2.0, ITL_S, name="chat"), Target(60.0, ITL_S, name="batch"))
    return EXPORTERS["sglang"](
        record(law, PLANT, Policy(order=order), targets=targets, limits=limits, hull=Hull(64.0, 2e5, 4096.0, 9e6)), folder
    )


def mode(kind: str) -> Any:
    return SimpleNamespace(
        is_decode=lambda: kind == "decode", is_extend=lambda: kind in ("extend", "mixed"), is_mixed=lambda: kind == "mixed"
    )


class Request:
    def __init__(self, prompt: int, params: dict[str, Any] | None = None) -> None:
        self.origin_input_ids, self.output_ids, self.prefix_indices = [0] * prompt, [], []
        self.sampling_params = SimpleNamespace(custom_params=params)

    @property
    def seqlen(self) -> int:
        return len(self.origin_input_ids) + len(self.output_ids)


class Scheduler:
    """A scheduler that mixes: the decodes first, then chunks of one prompt after the other within the chunk size."""

    def __init__(self, overlap: bool = False, **args: Any) -> None:
        self.server_args = SimpleNamespace(**{"tp_size": 1, "pp_size": 1, "dp_size": 1, "speculative_algorithm": None, **args})
        self.chunked_prefill_size, self.page_size, self.is_mixed_chunk = 4096, 16, True
        self.running_batch, self.waiting_queue, self.chunked_req = SimpleNamespace(reqs=[]), [], None
        self.overlap, self.now_s, self.device_s, self.sizes = overlap, 0.0, 0.0, []

    def get_new_batch_prefill(self) -> Any:
        decodes, room = self.running_batch.reqs, self.chunked_prefill_size - len(self.running_batch.reqs)
        assert room >= self.page_size, "the adder must not be left with less than a page"
        self.sizes.append(self.chunked_prefill_size)
        lens, before, requests = [], [], []
        while room > 0 and (self.chunked_req or self.waiting_queue):
            request = self.chunked_req or self.waiting_queue.pop(0)
            done = len(request.prefix_indices)
            take = min(room, len(request.origin_input_ids) - done)
            lens, before, requests, room = [*lens, take], [*before, done], [*requests, request], room - take
            request.prefix_indices = [0] * (done + take)
            self.chunked_req = request if done + take < len(request.origin_input_ids) else None
        if not lens:
            return SimpleNamespace(forward_mode=mode("decode"), reqs=list(decodes), extend_lens=None, prefix_lens=None, decoding_reqs=None)
        kind = "mixed" if decodes else "extend"
        both = ([*lens, *(1 for _ in decodes)], [*before, *(r.seqlen for r in decodes)])
        done = [r for r in requests if r is not self.chunked_req]
        batch = SimpleNamespace(
            forward_mode=mode(kind),
            reqs=[*requests, *decodes],
            extend_lens=both[0],
            prefix_lens=both[1],
            decoding_reqs=list(decodes) or None,
        )
        self.running_batch = SimpleNamespace(reqs=[*decodes, *done])
        return batch

    def run_batch(self, batch: Any) -> float:
        n = len(batch.reqs) if batch.extend_lens is None else len(batch.decoding_reqs or ())
        p = 0 if batch.extend_lens is None else sum(batch.extend_lens) - n
        took_s = 0.006 + 1e-4 * n + 5e-5 * p
        self.device_s = max(self.device_s, self.now_s) + took_s
        for r in self.running_batch.reqs:
            r.output_ids.append(0)
        return self.device_s

    def process_batch_result(self, batch: Any, result: float) -> None:
        self.now_s = max(self.now_s, result)


def drive(scheduler: Scheduler, loop: SglangLoop, steps: int, prompts: int = 700) -> list[float]:
    """Run it with one batch in flight, or two; the durations that the loop measured."""
    loop.clock = lambda: scheduler.now_s
    took, in_flight = [], []
    for _ in range(steps):
        scheduler.running_batch.reqs = [r for r in scheduler.running_batch.reqs if len(r.output_ids) < 40]
        while len(scheduler.waiting_queue) < 4:
            scheduler.waiting_queue.append(Request(prompts))
        loop.before_prefill(scheduler, scheduler.running_batch)
        batch = scheduler.get_new_batch_prefill()
        loop.before_run(scheduler, batch)
        in_flight.append((batch, scheduler.run_batch(batch)))
        if len(in_flight) > scheduler.overlap:
            scheduler.process_batch_result(*in_flight.pop(0))
            loop.after_result()
            if loop.fresh:
                took.append(loop.fresh[1])
    return took


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("law", [UpDownLaw(most_tokens=4096.0), TrackerLaw(PLANT, most_tokens=4096.0)], ids=lambda law: law.law)
def test_it_holds_the_step_in_both_loops_and_never_leaves_the_limits(law: Any, overlap: bool, tmp_path: Path) -> None:
    loop = SglangLoop(Runtime.from_json(exported(tmp_path / "out", law).folder / "gains.json"))
    scheduler = Scheduler(overlap)
    took = drive(scheduler, loop, 600)
    late = sum(y > ITL_S for y in took[150:]) / len(took[150:])
    assert late <= 0.05, late
    assert sum(scheduler.sizes[150:]) / len(scheduler.sizes[150:]) > 150, "it would also hold by doing nothing"
    assert all(16 <= size <= 4096 and size % 16 == 0 for size in scheduler.sizes)
    assert loop.law.faults == 0


def test_the_stock_scheduler_would_be_late(tmp_path: Path) -> None:
    scheduler = Scheduler()
    loop = SglangLoop(Runtime.from_json(exported(tmp_path / "out", UpDownLaw()).folder / "gains.json"))
    loop.before_prefill = lambda *_: None  # type: ignore[method-assign]
    took = drive(scheduler, loop, 100)
    assert sum(y > ITL_S for y in took) / len(took) > 0.3


def test_the_queue_is_in_the_order_of_the_policy(tmp_path: Path) -> None:
    loop = SglangLoop(Runtime.from_json(exported(tmp_path / "out", UpDownLaw()).folder / "gains.json"))
    scheduler = Scheduler()
    batch, chat = Request(100, {"headway_class": "batch"}), Request(100, {"headway_class": "chat"})
    scheduler.waiting_queue = [batch, chat]
    loop.before_prefill(scheduler, scheduler.running_batch)
    assert scheduler.waiting_queue == [chat, batch]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"tp_size": 2}, "2 ranks compose the same step"),
        ({"dp_size": 4}, "4 ranks"),
        ({"tp_size": None}, "does not say how many ranks"),
        ({"speculative_algorithm": "EAGLE"}, "speculative decoding"),
    ],
)
def test_case_e23_where_it_cannot_act_it_says_so_and_changes_nothing(args: dict[str, Any], words: str, tmp_path: Path, caplog: Any) -> None:
    law = Runtime.from_json(exported(tmp_path / "out", UpDownLaw()).folder / "gains.json")
    scheduler, loops = Scheduler(**args), {}
    for _ in range(3):
        guarded(loops, lambda: law, scheduler, lambda loop: loop.before_prefill(scheduler, scheduler.running_batch))
    assert scheduler.chunked_prefill_size == 4096
    assert caplog.text.count("headway does not act in this SGLang") == 1
    assert words in caplog.text


def test_case_e23_without_mixing_the_chunk_size_is_no_budget(tmp_path: Path) -> None:
    loop = SglangLoop(Runtime.from_json(exported(tmp_path / "out", UpDownLaw()).folder / "gains.json"))
    scheduler = Scheduler()
    assert loop.unfit(scheduler) == ""
    scheduler.is_mixed_chunk = False
    assert "no token budget of a step" in loop.unfit(scheduler)


def test_a_fault_is_logged_once_and_the_stock_chunk_size_is_put_back(tmp_path: Path, caplog: Any) -> None:
    law = Runtime.from_json(exported(tmp_path / "out", UpDownLaw(initial_tokens=64.0)).folder / "gains.json")
    scheduler, loops = Scheduler(), {}
    scheduler.running_batch.reqs = [Request(100)]
    guarded(loops, lambda: law, scheduler, lambda loop: loop.before_prefill(scheduler, scheduler.running_batch))
    assert scheduler.chunked_prefill_size < 4096
    for _ in range(3):
        guarded(loops, lambda: law, scheduler, lambda loop: loop.before_run(scheduler, SimpleNamespace()))
    assert scheduler.chunked_prefill_size == 4096
    assert caplog.text.count("headway gives up") == 1


STAND_IN = """
import enum
class HookType(enum.Enum):
    BEFORE, AFTER, AROUND, REPLACE = "before", "after", "around", "replace"
class HookRegistry:
    hooks = {}
    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        cls.hooks[target] = hook, hook_type
"""


def test_the_package_registers_by_its_entry_point(tmp_path: Path) -> None:
    out = exported(tmp_path / "out", UpDownLaw())
    assert set(out.files) == {"headway_sglang.py", "pyproject.toml", "gains.json", "README.md"}
    project = tomllib.loads((out.folder / "pyproject.toml").read_text())
    module, name = project["project"]["entry-points"]["sglang.srt.plugins"]["headway"].split(":")
    plugins = tmp_path / "sglang" / "srt" / "plugins"
    plugins.mkdir(parents=True)
    (plugins / "hook_registry.py").write_text(STAND_IN)
    code = f"""import sys
sys.path[:0] = [{str(out.folder)!r}, {str(tmp_path)!r}]
import {module} as plugin
plugin.{name}()
from sglang.srt.plugins.hook_registry import HookRegistry
print(sorted((t.rsplit(".", 1)[1], k.value) for t, (_, k) in HookRegistry.hooks.items()), plugin.Runtime.from_json(plugin.json.loads(plugin.SGLANG_GAINS)).law)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout == "[('get_new_batch_prefill', 'before'), ('process_batch_result', 'after'), ('run_batch', 'before')] updown\n"
    assert "no SGLang ran with this" in out.warnings[-1]
    assert "no SGLang ran with this here" in (out.folder / "README.md").read_text()
    assert not importlib.util.find_spec("sglang"), "where there is one, try the plugin on it"
