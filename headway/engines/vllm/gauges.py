"""What the adapter shows to Prometheus, through the prometheus_client that vLLM itself imports."""

from __future__ import annotations

import importlib
from typing import Any

from headway.engines.runtime import log

GAUGES = {
    "setpoint_seconds": "step duration that the law aims at",
    "step_time_seconds": "duration of the last step",
    "token_budget": "tokens that the last step might carry",
    "running_limit": "requests that may run at once",
    "margin": "share of the budget that the last step left",
    "late_rate": "share of steps with decodes over the budget, over about 500 of them",
    "fallback": "1 if the adapter gave up and vLLM schedules alone",
    "reverted": "1 while the watchdog holds the static budget",
    "drift": "1 if steps are slower than the plant says, -1 if faster",
    "faults": "readings that could not be true",
    "reloads": "gains taken over since the start",
    "refused_gains": "gains files that could not be used",
}
"""Gauges by name: what each is."""


class Gauges:
    """The gauges of one engine; every one of them stays at zero where prometheus_client is not there.

    Args:
        port: of an HTTP server on 127.0.0.1 for them; 0 for none: with PROMETHEUS_MULTIPROC_DIR set before vLLM starts,
            its own /metrics has them.
    """

    def __init__(self, port: int = 0) -> None:
        """Register them, once a process."""
        self._gauges: dict[str, Any] = {}
        try:
            library = importlib.import_module("prometheus_client")
            self._gauges = {name: _gauge(library, name, says, ()) for name, says in GAUGES.items()}
            self._gauges["mode"] = _gauge(library, "mode", "1 for the mode that is in force", ("mode",))
            self._gauges["shed"] = _gauge(library, "shed", "requests that triage refused", ("request_class",))
            if port:
                library.start_http_server(port, addr="127.0.0.1")
        except Exception as error:  # noqa: BLE001  # whatever a metrics library does, serving goes on
            log.warning("no metrics of the adapter: %s: %s", type(error).__name__, error)

    def show(self, values: dict[str, float], mode: str, shed: dict[str, int]) -> None:
        """Set what is known.

        Args:
            values: by names of GAUGES.
            mode: in force.
            shed: requests refused by class.
        """
        if not self._gauges:
            return
        try:
            for name, value in values.items():
                self._gauges[name].set(value)
            for name in ("observe", "excite", "shadow", "control", "stock"):
                self._gauges["mode"].labels(name).set(float(name == mode))
            for name, count in shed.items():
                self._gauges["shed"].labels(name).set(float(count))
        except Exception as error:  # noqa: BLE001
            self._gauges = {}
            log.warning("no more metrics of the adapter: %s: %s", type(error).__name__, error)


def _gauge(library: Any, name: str, says: str, labels: tuple[str, ...]) -> Any:
    """A gauge, or the one of this name that the process has already: a second engine in it shares them."""
    full = f"headway_{name}"
    known = getattr(library.REGISTRY, "_names_to_collectors", {}).get(full)
    if known is not None:
        return known
    try:
        return library.Gauge(full, says, labels, multiprocess_mode="mostrecent")
    except ValueError:
        return library.Gauge(full, says, labels)
