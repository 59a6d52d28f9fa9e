"""Traffic that the forecast did not know: `python -m benchmarks.studies.serving_seen`, a minute or two.

Two services and training on one pool, with three times the requests that were forecast. Writes its part of
docs/studies/serving-services.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec.structs import replace as changed

from benchmarks.studies.parts import write_part
from benchmarks.studies.serving_services import DAYS, SEEDS, by_target, rates, services, training
from benchmarks.studies.topology import interval
from kant.live.profile_file import read_profile
from kant.model.units import SECOND
from kant.serving.forecast import DAY, Rhythm, Seen, Written
from kant.serving.rates import drawn_counts
from kant.serving.scaling import Foresight
from kant.serving.services_file import Declared
from kant.sim.run import simulate
from kant.testing import make_cluster

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "serving-services.md"
LASTS, NODES = 2, 8
RULES = ("forecast alone", "forecast or seen", "learned alone", "learned or seen", "utilisation, 0.65")
SHAPES = {
    "as forecast": lambda at: np.ones(len(at)),
    "three times as much": lambda at: np.full(len(at), 3.0),
    "three times as much for four hours, four times": lambda at: np.where((at // 240) % 3 == 1, 3.0, 1.0),
}


def declared(seed: int, shape: str) -> dict[str, list[Declared]]:
    """Two services of a seed under each rule.

    The written forecast has the mean of each hour, without what the shape adds; the other is learned from a week.
    """
    found: dict[str, list[Declared]] = {rule: [] for rule in RULES}
    for base, (peak, hour) in zip(services(seed)[:2], ((14.0, 15.0), (8.0, 10.0)), strict=True):
        days = rates(peak, hour, seed)[: (DAYS + LASTS) * DAY]
        before, usual = drawn_counts(days[: DAYS * DAY], seed + 7) / 60, days[DAYS * DAY :]
        counts = drawn_counts(usual * SHAPES[shape](np.arange(len(usual))), seed)
        written = Written(np.repeat(usual.reshape(-1, 60).mean(axis=1), 60))
        learned = Rhythm(np.concatenate([before, counts / 60]), len(before), base.table.cover, 7)
        one = replace(base, counts=counts, table=changed(base.table, core=1))
        forecasts = (written, Seen(written, counts / 60), learned, Seen(learned, counts / 60))
        for rule, forecast in zip(RULES, forecasts, strict=False):
            found[rule].append(replace(one, scaler=Foresight(one.curve, forecast)))
        found[RULES[-1]].append(by_target(one, 0.65))
    return found


def run(seed: int, some: list[Declared]) -> tuple[float, float, float]:
    """Share of the minutes within capacity of the worst service, GPU-hours of services, preemptions."""
    summary = simulate(
        training(seed), make_cluster(*[8] * NODES), read_profile("kant", "study"), seed=seed,
        until=LASTS * 86_400 * SECOND, services=some,
    ).summary  # fmt: skip
    rows = summary["services"]
    kept = min(100 * row["kept_by_capacity"] for row in rows)
    return kept, sum(row["gpu_hours"] for row in rows), summary["preemptions"]


def page() -> Iterator[str]:
    yield "# Traffic that the forecast did not know\n"
    yield "Made by `python -m benchmarks.studies.serving_seen`.\n"
    yield f"""\
Two of the services above for {LASTS} days on {NODES} nodes of 8 GPUs under the profile `kant`, beside training that
asks for more than the cluster. A written forecast has the mean of each hour, peaks of 14 and 8 requests a second; what
comes is drawn around it, or is three times as much, always or by turns. *Learned* is from a week before that, in which
nothing tripled. {len(SEEDS)} seeds, 95 % intervals.
"""
    yield "| what comes | rule | minutes within capacity, worst service, % | GPU-hours of services | preemptions |"
    yield "|---|---|---:|---:|---:|"
    for shape in SHAPES:
        weeks = [declared(seed, shape) for seed in SEEDS]
        for rule in weeks[0]:
            columns = zip(*(run(seed, week[rule]) for seed, week in zip(SEEDS, weeks, strict=True)), strict=True)
            cells = [interval(list(column)) for column in columns]
            forms = ("{:.2f} ± {:.2f}", "{:,.0f} ± {:,.0f}", "{:,.0f} ± {:,.0f}")
            shown = " | ".join(form.format(c.mean, c.half) for form, c in zip(forms, cells, strict=True))
            yield f"| {shape} | {rule} | {shown} |"
    yield """
Under a written forecast of a third of the traffic, followed blindly, hardly any minute keeps the objectives; a learned
one goes by the last half hour, and is late at each rise. Where the last ten minutes correct either, and who gets more
than their replicas bear is answered in the next minute instead of the next five, what is lost at a sudden rise is the
two minutes in which replicas start. GPUs come from training, through the queue. What replicas bear is the engine
model's: no real engine was part of this.
"""


if __name__ == "__main__":
    print(write_part(PAGE, "serving_seen", page()))
