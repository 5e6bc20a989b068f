"""Two exports of the adapter, for `scripts/vllm-versions`: `python -m tests.vllm_export FOLDER OTHER`."""

from __future__ import annotations

import sys

from headway.controllers.policy import Policy
from headway.engines.vllm.adapter import write_adapter
from tests.test_export import LAWS, record

if __name__ == "__main__":
    for folder, aging_rate in zip(sys.argv[1:], (0.5, 0.2), strict=True):
        write_adapter(folder, record(LAWS[5], Policy(order="slack", triage="reject", aging_rate=aging_rate)))
