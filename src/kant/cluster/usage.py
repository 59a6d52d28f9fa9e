"""GPU time that each queue has used, by hour, for shares with a half life.

A queue that has used much recently ranks behind a queue that has used little. Past use counts half after each half life
(Kay and Lauder, A fair share scheduler, CACM 31(1), 1988; Slurm's multifactor plugin, `PriorityDecayHalfLife`).

A ring keeps the milli-GPU-seconds of each of the last HOURS clock hours. Within the present hour the sum is exact to
the milli-GPU-microsecond; at its end the remaining fraction of a second goes into the next hour, so nothing is lost to
rounding. A weighted hour must fit 63 bits: a queue may hold up to 2.4 x 10^9 milli-GPUs (2^43 milli-GPU-seconds an
hour, and 20 bits of weight). All arithmetic is on integers, so the shares are the same on every machine.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from kant.cluster.columns import Table
from kant.model.errors import StateError
from kant.model.event import QueueUse
from kant.model.units import HOUR, SECOND

HOURS = 28 * 24
"""The hours that are kept, including the present one. Older use is dropped, even if a long half life would count it."""

_BITS = 20  # bits of a weight's fraction: 1 << _BITS is a weight of one
_WIDE, _FINE = 60, 32  # bits of a factor's fraction, and of the fraction of a half life


def _factors() -> tuple[int, ...]:
    """Return 2^(-1/2), 2^(-1/4), 2^(-1/8), … in 60-bit fixed point, each the integer square root of the one before."""
    roots = [isqrt(1 << (2 * _WIDE - 1))]
    while len(roots) < _FINE:
        roots.append(isqrt(roots[-1] << _WIDE))
    return tuple(roots)


_FACTORS = _factors()


def weights(half_life: int) -> Table:
    """Return the weight of an hour by its age in hours, 2^(-age / half life) in 20-bit fixed point (1 << 20 is one).

    The power is a product of roots of a half, one for each bit of the exponent's fraction: it halves exactly after
    a half life. Raises StateError unless `half_life` (microseconds) is positive.
    """
    if half_life <= 0:
        raise StateError(f"the half-life must be above 0 µs, not {half_life} µs")
    result = np.zeros(HOURS, dtype=np.int64)
    for age in range(HOURS):
        halvings, rest = divmod(age * HOUR, half_life)
        fraction = (rest << _FINE) // half_life
        weight = 1 << _WIDE
        for bit, factor in enumerate(_FACTORS, start=1):
            if (fraction >> (_FINE - bit)) & 1:
                weight = weight * factor >> _WIDE
        result[age] = weight >> min(halvings + _WIDE - _BITS, 2 * _WIDE)
    return result


class UsageHours:
    """GPU time by queue and hour. Calls of `changed` are in order of time; queries change no later result.

    `running[q]` is what queue q holds now, in milli-GPUs. The other lists are by queue too: `_used` is the use in the
    hour `_hour` up to the time `_since` (milli-GPU-microseconds). The ring has the hours before `_hour`.
    """

    def __init__(self) -> None:
        self.running: list[int] = []
        self._ahead = 0  # clock hours begin this many microseconds before multiples of HOUR
        self._since: list[int] = []
        self._hour: list[int] = []
        self._used: list[int] = []
        self._ring: Table = np.zeros((16, HOURS), dtype=np.int64)  # milli-GPU-seconds; hour h is in column h % HOURS
        self._weights: dict[int, Table] = {}

    def changed(self, queue: int, milli_delta: int, now: int) -> None:
        """Record that jobs of `queue` (a code from 0 on) hold `milli_delta` more milli-GPUs from `now` (µs) on.

        Raises StateError, and changes nothing, if the queue would then hold less than nothing.
        """
        if queue >= len(self.running):
            self._admit(queue)
        now += self._ahead
        running = self.running[queue]
        if running + milli_delta < 0:
            raise StateError(f"queue {queue} holds {running} milli-GPUs and cannot return {-milli_delta}")
        if now >= (self._hour[queue] + 1) * HOUR:
            self._turn(queue, now // HOUR)
        self._used[queue] += running * (now - self._since[queue])
        self._since[queue] = now
        self.running[queue] = running + milli_delta

    def decayed(self, now: int, half_life: int) -> Table:
        """Return the milli-GPU-seconds of each queue up to `now`, by code; an hour of age a weighs 2^(-a / half_life).

        The present hour has age 0 and counts up to `now`; weights change at full clock hours. Rounded down, by less
        than a milli-GPU-second an hour. Raises StateError unless `half_life` is positive.
        """
        if half_life not in self._weights:
            self._weights[half_life] = weights(half_life)
        now += self._ahead
        hour, queues = now // HOUR, len(self.running)
        present = np.zeros(queues, dtype=np.int64)
        for queue in range(queues):
            if hour > self._hour[queue]:
                self._turn(queue, hour)
            used = self._used[queue] + self.running[queue] * (now - self._since[queue])
            present[queue] = used // SECOND
        by_column = self._weights[half_life][(hour - np.arange(HOURS)) % HOURS]
        past: Table = (self._ring[:queues] * by_column >> _BITS).sum(axis=1)
        return past + present

    def used(self, now: int) -> tuple[int, list[QueueUse]]:
        """Return the length of the present clock hour until `now`, µs, and the use of each queue, by code."""
        now += self._ahead
        hour, found = now // HOUR, list[QueueUse]()
        for queue in range(len(self.running)):
            if hour > self._hour[queue]:
                self._turn(queue, hour)
            present = self._used[queue] + self.running[queue] * (now - self._since[queue])
            past = self._ring[queue, (hour - np.arange(1, HOURS)) % HOURS].tolist()
            found.append(QueueUse(present, tuple((age, used) for age, used in enumerate(past, 1) if used)))
        return now % HOUR, found

    def restore(self, now: int, phase: int, used: dict[int, QueueUse]) -> None:
        """Continue at `now` with the use of each queue so far, by code; the present clock hour began `phase` µs ago.

        Raises StateError, and changes nothing, for values that `used` cannot return.
        """
        if not 0 <= phase < HOUR or any(
            queue < 0 or use.present < 0 or any(not 0 < age < HOURS or spent < 0 for age, spent in use.hours)
            for queue, use in used.items()
        ):
            raise StateError(f"expected the GPU use of known queues within the last {HOURS} hours")
        if (last := max(used, default=-1)) >= len(self.running):
            self._admit(last)
        self._ahead = (phase - now) % HOUR
        hour = (now + self._ahead) // HOUR
        for queue in range(len(self.running)):
            use = used.get(queue, QueueUse(0))
            self._ring[queue] = 0
            for age, spent in use.hours:
                self._ring[queue, (hour - age) % HOURS] = spent
            self._hour[queue], self._since[queue], self._used[queue] = hour, now + self._ahead, use.present

    def _admit(self, queue: int) -> None:
        new = queue + 1 - len(self.running)
        for column in (self.running, self._since, self._hour, self._used):
            column.extend([0] * new)
        while queue >= len(self._ring):
            self._ring = np.concatenate([self._ring, np.zeros_like(self._ring)])

    def _turn(self, queue: int, hour: int) -> None:
        """Store the use of the hours before `hour`, the present hour, in the ring."""
        last, running, ring = self._hour[queue], self.running[queue], self._ring[queue]
        used = self._used[queue] + running * ((last + 1) * HOUR - self._since[queue])
        ring[last % HOURS], rest = divmod(used, SECOND)
        if (between := hour - last - 1) >= HOURS:
            ring[:] = running * (HOUR // SECOND)
        elif between:
            ring[np.arange(last + 1, hour) % HOURS] = running * (HOUR // SECOND)
        ring[hour % HOURS] = 0
        self._hour[queue], self._since[queue], self._used[queue] = hour, hour * HOUR, rest
