"""Fair sharing: each tenant has a token counter, by which waiting tenants take turns.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024: the least served
tenant goes next, and a tenant that returns starts no lower than the waiting tenants, so that nobody can save up credit.
As in the paper, an output token counts as two prompt tokens. Outputs count as predicted when a request is sent, and are
corrected when it ends (section 4.4).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

OUTPUT = 2.0
"""The weight of an output token, relative to a prompt token."""

SLACK = 64
"""How many stale entries a heap may always keep, even if it is small."""

MOST = 1 << 16
"""The maximum number of tenants remembered. Beyond it, tenants without waiting requests are forgotten."""


@dataclass(slots=True)
class Shares:
    """Each tenant's counter, and its number of waiting requests."""

    had: dict[str, float] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    _order: list[tuple[float, str]] = field(default_factory=list)
    """A heap of waiting tenants; stale entries are corrected when they reach the top."""

    latest: str = ""
    """The tenant whose last waiting request left most recently."""

    def came(self, tenant: str) -> None:
        """Count a waiting request of a tenant."""
        if tenant not in self.waits:
            self.had[tenant] = self.begins(tenant)
            self._push(tenant)
        self.waits[tenant] = self.waits.get(tenant, 0) + 1

    def begins(self, tenant: str) -> float:
        """Return a tenant's usage, or its initial usage if it starts to wait now."""
        if tenant in self.waits:
            return self.had[tenant]
        return max(self.of(tenant), self._least())

    def _least(self) -> float:
        """Return the least usage of all waiting tenants."""
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
        """Remove a waiting request of a tenant."""
        self.waits[tenant] -= 1
        if not self.waits[tenant]:
            del self.waits[tenant]
            self.latest = tenant

    def charge(self, tenant: str, prompt: float, output: float) -> None:
        """Charge a tenant for tokens; negative numbers are refunds."""
        if len(self.had) > MOST:  # clients choose the names
            self.had = {name: had for name, had in self.had.items() if name in self.waits or name == self.latest}
        before = self.had.get(tenant, 0.0)
        self.had[tenant] = before + prompt + OUTPUT * output
        if self.had[tenant] < before and tenant in self.waits:
            self._push(tenant)

    def of(self, tenant: str) -> float:
        """Return a tenant's usage: its prompt tokens, plus OUTPUT times its output tokens."""
        return self.had.get(tenant, 0.0)
