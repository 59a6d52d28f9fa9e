"""Limits retries: per request, and as a share of all requests.

The budget is Envoy's ("Circuit breaking", retry budgets): retries in flight are at most a share of all requests of the
router, so that they cannot multiply the load of engines that refuse requests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """Allows retries in flight up to `share` of the active requests, but always as many as `least`."""

    share: float = 0.2
    least: int = 3
    used: int = 0

    def take(self, active: int) -> bool:
        """Start a retry and return True, if the budget allows it with `active` requests in flight."""
        if self.used >= max(self.least, int(self.share * active)):
            return False
        self.used += 1
        return True


@dataclass(slots=True)
class Retries:
    """The retries of one request: it may try `left` further backends, and has `spent` retries of the shared budget."""

    budget: RetryBudget
    left: int
    spent: int = 0

    def take(self, active: int) -> bool:
        """Start a retry and return True, if the budget allows it with `active` requests in flight."""
        if not self.budget.take(active):
            return False
        self.spent += 1
        return True

    def close(self) -> None:
        """End the request, and give the retries that it took back to the budget."""
        self.budget.used -= self.spent
        self.spent = 0
