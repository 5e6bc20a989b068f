"""What a request asks for by its vllm_xargs: a class, and targets of its own. Whatever cannot be read gets the controller's, and is counted."""

from __future__ import annotations

import math
from typing import Any

from headway.engines.runtime import log
from headway.engines.vllm.clocks import Clocks
from headway.engines.vllm.gains_file import LoadedGains
from headway.engines.vllm.prompt_queue import Waiter

XARGS = ("headway_class", "headway_ttft_ms", "headway_itl_ms")
"""Names in a request's vllm_xargs: name or number of its class, and its own targets [ms]."""
DEFAULT_CLASS = "default"


class Promises:
    """Requests as the queue knows them, each made once and kept as long as vLLM has it.

    Args:
        gains: classes and targets.
        clocks: of arrivals.
    """

    def __init__(self, gains: LoadedGains, clocks: Clocks) -> None:
        """Nobody is known yet."""
        self._clocks = clocks
        self._known: dict[str, Waiter] = {}
        self.counts = {"unknown_class": 0, "wrong_target": 0, "tighter_itl": 0}
        self._told: set[str] = set()
        self.use(gains)

    def use(self, gains: LoadedGains) -> None:
        """Go over to other gains: who is known is put into the class of the same name, else into the default.

        Args:
            gains: classes and targets.
        """
        self._gains = gains
        self._numbers = {name: k for k, name in enumerate(gains.classes)}
        self._default = self._numbers.get(DEFAULT_CLASS, 0)
        for waiter in self._known.values():
            self._read(waiter)

    def waiter(self, request: Any) -> Waiter:
        """A request as the queue knows it.

        Args:
            request: vLLM's.

        Returns:
            The same object for the same request.
        """
        waiter = self._known.get(request.request_id)
        if waiter is None:
            waiter = self._known[request.request_id] = Waiter(request, self._clocks.arrival_s(request.arrival_time), self._default, 0.0)
            self._read(waiter)
        return waiter

    def name(self, waiter: Waiter) -> str:
        """Name of a request's class.

        Args:
            waiter: the request.

        Returns:
            The name.
        """
        return self._gains.classes[waiter.class_id]

    def forget(self, request_ids: Any) -> None:
        """Drop requests that vLLM has finished.

        Args:
            request_ids: their names.
        """
        for name in request_ids:
            self._known.pop(name, None)

    def _read(self, waiter: Waiter) -> None:
        given = getattr(getattr(waiter.request, "sampling_params", None), "extra_args", None)
        waiter.class_id, waiter.shift_s = self._default, 0.0
        if not isinstance(given, dict):
            return
        wanted = given.get("headway_class")
        if wanted is not None:
            waiter.class_id = self._class(wanted)
        ttft_s = self._target(given, "headway_ttft_ms")
        if ttft_s is not None:
            # its own promise takes the place of its class's; what transport takes of it is the same
            waiter.shift_s = ttft_s - self._gains.transport_s[waiter.class_id] - self._gains.law.first_token_s[waiter.class_id]
        itl_s = self._target(given, "headway_itl_ms")
        if itl_s is not None and itl_s < min(self._gains.itl_s):
            self._count("tighter_itl", f"an ITL target of {1e3 * itl_s:g} ms is below the controller's tightest: it is not held")

    def _class(self, wanted: Any) -> int:
        number = self._numbers.get(str(wanted))
        if number is not None:
            return number
        try:
            index = float(wanted)
        except (TypeError, ValueError):
            index = math.nan
        if 0 <= index < len(self._gains.classes) and index == int(index):
            return int(index)
        default = self._gains.classes[self._default]
        self._count("unknown_class", f"class {str(wanted)[:40]!r} has no targets in these gains: its requests get those of {default!r}")
        return self._default

    def _target(self, given: dict[str, Any], name: str) -> float | None:
        value = given.get(name)
        if value is None:
            return None
        try:
            seconds = float(value) / 1e3
        except (TypeError, ValueError):
            seconds = math.nan
        if 0.0 < seconds < math.inf:
            return seconds
        self._count("wrong_target", f"{name} must be a positive number of milliseconds, got {str(value)[:40]!r}: the class's own counts")
        return None

    def _count(self, what: str, says: str) -> None:
        self.counts[what] += 1
        if says not in self._told and len(self._told) < 20:
            self._told.add(says)
            log.warning("%s", says)
