"""Vidur on one synthetic load, run by Vidur's own Python: run_vidur.py TABLES HOW REQUESTS RATE PROMPT OUTPUT BUDGET SEQS KV_TOKENS.

Its predictions come as published tables, which need a network that a benchmark should not need; here they are filled from the
kernel tables in the folder TABLES (attention.csv, dense.csv) instead, so that it simulates the same llm on the same card. HOW is
"default", its own settings but for plots, which need a browser, or "lean": its compiled predictor, and no metrics kept or written.
Prints one JSON object.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from vidur.config import (  # pyright: ignore[reportMissingImports]
    CacheConfig,
    ClusterConfig,
    FixedRequestLengthGeneratorConfig,
    MetricsConfig,
    PoissonRequestIntervalGeneratorConfig,
    RandomForrestExecutionTimePredictorConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    SyntheticRequestGeneratorConfig,
)
from vidur.execution_time_predictor.sklearn_execution_time_predictor import (  # pyright: ignore[reportMissingImports]
    SklearnExecutionTimePredictor,
)
from vidur.simulator import Simulator  # pyright: ignore[reportMissingImports]

KERNELS = {
    "attn_pre_proj": "qkv_proj",
    "attn_post_proj": "o_proj",
    "attn_rope": "rotary_emb",
    "mlp_up_proj": "gate_up_proj",
    "mlp_down_proj": "down_proj",
    "mlp_act": "act_fn",
    "input_layernorm": "layernorm",
    "post_attention_layernorm": "layernorm",
    "add": "",
    "attn_kv_cache_save": "",
}
"""Its name of each kernel, and that of the tables; "" for what they hold inside another kernel."""
MILLI = 1e-3
"""Its unit is the millisecond, the tables' the microsecond."""
GRANULE, CHUNK = 256, 32
"""Steps of its tables of attention [tokens]."""


def predictions(tables: Path, most_tokens: int, most_context: int, most_requests: int, chunk: int) -> dict[str, dict]:
    """Its prediction tables, filled from kernel tables.

    Args:
        tables: folder with attention.csv and dense.csv.
        most_tokens: in a step [tokens].
        most_context: of a request [tokens].
        most_requests: in a step [requests].
        chunk: largest prompt chunk of one request [tokens].

    Returns:
        By its names, milliseconds by what it looks up.
    """
    dense: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in csv.DictReader((tables / "dense.csv").open()):
        dense[row["layer"]].append((float(row["tokens"]), float(row["time_us"])))
    tokens = np.arange(1, most_tokens + 9)
    found: dict[str, dict] = {}
    for name, kernel in KERNELS.items():
        at, us = np.array(sorted(dense[kernel])).T if kernel else (np.array([1.0]), np.array([0.0]))
        beyond = np.maximum(tokens / at[-1], 1.0) if kernel else 1.0
        found[name] = dict(zip(((int(n),) for n in tokens), (np.interp(tokens, at, us) * beyond * MILLI).tolist(), strict=True))
    alone: dict[bool, dict[tuple[float, float], float]] = {True: {}, False: {}}
    for row in csv.DictReader((tables / "attention.csv").open()):
        p, past, n, kv, us = (float(row[c]) for c in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"))
        if p == 0 or n == 0:
            alone[p == 0][(n, kv) if p == 0 else (past, p)] = us * MILLI
    contexts = range(0, most_context + GRANULE + 1, GRANULE)
    found["attn_decode"] = _plane(alone[True], range(1, most_requests + 1), contexts)
    found["attn_prefill"] = _plane(alone[False], contexts, range(CHUNK, chunk + CHUNK, CHUNK))
    return found


def _plane(points: dict[tuple[float, float], float], first: range, second: range) -> dict[tuple[int, int], float]:
    """Linear in the first coordinate where the second was measured, then linear in the second; the edge beyond it."""
    lines: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for (a, b), value in points.items():
        lines[b].append((a, value))
    at = sorted(lines)
    along = np.array([np.interp(list(first), *np.array(sorted(lines[b])).T) for b in at])
    whole = np.array([np.interp(list(second), at, column) for column in along.T])
    return {(a, b): float(whole[i, j]) for i, a in enumerate(first) for j, b in enumerate(second)}


def main() -> None:
    """Simulate, and print what was measured."""
    tables, (requests, rate, prompt, output, budget, seqs, kv_tokens) = Path(sys.argv[1]), (float(a) for a in sys.argv[3:10])
    longest, lean = int(prompt + output), sys.argv[2] == "lean"
    found = predictions(tables, int(budget), longest, int(seqs), int(prompt))
    SklearnExecutionTimePredictor._load_predictions_from_hf = lambda _: found
    # its compiled predictor asks for a hash under a name that the wheel does not have
    SklearnExecutionTimePredictor.get_hash = lambda _: "tables"
    with tempfile.TemporaryDirectory() as folder:
        config = SimulationConfig(
            log_level="error",
            cluster_config=ClusterConfig(
                replica_config=ReplicaConfig(
                    model_name="meta-llama/Llama-3-8B", num_pipeline_stages=1, tensor_parallel_size=1, device="h100"
                ),
                cache_config=CacheConfig(num_blocks=int(kv_tokens) // 16),
                replica_scheduler_config=SarathiSchedulerConfig(batch_size_cap=int(seqs), chunk_size=int(budget)),
            ),
            request_generator_config=SyntheticRequestGeneratorConfig(
                length_generator_config=FixedRequestLengthGeneratorConfig(
                    prefill_tokens=int(prompt), decode_tokens=int(output), max_tokens=longest
                ),
                interval_generator_config=PoissonRequestIntervalGeneratorConfig(qps=rate),
                num_requests=int(requests),
            ),
            execution_time_predictor_config=RandomForrestExecutionTimePredictorConfig(
                use_native_execution_time_predictor=lean,
                cache_dir=folder,
                prediction_max_batch_size=int(seqs),
                prediction_max_tokens_per_request=longest,
            ),
            metrics_config=MetricsConfig(write_metrics=not lean, enable_chrome_trace=not lean, store_plots=False, output_dir=folder),
        )
        simulator = Simulator(config)
        served = [event._request for _, event in simulator._event_queue]
        began = time.process_time()
        simulator.run()
        took_s = time.process_time() - began
    ttft_s = float(np.mean([r.prefill_completed_at - r.arrived_at for r in served]))
    tpot_s = float(np.mean([(r.completed_at - r.prefill_completed_at) / (output - 1) for r in served]))
    print(json.dumps({"requests": len(served), "simulating_s": took_s, "ttft_s": ttft_s, "tpot_s": tpot_s}))


if __name__ == "__main__":
    main()
