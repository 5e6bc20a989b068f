"""How servers are started for a recording or a trial: flags from Headway's limits, the adapter beside them, a device that may be simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.controllers.record import ControllerRecord
from headway.engines.vllm.adapter import write_adapter
from headway.engines.vllm.environment import environment, version
from headway.engines.vllm.machine import Cores, divide
from headway.engines.vllm.server import Serving
from headway.engines.vllm.sim_device import ASYNC, CLASS
from headway.experiments.whole_files import read_json, write_json, write_whole
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits

FLAGS = {
    "max_seqs": "max_num_seqs",
    "max_tokens": "max_num_batched_tokens",
    "max_len": "max_model_len",
    "block_tokens": "block_size",
}
"""vLLM's flag for each of Headway's limits; the cache is given in blocks, see `Start.flags`."""
CPU_LIMITS = {"max_seqs": 64, "max_tokens": 2048, "max_len": 4096}
"""Limits on a CPU where none are given: what a small llm bears there [requests, tokens, tokens]."""
CPU_CACHE_BYTES = 2**30
"""Cache of a server on a CPU where none is given [bytes]."""
CPU_BLOCK, OTHER_BLOCK = 128, 16
"""Tokens in a cache block, where none are given: vLLM's own defaults on a CPU and elsewhere [tokens]."""
NOISE_FACTORS = 512
"""Noise factors that a simulated device draws from, per regime."""


@dataclasses.dataclass(frozen=True)
class Start:
    """What all servers of a recording or a trial have in common.

    Args:
        model: folder of the model.
        folder: scratch: adapters, logs, traces.
        place: environment of vLLM.
        limits: asked for, by field of `Limits` [tokens, requests]; what is left out is the server's own.
        extra: flags of `vllm serve` besides, by name.
        device: plant of a simulated device; None for the real one.
        scheduling: "async" or "sync", of a simulated device.
        cores: how they are divided.
    """

    model: Path
    folder: Path
    place: Path
    limits: Mapping[str, int]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    device: IdentifiedPlant | None = None
    scheduling: str = "sync"
    cores: Cores = dataclasses.field(default_factory=divide)

    @staticmethod
    def of(
        model: Path | None,
        folder: Path,
        *,
        place: Path | None = None,
        limits: Mapping[str, int] | None = None,
        extra: Mapping[str, Any] | None = None,
        device: IdentifiedPlant | None = None,
        scheduling: str | None = None,
    ) -> Start:
        """With everything that was left out filled in.

        Args:
            model: folder; None makes a small one with random weights.
            folder: scratch.
            place: environment of vLLM; None to look for it.
            limits: by field of `Limits` [tokens, requests].
            extra: flags of `vllm serve` besides.
            device: plant of a simulated device.
            scheduling: of it; None for what its plant was measured on.

        Returns:
            Start.

        Raises:
            ValueError: no vLLM, or no model in the folder.
        """
        place = environment(place)
        if model is None:
            from headway.engines.vllm.made_model import make_model

            model = folder / "model"
            make_model(model, MADE)
        if not (model / "config.json").exists():
            raise ValueError(f"--model {model} holds no config.json; name the folder of a model, or make one: headway make-model --out llm")
        known = dict(limits or {})
        if device is not None:
            known = {**{k: getattr(device.limits, k) for k in (*FLAGS, "kv_tokens")}, **known}
        elif on_cpu(place):
            known = {**CPU_LIMITS, **known}
        return Start(model, folder, place, known, dict(extra or {}), device, scheduling or "sync")

    def flags(self) -> dict[str, Any]:
        """Flags of `vllm serve`.

        Returns:
            By name.
        """
        found: dict[str, Any] = {FLAGS[k]: v for k, v in self.limits.items() if k in FLAGS}
        if not any(self.model.glob("*.safetensors")) and not any(self.model.glob("*.bin")):
            found["load_format"] = "dummy"
        if on_cpu(self.place) or self.device is not None:
            found |= {"dtype": "bfloat16", "enforce_eager": True}
        if "kv_tokens" in self.limits:
            block = self.limits.get("block_tokens") or (CPU_BLOCK if on_cpu(self.place) else OTHER_BLOCK)
            found["num_gpu_blocks_override"] = self.limits["kv_tokens"] // block + 1  # one is vLLM's own
        if self.device is not None:
            found["distributed_executor_backend"] = f"headway_device.{CLASS}"
        elif on_cpu(self.place):
            # without it vLLM claims nine tenths of the memory for its cache, and does not start where others use some
            needs = (self.limits.get("kv_tokens", 0) + 2 * CPU_BLOCK) * kv_token_bytes(self.model)
            found["kv_cache_memory_bytes"] = max(CPU_CACHE_BYTES, needs)
        return {**found, **self.extra}

    def serving(
        self, name: str, mode: str, record: ControllerRecord | None = None, *, uncertified: bool = False, **settings: Any
    ) -> Serving:
        """How one server is started.

        Args:
            name: of its files in the scratch folder.
            mode: of the adapter.
            record: its controller; None where the mode needs none.
            uncertified: write a law whose certificate is refused.
            **settings: of the adapter, besides.

        Returns:
            Serving; its trace is `trace_of(name)`.
        """
        home = self.folder / name
        write_adapter(home / "adapter", record, force=True, uncertified=uncertified)
        folders, variables = [home / "adapter"], {}
        additional: dict[str, Any] = {"headway": {"mode": mode, "trace": str(self.trace_of(name).resolve()), **settings}}
        if record is not None:
            additional["headway"]["gains"] = str((home / "adapter" / "controller.json").resolve())
        if self.device is not None:
            folders.append(write_device(home / "device", self.device))
            additional["headway_device"] = {"plant": str((home / "device" / "device.json").resolve())}
            variables[ASYNC] = "1" if self.scheduling == "async" else "0"
        self.trace_of(name).unlink(missing_ok=True)
        flags = {**self.flags(), "scheduler_cls": "headway_vllm.make_scheduler"}
        return Serving(self.model, home / "server.log", flags, tuple(folders), additional, variables, self.place, self.cores)

    def trace_of(self, name: str) -> Path:
        """Where a server's steps are written.

        Args:
            name: of its files.

        Returns:
            JSONL file.
        """
        return self.folder / name / "steps.jsonl"


