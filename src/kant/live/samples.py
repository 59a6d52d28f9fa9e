"""The recorder of a run that has no end: exact integrals, and samples that are thinned as they accumulate."""

from __future__ import annotations

from typing import Any

import numpy as np

from kant.cluster.columns import Table, longer
from kant.cluster.state import ClusterState
from kant.metrics.recorder import S_TIME, SAMPLE_WIDTH, Recorder, sample
from kant.model.units import SECOND

SAMPLES = 20_000
"""Maximum number of samples. Beyond it every second sample (but not the last) is dropped, and `gap` doubles."""


class LiveRecorder(Recorder):
    """Keeps the first sample, and for each span of `gap` microseconds at most one more: the last change in the span.

    So the samples may lag by up to `gap`; `present` never does. A sample equal to the sample before is not kept.
    `thinned` counts how often the samples were thinned.
    """

    def __init__(self, state: ClusterState, most: int = SAMPLES, gap: int = SECOND) -> None:
        super().__init__(state)
        self.most = most
        self.gap = gap
        self.thinned = 0
        self._last: Table = np.zeros((2, SAMPLE_WIDTH), dtype=np.int64)
        self._seen = 0
        self.present: list[int] = []  # the sample of the last change, kept or not

    def observe(self, now: int) -> None:
        """Record the state's totals, valid from `now` on; `now` must not decrease."""
        self.settle(now)
        state = self.state
        if len(self.held) < len(state.pools):
            self.meet_pools()
        used = sample(
            state.pools, self._last, self._seen, self.integrals, self.held,
            now, len(state.pending), state.waiting_milli,
        )  # fmt: skip
        if used == 2:
            self._last[0] = self._last[1]
        self._seen = 1
        row = self._last[0].tolist()
        if row[1:] != self.present[1:]:
            self.present = row
        if self.used == 0:
            self.samples[0] = row
            self.used = 1

    def settle(self, now: int) -> None:
        """Make the last change a permanent sample, unless its span still lasts at `now`."""
        if not self.present or self.present[S_TIME] // self.gap == now // self.gap:
            return
        if self.used and self.samples[self.used - 1, 1:].tolist() == self.present[1:]:
            return
        self._room(1)
        self.samples[self.used] = self.present
        self.used += 1
        if self.used > self.most:
            self._thin()

    def _thin(self) -> None:
        kept = self.samples[[*range(0, self.used - 1, 2), self.used - 1]]
        self.samples[: len(kept)] = kept
        self.used = len(kept)
        self.gap *= 2
        self.thinned += 1

    def _room(self, rows: int) -> None:
        if self.used + rows > len(self.samples):
            self.samples = longer(self.samples)

    def so_far(self, now: int) -> dict[str, Any]:
        """Return the metrics of everything up to `now`, as in `kant simulate --json` (docs/metrics.md)."""
        from kant.metrics.summary import job_table, summarise

        self.observe(now)
        self._room(2)
        used = self.used
        self.samples[used] = self.present
        self.samples[used + 1] = self._last[0]
        try:
            self.used = used + 2
            return summarise(self.state, self, job_table(self.state, now), now, "linear")
        finally:
            self.used = used
