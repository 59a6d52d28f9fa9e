"""The rules of every order (see `conformance`)."""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.model.units import SECOND
from kant.queueing.order import Order
from kant.testing.builders import make_profile
from kant.testing.conformance import say
from kant.testing.drawn import draw_arrivals, draw_cluster, generator
from kant.testing.harness import Harness


def check_order(policy: Order, rounds: int, seed: int) -> None:
    """Run random jobs under the order, and check its keys after every cycle."""
    for number in range(rounds):
        for discipline in ("best-effort", "preemptive"):
            OrderRound(policy, discipline, seed + number).play()


class OrderRound:
    """One run under the order. The discipline `best-effort` keeps its queue sorted, so under it the key of a waiting
    job must not change.
    """

    def __init__(self, policy: Order, discipline: str, seed: int) -> None:
        self.policy = policy
        self.kept_sorted = discipline == "best-effort" and not policy.moving
        self.draw = generator(seed)
        profile = make_profile(policy, discipline, "best-fit")
        self.harness = Harness(draw_cluster(self.draw), profile, seed=seed, check=False)
        self.harness.after_carrying_out = lambda plan: self.look()
        self.known: dict[int, tuple[int, object]] = {}  # for each waiting job: since when, and its key
        self.where = f"{type(policy).__name__}, seed {seed}"

    def play(self) -> None:
        self.harness.run(draw_arrivals(self.draw, 40, gap=60))

    def look(self) -> None:
        state, where = self.harness.state, self.where
        rows = np.fromiter(state.live, dtype=np.int64, count=len(state.live))
        if len(rows) == 0:
            return
        now = state.now + int(self.draw.integers(0, 2)) * 17 * SECOND
        before = state.jobs.copy()
        keys = self.policy.keys(state.jobs, rows, now)
        say(len(keys) == len(rows), f"{where}: there must be one key for each job")
        say(bool(np.array_equal(before, state.jobs)), f"{where}: an order must not change anything")
        say(not bool(np.any(np.isnan(keys.astype(np.float64)))), f"{where}: every two keys must be comparable")
        if not self.policy.moving:
            alone = [self.policy.keys(state.jobs, rows[i : i + 1], now)[0] for i in range(len(rows))]
            say(list(keys) == alone, f"{where}: the keys of many jobs must be those of each alone")
        mixed = self.draw.permutation(len(rows))
        say(bool(np.array_equal(self.policy.keys(state.jobs, rows[mixed], now), keys[mixed])),
            f"{where}: a key must not depend on the order in which jobs are given")  # fmt: skip
        self._demotions(now)
        if self.kept_sorted:
            self._waiting_keys_stay(rows, keys.tolist())

    def _waiting_keys_stay(self, rows: np.ndarray, keys: list[object]) -> None:
        state, seen = self.harness.state, {}
        for row, key in zip(rows.tolist(), keys, strict=True):
            if row in state.pending:
                since = int(state.jobs[row, c.J_SINCE])
                old = self.known.get(row)
                say(old is None or old[0] != since or old[1] == key,
                    f"{self.where}: the key of a job must not change while it waits: {old} and {key}")  # fmt: skip
                seen[row] = (since, key)
        self.known = seen

    def _demotions(self, now: int) -> None:
        state, where = self.harness.state, self.where
        running = np.fromiter(state.running, dtype=np.int64, count=len(state.running))
        for row, level in self.policy.demotions(state.jobs, running, now):
            say(row in state.running, f"{where}: only running jobs may be demoted")
            say(level > state.jobs[row, c.J_LEVEL], f"{where}: a demotion must lead to a lower level")
        review = self.policy.review_at(state.jobs, running, now)
        say(review == -1 or review > now, f"{where}: the order must be computed again later than now, or never")
