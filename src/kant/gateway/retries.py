"""How often requests are sent again: so often for each, and only so many at once of all.

The budget is that of Envoy ("Circuit breaking", retry budgets): the requests that are being retried are at most a share
of all that the router has, so retries cannot multiply the load of engines that refuse it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """At most `share` of the requests that there are, and always `least`, may be sent a second time at once."""

    share: float = 0.2
    least: int = 3
    used: int = 0

    def take(self, active: int) -> bool:
        """Begin a retry where the budget allows it, of `active` requests that there are."""
        if self.used >= max(self.least, int(self.share * active)):
            return False
        self.used += 1
        return True


@dataclass(slots=True)
class Retries:
    """The retries of one request: `left` further backends, and what it has `spent` of the budget that all share."""

    budget: RetryBudget
    left: int
    spent: int = 0

    def take(self, active: int) -> bool:
        """Send the request again, of `active` that there are; False where the budget is spent."""
        if not self.budget.take(active):
            return False
        self.spent += 1
        return True

    def close(self) -> None:
        """The request is over: its retries are no longer under way."""
        self.budget.used -= self.spent
        self.spent = 0
