#!/usr/bin/env bash
# Live kernels on the accelerator at hand, within eight minutes: record, fit, tune, validate, and one table of what came out.
#
#   benchmarks/accelerator.sh [PRESET] [OUT]      1b and runs/accelerator, where nothing is given
#
# It uses the Python of .venv, else python3 (PYTHON names another one), and whatever device JAX has there. Try it on a CPU:
#   benchmarks/accelerator.sh tiny runs/accelerator
# LIMIT_S is the time for all of it, STEPS the length of the recording, LENGTH and RUNS those of the validation.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=${1:-1b}
out=${2:-$root/runs/accelerator}
limit=${LIMIT_S:-480} steps=${STEPS:-3000} length=${LENGTH:-20s} runs=${RUNS:-3}
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
export PYTHONPATH=$root
mkdir -p "$out"
cd "$out"
began=$SECONDS

# Each stage gets what is left: one that hangs must not take the machine with it.
stage() {
  local name=$1 left=$((limit - (SECONDS - began))) from=$SECONDS status=0
  shift
  if [ "$left" -lt 10 ]; then
    echo "accelerator: no time left for $name (limit $limit s)" >&2
    exit 124
  fi
  timeout --signal=INT --kill-after=20 "$left" "$python" -m headway "$@" 2>"$name.err" | tee "$name.txt" || status=$?
  echo "$name $((SECONDS - from))" >>times.txt
  if [ "$status" -gt 1 ]; then
    echo "accelerator: $name ended with $status: $(tail -n 1 "$name.err")" >&2
    exit "$status"
  fi
}

: >times.txt
"$python" -c 'import jax; d = jax.devices()[0]; print(d.device_kind, d.platform, "jax", jax.__version__)' | tee device.txt
stage record record --engine kernels --preset "$preset" --steps "$steps" --out trace.parquet
stage fit fit trace.parquet --out plant.json
# Load and promise follow the plant, so that the same script asks the same of any device.
"$python" - >load.txt <<'END'
import json
import numpy as np
from pathlib import Path
from headway.loads import read_plant
from headway.models.plant import Batch

found = read_plant(Path("plant.json"))
hull, limits = found.hull, found.limits
step = lambda n, kv, p, pairs, r: float(np.asarray(found.plant.step_time_s(Batch(*(np.array([float(x)]) for x in (n, kv, p, pairs, r)))))[0])
seqs, prompt, output = limits.max_seqs // 2, max(limits.max_len // 32, 32), max(limits.max_len // 64, 16)
decode = step(seqs, min(seqs * prompt * 1.2, hull.decode_kv_tokens), 0, 0, 0)
prefill = (step(seqs, seqs * prompt * 1.2, 512, 512 * prompt / 2, 512 / prompt) - decode) / 512
itl_s = 3 * decode
# a request takes its share of decode steps and its prompt; the load is what half the sequences would carry, and a tenth more
rate = 1.1 / (output * decode / seqs + prompt * prefill)
lengths = f"prompt=lognormal(median={prompt},sigma=0.8,min=16,max={limits.max_len // 4}),output=lognormal(median={output},sigma=0.5,min=4,max={limits.max_len // 8})"
print(f"gamma:rate={rate:.4g}/s,cv=2,{lengths}")
print(f"ttft={40 * itl_s * 1e3:.4g}ms,itl={itl_s * 1e3:.4g}ms")
END
workload=$(sed -n 1p load.txt) target=$(sed -n 2p load.txt)
echo "load       $workload"
echo "target     $target"
stage tune tune plant.json --workload "$workload" --target "$target" --requests 400 --out controller.json
stage validate validate controller.json --engine kernels --preset "$preset" --length "$length" --runs "$runs" --out validation.json

"$python" - "$preset" "$((SECONDS - began))" <<'END' | tee table.md
import json
import sys
from pathlib import Path

read = lambda name: json.loads(Path(name).read_text())
plant, found = read("plant.json"), read("validation.json")
times = ", ".join(f"{n} {s} s" for n, s in (line.split() for line in Path("times.txt").read_text().splitlines()))
share = lambda x: "-" if x is None else f"{100 * x:.1f} %"
c, s, p = found["controller"], found["best_static"], found["predicted"]["controller"]
gain, ends = found["gain"], found["gain_ci95"]
print(f"Live kernels, {sys.argv[1]}, on {Path('device.txt').read_text().strip()}: {sys.argv[2]} s in all ({times})\n")
print("| what | measured |\n|---|---|")
rows = [
    ("plant, held-out error", f"mean {share(plant['heldout']['mape'])}, median {share(plant['heldout']['median_ape'])} of {plant['heldout']['steps']:,} steps"),
    ("tokens on time: controller, predicted, best static", f"{share(c['attainment'])}, {share(p['attainment'])}, {share(s['attainment'])}"),
    ("clean requests: controller, best static", f"{share(c['request_attainment'])}, {share(s['request_attainment'])}"),
    ("gain over the best static setting", f"{share(gain)}" + ("" if ends[0] is None else f" [{share(ends[0])}, {share(ends[1])}]")),
    ("goodput: controller, predicted", f"{c['goodput_tps']:.0f}, {p['goodput_tps']:.0f} tokens/s"),
    ("verdict", found["outcome"]),
]
rows += [(f"{'valid' if k < len(found['gates']) else 'asked'}: {x['name']}", "yes" if x["ok"] else "NO") for k, x in enumerate([*found["gates"], *found["checks"]])]
for what, value in rows:
    print(f"| {what} | {value} |")
END
