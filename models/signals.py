"""The signals of the loop: what was promised, what is commanded, what is measured, what the engine can bear."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple


class Command(NamedTuple):
    """What a controller asks of the engine for one step.

    Args:
        token_budget: most tokens in the step, the decoding requests' own included [tokens].
        running_limit: most requests admitted at once [requests]. Lowering it drains, it never evicts.
        chunk_tokens: most prompt tokens of one request in the step [tokens]; 0 is no cap.
    """

    token_budget: float
    running_limit: float
    chunk_tokens: float


class Measurement(NamedTuple):
    """What is known of the step that ended last, and of the one to be composed now.

    Args:
        step_time_s: duration of the last step, start to start [s]; NaN before the first.
        prefill_tokens: prompt tokens it carried [tokens].
        decode_requests: requests that decoded in it [requests].
        binding: 1.0 if its token budget was used up while prompt work was waiting, else 0.0.
        ready_requests: requests that want to decode in the step composed now [requests].
        decode_kv_tokens: cache tokens that the last step's decodes read [tokens].
        prefill_pairs: attention work of its chunks [tokens^2].
        prefill_requests: requests with a chunk in it [requests].
        ready_kv_tokens: cache tokens that the requests that want to decode now would read [tokens].
        context_tokens: of the prompt that goes on first, computed already [tokens].
    """

    step_time_s: float
    prefill_tokens: float
    decode_requests: float
    binding: float
    ready_requests: float
    decode_kv_tokens: float = 0.0
    prefill_pairs: float = 0.0
    prefill_requests: float = 0.0
    ready_kv_tokens: float = 0.0
    context_tokens: float = 0.0


SIGNALS = len(Measurement._fields)
"""Length of a measurement as an array, in the order of its fields."""


LEVELS = ("token", "request", "p99_itl")
"""Levels that a promise can be made at: see `headway.models.levels`."""
SPAN_S = (1e-9, 1e10)
"""Times that a client can be promised, from a nanosecond to some hundred years [s]."""
MOST = 10**12
"""Largest limit of an engine: what sizes are read up to."""
P99_SHARE = 0.01
"""Share of gaps above their p99."""


@dataclasses.dataclass(frozen=True)
class Target:
    """What a client of one class was promised, on the client's own clock.

    Args:
        ttft_s: longest time from arrival to first token [s].
        itl_s: longest gap between consecutive tokens [s].
        transport_s: the part of both that the way to the client may take [s].
        epsilon: share that may be late at the level named, whatever made it late; in (0, 1). Of owed tokens at level "token".
        name: of the class.
        share: of the requests that belong to the class, where the workload does not say; in (0, 1].
        level: what epsilon is a share of: "token", owed tokens; "request", requests that are not clean; "p99_itl", gaps over
            itl_s, always 1 %. `headway.models.levels.token_epsilon` gives the share of tokens that follows.
    """

    ttft_s: float
    itl_s: float
    transport_s: float = 0.0
    epsilon: float = 0.01
    name: str = "default"
    share: float = 1.0
    level: str = "token"

    @property
    def budget_s(self) -> float:
        """Longest step that keeps the ITL promise [s]: `itl_s - transport_s`."""
        return self.itl_s - self.transport_s

    @property
    def first_token_s(self) -> float:
        """Longest time to first token at the engine [s]: `ttft_s - transport_s`."""
        return self.ttft_s - self.transport_s

    def check(self) -> None:
        """Refuse a target that no engine could be held to.

        Raises:
            ValueError: a time that is not positive and finite or outside SPAN_S, transport not below both, epsilon or share out of
                range, an unknown level, or another epsilon than 1 % at level p99_itl.
        """
        for name in ("ttft_s", "itl_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive time, got {value:g}; write for example itl=25ms")
            if not SPAN_S[0] <= value <= SPAN_S[1]:
                raise ValueError(f"{name} must be from 1 ns to {SPAN_S[1]:.0e} s, got {value:g} s; write for example itl=25ms")
        if not (0 <= self.transport_s < min(self.itl_s, self.ttft_s)):
            raise ValueError(
                f"transport must be in [0, itl), got {self.transport_s * 1e3:g} ms against itl {self.itl_s * 1e3:g} ms; nothing would be left for the step"
            )
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be in (0, 1), got {self.epsilon:g}; write 0.01 for 1 %")
        if not 0 < self.share <= 1:
            raise ValueError(f"share of class {self.name!r} must be in (0, 1], got {self.share:g}; write 0.2 for 20 %")
        if self.level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {self.level!r}")
        if self.level == "p99_itl" and abs(self.epsilon - P99_SHARE) > 1e-12:
            raise ValueError(
                f"level p99_itl lets 1 % of the gaps be late, got epsilon {self.epsilon:g}; leave epsilon out, or write level=token"
            )


HABITS = {
    "reservation": ("gate", "chunk", "full"),
    "first_token": ("last_chunk", "next_step"),
    "scheduling": ("sync", "async"),
    "prefix_cache": ("on", "off"),
}
"""Habits in which engines differ, and the forms they have."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the engine can bear, and the habits in which engines differ. The defaults are vLLM's habits.

    Args:
        kv_tokens: size of the KV cache [tokens].
        block_tokens: size of one cache block [tokens].
        max_seqs: start-up limit of requests running at once [requests].
        max_len: longest prompt and output together [tokens].
        max_tokens: start-up limit of tokens in one step [tokens].
        watermark: share of the cache kept free when a request is admitted while others run; in [0, 1).
        reservation: "chunk" takes cache blocks for a prompt as its chunks run, "full" all before the first; "gate" takes them as
            the chunks run, and lets a newcomer in only where all would be there (vLLM).
        first_token: "last_chunk" emits in the step of the last chunk (vLLM), "next_step" one decode step later.
        scheduling: "sync" composes a step when the last has ended; "async" while it runs, one step of dead time.
        prefix_cache: "on" keeps the blocks of prompts for others that begin alike, "off" does not.
        swap_block_s: to move one block out of the cache or back [s]; the default is 2 MB at 20 GB/s.
    """

    kv_tokens: int
    block_tokens: int = 16
    max_seqs: int = 256
    max_len: int = 131072
    max_tokens: int = 8192
    watermark: float = 0.0
    reservation: str = "gate"
    first_token: str = "last_chunk"
    scheduling: str = "sync"
    prefix_cache: str = "on"
    swap_block_s: float = 1e-4

    @property
    def blocks(self) -> int:
        """Cache blocks in the pool."""
        return self.kv_tokens // self.block_tokens

    def check(self) -> None:
        """Refuse limits under which no request could run.

        Raises:
            ValueError: a size below one, above MOST or not whole, a pool without a block, an unknown habit.
        """
        for name in ("kv_tokens", "block_tokens", "max_seqs", "max_len", "max_tokens"):
            value = getattr(self, name)
            if not abs(value) <= MOST or value != math.floor(value):  # in this order: neither NaN nor infinity has a floor
                raise ValueError(f"{name} must be a whole number of at most {MOST:.0e}, got {_short(value)}")
            if value < 1 and name != "kv_tokens":
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.blocks < 1:
            raise ValueError(f"kv_tokens must hold at least one block of {self.block_tokens} tokens, got {self.kv_tokens}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be in [0, 1), got {self.watermark:g}; write 0.01 for 1 %")
        if not 0 <= self.swap_block_s < 10:
            raise ValueError(f"swap_block_s must be in [0, 10) seconds, got {self.swap_block_s:g}; write 1e-4 for a tenth of a millisecond")
        for name, forms in HABITS.items():
            if getattr(self, name) not in forms:
                raise ValueError(f"{name} must be {' or '.join(map(repr, forms))}, got {getattr(self, name)!r}")


def _short(value: float) -> str:
    """A number as it was written; a long one by its size."""
    text = str(value)
    return text if len(text) <= 20 else f"a number of {len(text)} digits"
