"""The scheduler file for transformers' continuous batching: in the real thing, on a tiny random llama, as a subprocess."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.policy import Policy
from headway.controllers.tracker import TrackerLaw
from headway.controllers.updown import UpDownLaw
from headway.engines.export import EXPORTERS
from headway.engines.transformers_batching import TransformersLoop, headway_scheduler
from headway.engines.vllm.settings import VllmSettings
from headway.models.identified import Hull
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from tests.guarded_loops import record

PLANT = RegimePlant((0.006, 4e-4, 0.0, 0.0, 0.0, 0.0), (0.006, 4e-4, 0.0, 1.8e-4, 0.0, 0.0))
LIMITS = Limits(kv_tokens=4096, block_tokens=32, max_seqs=16, max_tokens=512)
HULL = Hull(16.0, 4096.0, 512.0, 2e5)
ITL_S = 0.06


def exported(folder: Path, law: Any, policy: Policy = Policy(running_limit=8.0), itl_s: float = ITL_S) -> Any:  # noqa: B008
    targets = (Target(5.0, itl_s, name="chat"), Target(60.0, itl_s, name="batch"))
    held = record(law, PLANT, policy, targets=targets, limits=LIMITS, hull=HULL)
    return EXPORTERS["transformers"](held, folder)


def test_the_module_needs_nothing_but_the_standard_library_until_it_is_registered(tmp_path: Path) -> None:
    out = exported(tmp_path / "out", TrackerLaw(PLANT, most_tokens=512.0))
    assert set(out.files) == {"headway_transformers.py", "gains.json", "README.md"}
    source = (out.folder / "headway_transformers.py").read_text()
    imported = {n.name.split(".")[0] for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for n in node.names}
    imported |= {str(node.module).split(".")[0] for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert imported <= set(sys.stdlib_module_names)
    code = "import sys; sys.path.insert(0, '.'); import headway_transformers as h; print(h.SCHEDULER_TYPE, h.Runtime.from_json('gains.json').law)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=out.folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("headway tracker\n", "")


def test_case_e23_what_transformers_cannot_carry_is_said(tmp_path: Path) -> None:
    out = exported(tmp_path / "a", UpDownLaw(), Policy(triage="reject", chunk_tokens=64.0, admission="lookahead"))
    said = " ".join(out.warnings)
    for words in ('triage "reject" is not carried out', "cap of 64 prompt tokens", 'admission "lookahead" is not carried out'):
        assert words in said
        assert words in (out.folder / "README.md").read_text()
    with pytest.raises(ValueError, match="policy part phases"):
        exported(tmp_path / "b", UpDownLaw(), Policy(phases="decode_first"))


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="mode must be one of control, observe, excite, got 'shadow'"):
        headway_scheduler(None, VllmSettings(mode="shadow"))
    with pytest.raises(ValueError, match="needs gains"):
        headway_scheduler(None, VllmSettings(mode="control"))


class Queue:
    """As much of a scheduler as the loop looks at."""

    def __init__(self, decoding: int = 0) -> None:
        self.max_requests_per_batch = 16
        self.active_requests = {f"d{k}": state(f"d{k}", "DECODING", 100) for k in range(decoding)}
        self.waiting_requests: dict[str, Any] = {}
        self.cache = SimpleNamespace(compute_free_capacity=lambda: 0.5)


def state(name: str, status: str, offset: int = 0, left: int = 0, created_s: float = 0.0) -> Any:
    return SimpleNamespace(
        request_id=name,
        status=SimpleNamespace(name=status),
        position_offset=offset,
        remaining_prefill_tokens=[0] * left,
        created_time=created_s,
    )


def law_of(folder: Path, law: Any, policy: Policy = Policy(running_limit=8.0)) -> Any:  # noqa: B008
    from headway.engines.runtime import Runtime

    return Runtime.from_json(exported(folder, law, policy).folder / "gains.json")


def run(loop: TransformersLoop, steps: int, step_s: Any, prompts: int = 10**9) -> list[tuple[int, float]]:
    """Steps on a made-up engine that always has more prompt: (prompt tokens, duration)."""
    rows, now_s, queue = [], 0.0, loop.scheduler
    for _ in range(steps):
        budget = loop.command(512, now_s)
        decoding = set(queue.active_requests)
        p = min(budget - len(decoding), prompts)
        found = [SimpleNamespace(state=s, query_length=1) for s in queue.active_requests.values()]
        found += [SimpleNamespace(state=state("p", "PREFILLING", 0, 5), query_length=p)] if p else []
        loop.composed(found, decoding, budget, now_s)
        rows.append((p, step_s(len(decoding), p)))
        now_s += rows[-1][1]
    return rows


@pytest.mark.parametrize(
    "law", [FeedforwardLaw(PLANT, most_tokens=512.0), TrackerLaw(PLANT, most_tokens=512.0), UpDownLaw(most_tokens=512.0)]
)
def test_the_loop_holds_its_step_on_a_made_up_engine(law: Any, tmp_path: Path) -> None:
    loop = TransformersLoop(Queue(8), law_of(tmp_path / "out", law), VllmSettings(mode="control"), "0")
    rows = run(loop, 400, lambda n, p: 0.006 + 4e-4 * n + 1.8e-4 * p)
    assert sum(y > ITL_S for _, y in rows[100:]) <= 0.05 * 300
    assert sum(p for p, _ in rows[100:]) / 300 > 100, "it would also hold by doing nothing"
    assert loop.running_limit == 8


def test_an_idle_engine_is_no_measurement_and_the_decodes_always_get_their_tokens(tmp_path: Path) -> None:
    law = law_of(tmp_path / "out", UpDownLaw(initial_tokens=1.0, most_tokens=512.0))
    loop = TransformersLoop(Queue(12), law, VllmSettings(mode="control"), "0")
    assert loop.command(512, 0.0) >= 12
    loop.composed([], set(), 512, 0.0)
    loop.paused()
    assert loop.command(512, 1000.0) >= 12
    assert loop.last.step_time_s is None
    assert law.faults == 0
    assert loop.command(8, 1001.0) == 8, "never above the engine's own limit"


def test_who_comes_in_is_the_most_urgent_first_and_within_the_limit(tmp_path: Path) -> None:
    loop = TransformersLoop(
        Queue(5), law_of(tmp_path / "out", UpDownLaw(), Policy(running_limit=8.0, order="slack")), VllmSettings(mode="control"), "0"
    )
    loop.command(512, 0.0)
    waiting = [state(name, "PENDING", 0, 100, t) for name, t in (("batch/0", 0.0), ("chat/9", 9.0), ("chat/2", 2.0), ("batch/1", 1.0))]
    assert [s.request_id for s in loop.in_order(waiting)] == ["chat/2", "chat/9", "batch/0"]
    loop.scheduler.active_requests |= {f"e{k}": state(f"e{k}", "DECODING") for k in range(4)}
    assert loop.in_order(waiting) == []


REAL = """
import json, os, random, sys
import torch
torch.set_num_threads(1)
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig
import headway_transformers as headway

