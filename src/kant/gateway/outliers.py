"""Outlier detection: a backend whose answers fail in a row gets no new requests for a while, then one that tests it.

The rules are Envoy's consecutive failures and ejection times (Envoy, "Outlier detection"), with a doubling time as
circuit breakers have it. Looks at `/health` cannot replace them: an engine that fails each request at once may pass
every look, and has the fewest requests of all.
"""

from __future__ import annotations

from dataclasses import dataclass

CLIENTS_OWN = frozenset({501, 505})
"""Statuses above 500 with which an engine says that it does not know what the client asks for."""


@dataclass(frozen=True, slots=True)
class Ejection:
    """When a backend is ejected, and for how long.

    `after`: failed answers in a row that eject it, 0 for never. `base_s`: seconds of the first ejection. Each further
    one takes twice as long, at most `most_s` seconds. A backend that stays in service for longer than it was ejected
    begins with `base_s` again.
    """

    after: int = 3
    base_s: float = 10.0
    most_s: float = 300.0


@dataclass(slots=True)
class Health:
    """What the answers of one backend say of it."""

    failures: int = 0
    """Failed answers since the last good one."""
    ejected: bool = False
    until: float = 0.0
    """When it gets a request again that tests it, in seconds by the dispatcher's clock."""
    lasts: float = 0.0
    """Seconds of its latest ejection."""
    since: float = 0.0
    """When it came back from that."""
    sent: int = 0
    """The latest request that was sent before it was ejected: answers to earlier ones prove nothing."""
    tested: bool = False
    """Whether it has a request now that tests it."""

    def may_get(self, now: float) -> bool:
        """Whether it gets a request at `now`: it is in service, or its ejection is over and nothing tests it yet."""
        return not self.ejected or (now >= self.until and not self.tested)

    def good(self, sent: int, now: float) -> bool:
        """Request number `sent` was answered well; returns whether that brings the backend back into service."""
        if self.ejected and sent <= self.sent:
            return False
        back, self.ejected = self.ejected, False
        self.failures = 0
        if back:
            self.since = now
        return back

    def bad(self, sent: int, now: float, latest: int, rule: Ejection) -> bool:
        """Request number `sent` has failed, of `latest` that were sent; returns whether that ejects the backend."""
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
    """Whether an answer of this status speaks for its backend; None where it says nothing, as 404 or 429."""
    if status >= 500:
        return None if status in CLIENTS_OWN else False
    return True if status < 400 else None
