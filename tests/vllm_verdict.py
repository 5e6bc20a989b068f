"""One line on the drills in one version of vLLM, for `scripts/vllm-versions`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    version, file = sys.argv[1:]
    found = json.loads(Path(file).read_text(encoding="utf-8"))
    wrong = []
    for name, row in found.items():
        broken = name.split("/")[0] in ("law", "key", "meter")
        if not row["ended"] == row["distinct"] == row["requests"] or row["over"] or row["left"] or bool(row["failed"]) != broken:
            wrong.append(f"{name}: {row['ended']} of {row['requests']} ended, {row['over']} over limits, gave up: {row['failed'] or 'no'}")
    refused = sum(sum(row["shed"].values()) for row in found.values())
    about = f"{len(found)} drills, {sum(row['steps'] for row in found.values()):,} steps, {refused:,} requests refused"
    print(f"{version:10} {'FAILS' if wrong else 'passes':9} {'; '.join(wrong) or about}")
    sys.exit(bool(wrong))