torch.manual_seed(0)
shape = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
model = LlamaForCausalLM._from_config(LlamaConfig(**shape, vocab_size=2000), dtype=torch.float32, attn_implementation="sdpa").eval()
asked = GenerationConfig(max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0)
draw = random.Random(1)
inputs = [[draw.randrange(10, 1900) for _ in range(draw.randrange(20, 300))] for _ in range(60)]
answers = {}
for mode in sys.argv[1:]:
    if mode != "observe":
        inputs = inputs[:40]
    headway.register("gains.json" if mode == "control" else None, mode=mode, trace=mode + ".jsonl")
    batching = ContinuousBatchingConfig(scheduler_type="headway", num_blocks=128, page_size=32, max_batch_tokens=512, max_requests_per_batch=16)
    found = model.generate_batch(inputs=inputs, generation_config=asked, continuous_batching_config=batching, progress_bar=False)
    rows = sorted(found.values(), key=lambda o: o.prompt_ids)
    texts, errors = [o.generated_tokens for o in rows], [str(o.error) for o in rows if o.error]
    answers[mode] = [len(rows), sum(map(len, texts)), errors, texts, sum(map(len, inputs))]
print("ANSWER" + json.dumps(answers))
"""


@pytest.mark.slow
def test_real_transformers_obeys_the_budget_and_the_law_holds_the_step(tmp_path: Path) -> None:
    python = Path(os.environ.get("HEADWAY_VLLM") or Path(__file__).resolve().parents[1] / ".venv-vllm") / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"no transformers at {python.parents[1]}; scripts/vllm-env makes it")
    answers, traces = serve(python, tmp_path / "stock", ITL_S, "observe")
    # as the machine goes: the stock scheduler packs each step full, and most of those steps are to be too long
    itl_s = 0.6 * float(np.median([r["step_time_s"] for r in traces["observe"][1:] if r["prefill_tokens"]]))
    more, controlled = serve(python, tmp_path / "out", itl_s, "control", "excite")
    answers |= more
    traces |= controlled
    assert [answers[mode][:3] for mode in ("observe", "control", "excite")] == [[60, 1440, []], [40, 960, []], [40, 960, []]]
    assert answers["control"][3] == answers["excite"][3], "the budget of a step changes nothing in what is generated"
    for mode, (header, *rows) in traces.items():
        assert (header["headway_trace"], header["engine"], header["mode"]) == (1, "transformers", mode)
        assert header["limits"] == {"max_tokens": 512, "max_seqs": 16, "block_tokens": 32, "kv_tokens": 4096}
        assert all(r["prefill_tokens"] + r["decode_requests"] <= r["token_budget"] <= 512 for r in rows), mode
        assert all(r["running"] <= r["running_limit"] or not r["admitted"] for r in rows), mode
        assert [r["step"] for r in rows] == sorted({r["step"] for r in rows})
        assert all(0 < r["schedule_s"] < r["step_time_s"] for r in rows), mode
        assert sum(r["prefill_tokens"] for r in rows) >= 0.9 * answers[mode][4], "the last step alone is not measured"
    assert max(r["running"] for r in traces["control"][1:]) == 12
    assert len({r["token_budget"] for r in traces["excite"][1:]}) >= 4
    # on a machine that does other things as well, only side by side
    late = {mode: share_late(traces[mode][1:], itl_s) for mode in ("observe", "control")}
    assert late["observe"] > 0.5, late
    assert late["control"] < 0.5 * late["observe"], late


def serve(python: Path, folder: Path, itl_s: float, *modes: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the real scheduler answered, and the steps it traced, mode by mode."""
    law, policy = UpDownLaw(initial_tokens=128.0, most_tokens=512.0), Policy(running_limit=12.0)
    folder = exported(folder, law, policy, itl_s).folder
    (folder / "run.py").write_text(REAL)
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([python, "run.py", *modes], cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=quiet)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "gives up" not in done.stderr
    traces = {mode: [json.loads(line) for line in (folder / f"{mode}.jsonl").read_text().splitlines()] for mode in modes}
    return json.loads(done.stdout.split("ANSWER")[1]), traces


def share_late(rows: list[dict[str, Any]], itl_s: float) -> float:
    """Share of the steps with prompt tokens that took longer than the target."""
    mixed = [r["step_time_s"] > itl_s for r in rows if r["prefill_tokens"]]
    return sum(mixed) / len(mixed)