MADE = "17M"
"""Size of the model that is made where none is given."""


def kv_token_bytes(model: Path) -> int:
    """What one token takes of the cache, in 16 bits.

    Args:
        model: folder of the model.

    Returns:
        [bytes]; 0 where its configuration does not say.
    """
    config = read_json(model / "config.json")
    config = config.get("text_config") or config
    try:
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        return int(2 * 2 * config["num_hidden_layers"] * heads * size)
    except (KeyError, TypeError, ZeroDivisionError):
        return 0


def on_cpu(place: Path) -> bool:
    """Whether an environment's vLLM is built for CPUs.

    Args:
        place: folder of the environment.

    Returns:
        True if so.
    """
    return "cpu" in version(place)


def write_device(folder: Path, identified: IdentifiedPlant, seed: int = 0) -> Path:
    """Write a simulated device: its program, the plants it knows, and its plant.

    Args:
        folder: to make.
        identified: the plant, with the residuals that its noise is drawn from.
        seed: of the noise.

    Returns:
        The folder.
    """
    import numpy as np

    here = Path(__file__).parent
    program = (here / "sim_device.py").read_text(encoding="utf-8")
    write_whole(folder / "headway_device.py", program.replace("from headway.engines.runtime_plants import", "from runtime_plants import"))
    write_whole(folder / "runtime_plants.py", (here.parent / "runtime_plants.py").read_text(encoding="utf-8"))
    noise = {}
    for name in ("decode", "mixed"):
        residual = np.sort(np.asarray(getattr(identified.noise, name), float))
        some = residual[np.linspace(0, len(residual) - 1, min(len(residual), NOISE_FACTORS)).astype(int)] if len(residual) else residual
        noise[name] = np.exp(some).tolist()
    coefficients = {n: float(c.value) for n, c in identified.plant.coefficients().items()}
    write_json(
        folder / "device.json", {"structure": identified.plant.structure, "coefficients": coefficients, "noise": noise, "seed": seed}
    )
    return folder


def limits_of(start: Start, found: Any) -> Limits:
    """The limits that a server runs with, as Headway's.

    Args:
        start: how it was started.
        found: what was read back, a `headway.engines.vllm.service.ReadBack`.

    Returns:
        Limits.
    """
    scheduling = found.scheduling or (start.scheduling if start.device is not None else "sync")
    return dataclasses.replace(found.as_limits(), scheduling=scheduling)
