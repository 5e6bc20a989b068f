"""Items on a Ray cluster: the one of this machine, or one that is named."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from typing import Any

import jax

from headway.experiments.workers import Lost

AHEAD = 2
"""Items given out for each core: a worker that ends one has the next, and a cluster that can grow sees that it should."""

PATIENCE_S = 5.0
"""Time that a cluster has to take a call [s]."""

CORES_EVERY = 64
"""Items after which the cluster is asked again how many cores it has: nodes come and go."""


class Cluster:
    """Where items run as Ray tasks of one core each. It never starts a dashboard and sends nothing anywhere.

    A lost task is given out again by us and not by Ray, so that it is counted and said.

    Args:
        function: sent to the cluster once.
        address: of a running cluster, "auto" for the one of this machine; None starts one here, unless one is joined already.

    Raises:
        ValueError: no cluster answers there.
    """

    def __init__(self, function: Callable[[Any], Any], address: str | None) -> None:
        """Join the cluster, or start one."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self.ray = ray
        self.own = not ray.is_initialized()
        if self.own:
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            _answers(address)  # Ray itself would go on trying for minutes
            try:
                if address is None:
                    ray.init(address="local", include_dashboard=False, **quiet)
                else:
                    ray.init(address=address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise _nobody(address, reason) from None
        x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
        self.settings = {"threads": 1, "x64": x64}
        self.task = ray.remote(num_cpus=1, max_retries=0)(_run)
        self.function = ray.put(function)
        self.flying: dict[Any, int] = {}
        self.asked, self.cores = 0, 1

    def room(self) -> int:  # noqa: D102
        if self.asked % CORES_EVERY == 0:
            self.cores = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.asked += 1
        return AHEAD * self.cores

    def give(self, place: int, item: Any) -> None:  # noqa: D102
        self.flying[self.task.remote(self.function, item, self.settings)] = place

    def take(self) -> list[tuple[int, Any]]:  # noqa: D102
        ended, _ = self.ray.wait(list(self.flying), num_returns=1)
        return [(self.flying.pop(task), self._answer(task)) for task in ended]

    def _answer(self, task: Any) -> Any:
        import ray.exceptions as gone

        try:
            return self.ray.get(task)
        except (gone.WorkerCrashedError, gone.NodeDiedError, gone.ObjectLostError, gone.OutOfMemoryError) as error:
            return Lost(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")
        except gone.RayError as error:
            said = str(error).strip().splitlines()[-1]
            raise RuntimeError(f"a Ray worker could not run this: {said}; is the same headway installed on every node?") from None

    def close(self, *, at_once: bool) -> None:  # noqa: D102
        if at_once:
            for task in self.flying:
                self.ray.cancel(task, force=True)
        self.flying = {}
        if self.own:
            self.ray.shutdown()


def _answers(address: str | None) -> None:
    """Refuse an address of a host and a port where nobody listens."""
    found = re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address or "")
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise _nobody(address, str(error)) from None


def _nobody(address: str | None, reason: str) -> ValueError:
    return ValueError(f"no Ray cluster at {address or 'this machine'}: {reason}; start one with `ray start --head`")


def _run(function: Callable[[Any], Any], item: Any, settings: dict[str, Any]) -> Any:
    """One item, in a worker of the cluster."""
    from headway.experiments.scaleout import answered, settled

    settled(settings)
    return answered(function, item)
