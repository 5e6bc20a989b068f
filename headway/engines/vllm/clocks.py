"""The two clocks of the adapter: everything is timed on the monotonic one; vLLM stamps arrivals on the wall's, which may be stepped."""

from __future__ import annotations

import time

from headway.engines.runtime import log

LONGEST_AGE_S = 60.0
"""Longest time between a request's stamp in vLLM's front end and the scheduler that is believed [s]."""
CLOCK_STEP_S = 0.5
"""Difference of the two clocks that is a step of the wall clock, and no slewing between two looks [s]."""

monotonic_s = time.monotonic
wall_s = time.time


class Clocks:
    """Tells how long ago a stamp was, whatever somebody does to the wall clock meanwhile."""

    def __init__(self) -> None:
        """Note how the two stand to each other."""
        self._apart = self._apart_before = wall_s() - monotonic_s()
        self.stepped = self.implausible = 0

    def look(self) -> None:
        """Compare the two: a step is logged, and stamps from before it are still understood."""
        apart = wall_s() - monotonic_s()
        if abs(apart - self._apart) > CLOCK_STEP_S:
            self.stepped += 1
            log.warning("the wall clock was set by %+.3f s; waiting times go on by the monotonic clock", apart - self._apart)
            self._apart_before = self._apart
        self._apart = apart

    def arrival_s(self, stamp_s: float) -> float:
        """When a request arrived, on the monotonic clock.

        Args:
            stamp_s: of vLLM's front end, on the wall clock [s].

        Returns:
            Time [s]; now, for a stamp that no clock of ours explains.
        """
        now = monotonic_s()
        for apart in (wall_s() - now, self._apart, self._apart_before):
            age = now - (stamp_s - apart)
            if -0.01 <= age <= LONGEST_AGE_S:
                return now - max(age, 0.0)
        self.implausible += 1
        return now
