"""The live kernels: the tokens of a plain forward pass, however the steps are cut; the scheduler's accounting; a clean clock."""

from __future__ import annotations

import time

import numpy as np
import pytest

from headway.experiments.kernels import LIMITS, KernelEngine, bucket, check_memory
from headway.experiments.llm import PRESETS, Architecture, architecture
from headway.experiments.sequences import prompt_ids
from headway.models.engine import Step
from headway.models.signals import Limits

MICRO = Architecture(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=101)
FEW = Limits(kv_tokens=640, block_tokens=4, max_seqs=4, max_len=240, max_tokens=128)
# With stretches of 32 tokens, 16 of them to a pass, and tiles of 64: long enough for several of each.
PROMPTS = {0: 170, 1: 37, 2: 5, 7: 110}


@pytest.fixture(scope="module")
def compiled() -> KernelEngine:
    return KernelEngine(MICRO, FEW)


@pytest.fixture
def engine(compiled: KernelEngine) -> KernelEngine:
    compiled.reset()
    return compiled


def step(*rows: tuple[int, int, int, bool], released: tuple[int, ...] = ()) -> Step:
    request, tokens, context = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return Step(request, tokens, context, np.array([row[3] for row in rows], bool), np.array(released, np.int64))


class Loop:
    """The smallest scheduler: decodes first, then chunks while the step's budget lasts."""

    def __init__(self, engine: KernelEngine, prompts: dict[int, int], outputs: int, budget: int) -> None:
        self.engine, self.budget, self.outputs, self.steps = engine, budget, outputs, 0
        self.left = dict(prompts)
        self.cached = dict.fromkeys(prompts, 0)
        self.released: list[int] = []

    def preempt(self, request: int) -> None:
        self.left[request] = self.cached[request] + 1
        self.cached[request] = 0
        self.released.append(request)

    def advance(self) -> None:
        room, rows = self.budget, []
        for request, left in self.left.items():
            if not left:
                rows.append((request, 1, self.cached[request], True))
                room -= 1
        for request, left in self.left.items():
            if left and room > 0:
                rows.append((request, min(left, room), self.cached[request], False))
                self.left[request] = left - rows[-1][1]
                room -= rows[-1][1]
        took_s = self.engine.execute(step(*rows, released=tuple(self.released)))
        assert 0 < took_s < 60
        assert np.isfinite(self.engine.last_cpu_s)
        self.steps += 1
        self.released = []
        for request, tokens, _, _ in rows:
            self.cached[request] += tokens
            if not self.left[request] and len(self.engine.tokens(request)) >= self.outputs:
                del self.left[request], self.cached[request]
                self.released.append(request)
        held = sum(-(-tokens // FEW.block_tokens) for tokens in self.cached.values())
        gone = FEW.blocks - self.engine.free_blocks - held
        assert gone == sum(-(-(PROMPTS[r] + self.outputs - 1) // FEW.block_tokens) for r in self.released)

    def finish(self) -> None:
        while self.left:
            self.advance()


def plain_logits(engine: KernelEngine, ids: np.ndarray) -> np.ndarray:
    """Logits behind every position, by full attention in float64 without a cache."""
    llm, w = engine.llm, {name: np.asarray(value, float) for name, value in engine._weights._asdict().items()}

    def norm(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def rotate(x: np.ndarray) -> np.ndarray:
        half = llm.head_dim // 2
        angles = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(half) / half)
        turn = np.exp(1j * angles) * (x[..., :half] + 1j * x[..., half:])
        return np.concatenate([turn.real, turn.imag], -1)

    x = w["embed"][ids]
    for layer in range(llm.layers):
        qkv = (norm(x) @ w["qkv"][layer]).reshape(len(ids), -1, llm.head_dim)
        q, k, v = np.split(qkv, [llm.heads, llm.heads + llm.kv_heads], axis=1)
        k, v = (np.repeat(part, llm.heads // llm.kv_heads, axis=1) for part in (rotate(k), v))
        scores = np.einsum("qhd,khd->hqk", rotate(q), k) / np.sqrt(llm.head_dim)
        shares = np.exp(np.where(np.tri(len(ids), dtype=bool), scores, -np.inf))
        seen = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), v)
        x = x + seen.reshape(len(ids), -1) @ w["out"][layer]
        gate, up = np.split(norm(x) @ w["gate_up"][layer], 2, axis=-1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"][layer]
    return norm(x) @ w["embed"].T


def assert_greedy(engine: KernelEngine, request: int, prompt: int, outputs: int) -> None:
    """Every emitted token is the likeliest of the plain pass, up to what float32 cannot tell apart."""
    emitted = engine.tokens(request)
    assert len(emitted) == outputs
    ids = np.concatenate([prompt_ids(request, 0, prompt, engine.llm.vocab), emitted[:-1]]).astype(int)
    logits = plain_logits(engine, ids)[prompt - 1 :]
    behind = logits.max(-1) - logits[np.arange(outputs), emitted]
    assert behind.max() < 1e-4 * np.abs(logits).max()


def test_chunks_and_decodes_together_emit_what_a_plain_forward_pass_does(engine: KernelEngine) -> None:
    loop = Loop(engine, PROMPTS, outputs=14, budget=80)
    loop.finish()
    for request, prompt in PROMPTS.items():
        assert_greedy(engine, request, prompt, 14)
    assert len({token for request in PROMPTS for token in engine.tokens(request)}) > 20  # an llm that repeats itself tests nothing


def test_a_preempted_request_goes_on_as_if_nothing_had_happened(engine: KernelEngine) -> None:
    loop = Loop(engine, PROMPTS, outputs=14, budget=80)
    while len(engine.tokens(1) if loop.steps > 3 else []) < 4:
        loop.advance()
    before = engine.tokens(1)
    loop.preempt(1)
    loop.advance()
    assert engine.tokens(1)[: len(before)] == before
    loop.finish()
    assert_greedy(engine, 1, PROMPTS[1], 14)
    assert_greedy(engine, 0, PROMPTS[0], 14)


def test_reset_forgets_requests_and_keeps_programs(engine: KernelEngine) -> None:
    engine.execute(step((3, 8, 0, False)))
    assert engine.free_blocks == FEW.blocks - 2
    shapes = engine.compiled_shapes
    engine.reset()
    assert engine.free_blocks == FEW.blocks
    engine.execute(step((3, 8, 0, False)))
    assert engine.compiled_shapes == shapes
    with pytest.raises(ValueError, match="request 4 never ran"):
        engine.tokens(4)


def test_warm_up_compiles_ahead_and_compiling_never_enters_a_measured_step() -> None:
    engine, seen = KernelEngine(MICRO, FEW), []
    engine.warm_up(max_decode=1, max_prefill_tokens=15, max_context=200, progress=lambda label, done: seen.append((label, done)))
    assert seen == [("compiling 1 tokens, decode only", 0.0), ("compiling 16 tokens, mixed", 0.5), ("ready", 1.0)]
    engine.execute(step((0, 10, 0, False), (1, 6, 0, False)))
    engine.execute(step((0, 1, 10, True), (2, 15, 0, False)))
    engine.execute(step((0, 1, 11, True)))
    assert engine.compiled_shapes == 2
    start_s = time.perf_counter()
    took_s = engine.execute(step((0, 1, 12, True), (1, 1, 6, True)))
    assert took_s < (time.perf_counter() - start_s) / 2
    assert engine.compiled_shapes == 3


@pytest.mark.parametrize(
    ("rows", "released", "message"),
    [
        ([(0, 4, 8, False)], (), r"request 0 has 12 tokens in the cache, the step says 8"),
        ([(5, 1, 6, True)], (), r"request 5 has 0 tokens in the cache, the step says 6"),
        ([(0, 2, 12, True)], (), r"a decode exactly 1 behind a context; got 2"),
        ([(0, 0, 12, False)], (), r"a chunk has at least 1 token"),
        ([(0, 1, 12, True), (0, 1, 12, True)], (), r"two rows in one step"),
        ([(5, 241, 0, False)], (), r"request 5 would have 241 tokens, max_len is 240"),
        ([(5, 240, 0, False), (6, 240, 0, False), (7, 149, 0, False)], (), r"needs 1 cache blocks more than are free"),
        ([(5, 240, 0, False), (6, 240, 0, False), (0, 161, 0, False)], (0,), r"needs 1 cache blocks more than are free"),
        ([(5, 4, 0, False), (6, 4, 0, False), (7, 4, 0, False), (8, 4, 0, False)], (), r"more than max_seqs = 4 requests"),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_it_runs(engine: KernelEngine, rows: list, released: tuple, message: str) -> None:
    engine.execute(step((0, 12, 0, False)))
    free = engine.free_blocks
    with pytest.raises(ValueError, match=message):
        engine.execute(step(*rows, released=released))
    assert engine.free_blocks == free
    engine.execute(step((0, 1, 12, True)))


def test_a_prompt_is_the_same_however_it_is_cut() -> None:
    whole = prompt_ids(3, 0, 40, 1000)
    assert whole.tolist() == [*prompt_ids(3, 0, 17, 1000), *prompt_ids(3, 17, 40, 1000)]
    assert (whole >= 0).all()
    assert (whole < 1000).all()
    assert len(set(whole) & set(prompt_ids(4, 0, 40, 1000))) < 10


def test_the_ladder_of_batches_is_short_and_close() -> None:
    mixed, decode = [bucket(n, True) for n in range(1, 1089)], [bucket(n, False) for n in range(1, 65)]
    assert all(n <= size <= max(1.125 * n, n + 15) for n, size in enumerate(mixed, 1))
    assert all(n <= size <= max(1.25 * n, n + 7, 3) for n, size in enumerate(decode, 1))
    assert len(set(mixed)) + len(set(decode)) < 50
    assert mixed == sorted(mixed)
    assert all(bucket(size, True) == size for size in mixed)


def test_presets_are_ordered_and_have_limits() -> None:
    sizes = [llm.parameters for llm in PRESETS.values()]
    assert sizes == sorted(sizes)
    assert 7e9 < PRESETS["8b"].parameters < 8.5e9
    assert set(LIMITS) == set(PRESETS)
    for limits in LIMITS.values():
        limits.check()
    with pytest.raises(ValueError, match=r"unknown preset 'tinny'; did you mean tiny"):
        architecture("tinny")
    with pytest.raises(ValueError, match=r"unknown preset 'huge'; .* tiny, small, 1b, 8b"):
        KernelEngine("huge")


def test_what_does_not_fit_is_refused_with_need_and_have() -> None:
    with pytest.raises(ValueError, match=r"needs 49\.\d GB \(15\.0 for weights, 34\.4 for the KV cache\), the device has 24\.0 GB"):
        check_memory(PRESETS["8b"], LIMITS["8b"], 2, 24_000_000_000)
    with pytest.raises(ValueError, match="fewer kv_tokens"):
        KernelEngine(MICRO, Limits(kv_tokens=10**13))
    check_memory(PRESETS["tiny"], LIMITS["tiny"], 4, 1_000_000_000)
