"""Who has had how much: a counter of tokens for each tenant, so that those who wait take turns fairly.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024: whoever has had the
least goes next, and a tenant that comes back begins no lower than those who wait, so that nobody saves up. A token of
an output counts twice one of a prompt, as there; outputs are counted as predicted when a request is sent, and corrected
when it ends (their section 4.4).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

OUTPUT = 2.0
"""What a token of an output counts, beside one of a prompt."""

SLACK = 64
"""Stale entries that a heap may have whatever its size."""

MOST = 1 << 16
"""Tenants that are remembered; beyond that those of whom nobody waits are forgotten."""


@dataclass(slots=True)
class Shares:
    """Each tenant's counter, and how many requests of it wait."""

    had: dict[str, float] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    _order: list[tuple[float, str]] = field(default_factory=list)
    """A heap of those who wait; what is stale is put right when the heap comes to it."""

    latest: str = ""
    """Who was the last to have nobody waiting."""

    def came(self, tenant: str) -> None:
        """A request of a tenant waits."""
        if tenant not in self.waits:
            self.had[tenant] = self.begins(tenant)
            self._push(tenant)
        self.waits[tenant] = self.waits.get(tenant, 0) + 1

    def begins(self, tenant: str) -> float:
        """What a tenant has had, or counts as having had when it comes to wait."""
        if tenant in self.waits:
            return self.had[tenant]
        return max(self.of(tenant), self._least())

    def _least(self) -> float:
        """The least that anybody has had who waits."""
        order = self._order
        while order:
            had, tenant = order[0]
            if tenant not in self.waits:
                heapq.heappop(order)
            elif had != self.had[tenant]:
                heapq.heapreplace(order, (self.had[tenant], tenant))
            else:
                return had
        return self.of(self.latest)

    def _push(self, tenant: str) -> None:
        if len(self._order) > 2 * len(self.waits) + SLACK:
            self._order = [(self.had[other], other) for other in self.waits]
            heapq.heapify(self._order)
        heapq.heappush(self._order, (self.had[tenant], tenant))

    def left(self, tenant: str) -> None:
        """A request of a tenant waits no more."""
        self.waits[tenant] -= 1
        if not self.waits[tenant]:
            del self.waits[tenant]
            self.latest = tenant

    def charge(self, tenant: str, prompt: float, output: float) -> None:
        """A tenant has had so many tokens, or is given some back."""
        if len(self.had) > MOST:  # names come from outside
            self.had = {name: had for name, had in self.had.items() if name in self.waits or name == self.latest}
        before = self.had.get(tenant, 0.0)
        self.had[tenant] = before + prompt + OUTPUT * output
        if self.had[tenant] < before and tenant in self.waits:
            self._push(tenant)

    def of(self, tenant: str) -> float:
        """What a tenant has had."""
        return self.had.get(tenant, 0.0)
