"""A controller as a plugin of SGLang: a package that pip installs, with its gains inside."""

from __future__ import annotations

import json
from typing import Any

import headway
from headway.controllers.record import ControllerRecord
from headway.engines.bundle import PARTS, joined_source
from headway.engines.certified import said

PYPROJECT = """[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "headway-sglang"
version = "0.0.0+{content}"
description = "A Headway controller inside SGLang's scheduler"
requires-python = ">=3.10"

[project.entry-points."sglang.srt.plugins"]
headway = "headway_sglang:register"

[tool.setuptools]
py-modules = ["headway_sglang"]
"""

README = """# A Headway controller for SGLang: {law} law, content {content}

Written by headway {written}. Certificate: {certificate}.

> **Warning:** no SGLang ran with this here: it was written from the source of 0.5.12 to 0.5.23 and tried on a stand-in with their
> attributes. Try it where nobody depends on it first. Any fault of it is logged once, and SGLang schedules alone from then on.

```sh
pip install ./{folder}
python -m sglang.launch_server --model-path MODEL --enable-mixed-chunk --chunked-prefill-size {tokens} --max-running-requests {running}
```

- SGLang finds it by its entry point (`sglang.srt.plugins`, since 0.5.11); `SGLANG_PLUGINS` names the plugins that are loaded, if set.
- It sets the token budget of each step below --chunked-prefill-size, and the order of the queue ("{order}"). A request's class is its
  sampling parameter `custom_params`: `{{"headway_class": "{name}"}}`.
- It does not act, and says so in the log: without --enable-mixed-chunk, with speculative decoding, and with more than one rank
  (tensor, pipeline or data parallel): every rank composes the same step by itself, and would measure another time for it.
- It has no say in the running limit at run time, and turns nobody away: triage "{triage}" is not carried out. `--max-queued-requests` is
  what SGLang has.
- `HEADWAY_GAINS` names another gains.json than the one inside.
"""


def sglang_files(record: ControllerRecord, version: str | None, certificate: dict[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Content of the folder that `headway export --engine sglang` writes.

    Args:
        record: the controller.
        version: not used: one file serves every version that has the plug.
        certificate: as from `certified.granted`.

    Returns:
        (text by file name, what there is to say).

    Raises:
        ValueError: the law, or a part of the policy, has no runtime.
    """
    from headway.engines.export import canonical, gains_json

    del version
    gains = gains_json(record, certificate)
    (law, policy, _), content = record.candidate, str(gains["content_sha256"])
    source = joined_source(
        (*(part for part in PARTS if part != "runtime_replay"), "sglang_hook"),
        f"for the controller with content {content}",
        "A tuned controller inside SGLang's scheduler, as a plugin: standard library and SGLang only.\n",
    )
    inside = f"SGLANG_GAINS = {json.dumps(json.dumps(gains, sort_keys=True, allow_nan=False))}  # noqa: E501"
    text = README.format(
        law=law.law,
        content=content[:12],
        written=headway.__version__,
        certificate=said(certificate),
        folder="DIR",
        tokens=record.limits.max_tokens,
        running=min(int(policy.running_limit), record.limits.max_seqs),
        order=policy.order,
        triage=policy.triage,
        name=record.targets[0].name,
    )
    files = {
        "headway_sglang.py": source.replace('SGLANG_GAINS = ""', inside, 1),
        "pyproject.toml": PYPROJECT.format(content=content[:12]),
        "gains.json": canonical(gains),
        "README.md": text,
    }
    return files, ("no SGLang ran with this plugin here: written from its source, tried on a stand-in; it acts with one rank only",)
