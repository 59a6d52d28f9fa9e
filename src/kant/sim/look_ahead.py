"""The look-ahead of a router of policies: is the proposed policy better than the floor, from the present snapshot?

Run times are drawn as for forecasts of starts (`forecast_starts.py`), no other job arrives, and each future runs until
its jobs have ended. Each is run once under the floor throughout, and for each of `HOURS` once under the proposed policy
for that long, then the floor. The proposal is confirmed if, for each of `HOURS`, the sum of bounded slowdowns falls in
every future, and if the mean fall, in percent of the floor's sum, is above `MARGIN` by more than two standard errors.
So the router leaves the floor only for a proven gain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import J_ATTAINED, J_END, J_SINCE, J_SUBMIT
from kant.insight.moment import Moment
from kant.model.event import PolicyRouted
from kant.model.units import FOREVER, HOUR, SECOND
from kant.sim.forecast_starts import Future, draw

FUTURES, HOURS, MARGIN = 4, (1, 6), 1.0
"""Futures, hours under the proposed policy, and the least gain in percent."""

SHORT = 10 * SECOND
"""The least run time that a bounded slowdown divides by."""


def look_ahead(moment: Moment) -> PolicyRouted | None:
    """Return the switch to the policy that a rule of the router proposes now, with the reason in one sentence.

    The switch is to the floor if the proposal is not confirmed; None if no rule holds. The same moment gives the same
    answer.
    """
    router = moment.profile.router
    proposed = router.proposal(moment.thawed(), moment.now) if router is not None else None
    if router is None or proposed is None:
        return None
    policy, why = proposed
    confirmed, gains = _confirms(moment, policy, router.floor)
    if confirmed:
        return PolicyRouted(moment.now, policy, f"{why}; simulated from now, {gains}")
    return PolicyRouted(moment.now, router.floor, f"{policy} is not confirmed, though {why}: {gains}")


def _confirms(moment: Moment, policy: str, floor: str) -> tuple[bool, str]:
    """Return whether the policy is better than the floor, and the figures."""
    first = Future(moment)
    work, _ = draw(first.state, moment, FUTURES, first.execution.speed.reports)
    rows = np.fromiter(work, np.int64, len(work))
    left = np.array([work[row] for row in rows.tolist()], np.int64)
    if (left >= FOREVER).any():
        return False, "the run time of a job is unknown"
    submit, ran, since = first.state.jobs[rows][:, [J_SUBMIT, J_ATTAINED, J_SINCE]].T
    ran = ran + np.array([row in first.state.running for row in rows.tolist()]) * (moment.now - since)
    shares = np.zeros((len(HOURS), FUTURES))  # the share by which the sum falls
    for number in range(FUTURES):
        runtime = np.maximum(ran + left[:, number], SHORT)

        def ends(who: str, hours: int, drawn: NDArray[np.int64] = left[:, number]) -> NDArray[np.int64]:
            return _ends(moment, rows, drawn, (who, floor), hours)

        base = ends(floor, 0)
        for at, hours in enumerate(HOURS):
            other = ends(policy, hours)
            last = int(max(base.max(), other.max()))  # a job that never ends counts up to this time
            before, after = (
                np.maximum((np.where(each < 0, last, each) - submit) / runtime, 1.0).sum() for each in (base, other)
            )
            shares[at, number] = 1 - after / before
            if shares[at, number] <= 0:
                return False, f"{hours} h under it do not lower the sum of bounded slowdowns"
    means, errors = 100 * shares.mean(axis=1), 200 * shares.std(axis=1, ddof=1) / FUTURES**0.5
    at = int((means - errors).argmin())
    told = f"{HOURS[at]} h under it lower the sum of bounded slowdowns by {means[at]:.1f} % ± {errors[at]:.1f} %"
    return bool(means[at] - errors[at] > MARGIN), told


def _ends(
    moment: Moment, rows: NDArray[np.int64], left: NDArray[np.int64], policies: tuple[str, str], hours: int
) -> NDArray[np.int64]:
    """Return when each job ends if the first policy acts for some hours and then the second; -1: never."""
    future = Future(moment)
    future.begin(dict(zip(rows.tolist(), left.tolist(), strict=True)), iter(()))
    turns = (
        ((policies[0], 0, hours * HOUR), (policies[1], hours * HOUR, FOREVER))
        if hours
        else ((policies[1], 0, FOREVER),)
    )
    for policy, begin, end in turns:
        future.turn(policy, moment.now + begin)
        instants = future.most_instants
        while instants and future.state.live and future.step(min(moment.now + end, FOREVER) - 1):
            instants -= 1
    found: NDArray[np.int64] = future.state.jobs[rows, J_END]
    return found
