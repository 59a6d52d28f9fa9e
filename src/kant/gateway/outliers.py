"""Outlier detection: a backend that fails several requests in a row gets none for a while, then one as a test.

The rules are Envoy's consecutive failures and ejection times (Envoy, "Outlier detection"), with times that double as in
circuit breakers. `/health` checks cannot replace them: an engine that fails each request at once may pass every check,
and so gets the most requests, since it has the fewest.
"""

from __future__ import annotations

from dataclasses import dataclass

CLIENTS_OWN = frozenset({501, 505})
"""Statuses from 501 on by which an engine says that it does not support the request."""


@dataclass(frozen=True, slots=True)
class Ejection:
    """When a backend is ejected, and for how long.

    `after` consecutive failures eject a backend (0: never). `base_s` is the duration of its first ejection in seconds.
    Each further ejection lasts twice as long, but at most `most_s` seconds. A backend that stays in service for longer
    than its last ejection lasted starts with `base_s` again.
    """

    after: int = 3
    base_s: float = 10.0
    most_s: float = 300.0


@dataclass(slots=True)
class Health:
    """The health of one backend, judged by its responses."""

    failures: int = 0
    """Failed responses since the last good one."""
    ejected: bool = False
    until: float = 0.0
    """When it gets a test request, in seconds by the dispatcher's clock."""
    lasts: float = 0.0
    """Seconds of its latest ejection."""
    since: float = 0.0
    """When it returned to service after its latest ejection, in seconds by the dispatcher's clock."""
    sent: int = 0
    """The number of the last request sent before it was ejected. Responses up to this number are ignored."""
    tested: bool = False
    """Whether a test request is in flight."""

    def accepts(self, now: float) -> bool:
        """Whether it gets a request at `now`: it is in service, or its ejection has ended and no test is in flight."""
        return not self.ejected or (now >= self.until and not self.tested)

    def good(self, sent: int, now: float) -> bool:
        """Record a good response to request `sent`. Returns whether this returns the backend to service."""
        if self.ejected and sent <= self.sent:
            return False
        back, self.ejected = self.ejected, False
        self.failures = 0
        if back:
            self.since = now
        return back

    def bad(self, sent: int, now: float, latest: int, rule: Ejection) -> bool:
        """Record that request `sent` (of `latest` so far) has failed. Returns whether this ejects the backend."""
        if self.ejected:
            if sent <= self.sent or now < self.until:
                return False
        else:
            self.failures += 1
            if not rule.after or self.failures < rule.after:
                return False
            if now - self.since > self.lasts:
                self.lasts = 0.0
        self.ejected, self.sent = True, latest
        self.lasts = min(2 * self.lasts or rule.base_s, rule.most_s)
        self.until = now + self.lasts
        return True


def judged(status: int) -> bool | None:
    """Whether a status speaks for its backend (True) or against it (False); None if it says nothing, as 404 or 429."""
    if status >= 500:
        return None if status in CLIENTS_OWN else False
    return True if status < 400 else None
