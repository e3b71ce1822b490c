# SPDX-License-Identifier: Apache-2.0
"""The ticks of a control loop."""

from __future__ import annotations

import time
from collections import deque

_KEPT = 65536  # ticks that figures are kept of


class Pace:
    """Ticks of a fixed rate, the first when it is first waited for.

    A loop that is late goes on at the next tick that is not over, and the ones between are missed.
    """

    def __init__(self, rate_hz: float) -> None:
        if not 0 < rate_hz < float("inf"):
            raise ValueError(f"rate_hz: expected a positive number, got {rate_hz}")
        self.rate_hz = rate_hz
        self.latencies: deque[float] = deque(maxlen=_KEPT)  # seconds of an action, the latest last
        self.lateness: deque[float] = deque(maxlen=_KEPT)  # seconds that a tick was late
        self.missed = 0  # ticks that passed while an action was computed
        self._start: float | None = None
        self._tick = 0

    def reset(self) -> None:
        """The next wait begins a new sequence of ticks; figures stay."""
        self._start = None

    def wait(self) -> float:
        """Sleeps until the next tick; the time by time.perf_counter()."""
        now = time.perf_counter()
        if self._start is None:
            self._start, self._tick = now, 0
        else:
            next_tick = self._tick + 1
            # A tick that is less than its period over is late, not missed.
            latest = int((now - self._start) * self.rate_hz)
            self._tick = max(next_tick, latest)
            self.missed += self._tick - next_tick
            due = self._start + self._tick / self.rate_hz
            if due > now:
                time.sleep(due - now)
            now = time.perf_counter()
            self.lateness.append(max(0.0, now - due))
        return now

    def done(self, started: float) -> None:
        """An action that began at `started` is there."""
        self.latencies.append(time.perf_counter() - started)

    def __repr__(self) -> str:
        if not self.latencies:
            return f"<Pace of {self.rate_hz:g} Hz>"
        ordered = sorted(self.latencies)
        median, high = (ordered[int(q * (len(ordered) - 1))] for q in (0.5, 0.99))
        return (
            f"<Pace of {self.rate_hz:g} Hz: {len(ordered)} actions, p50 {1e3 * median:.3f} ms, "
            f"p99 {1e3 * high:.3f} ms, {self.missed} ticks missed>"
        )
