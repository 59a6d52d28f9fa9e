"""Services that follow a forecast beside training: `python -m benchmarks.studies.serving_services`, some minutes.

One week, three services with a daily rhythm, training that takes what is left. Writes docs/studies/serving-services.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.parts import write_part
from benchmarks.studies.topology import interval
from kant.live.profile_file import read_profile
from kant.model.units import SECOND
from kant.serving.engine import EngineSettings
from kant.serving.forecast import DAY, Rhythm
from kant.serving.judging import by_capacity
from kant.serving.latency import kv_tokens, latency_model
from kant.serving.rates import drawn_counts
from kant.serving.scaling import Foresight, Static, Utilisation
from kant.serving.service import Service, mix_named
from kant.serving.services_file import Declared, ServiceTable, kept_curve
from kant.serving.summary import Objectives
from kant.sim.run import simulate
from kant.testing import make_cluster, make_jobs

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "serving-services.md"
MODEL, GPU = "llama-3-8b", "a100"
NODES, DAYS, SEEDS = 8, 7, range(3)
PEAKS = {"chat": (40.0, 15.0), "search": (24.0, 10.0), "code": (16.0, 13.0)}
"""Requests a second in the middle of a usual day's peak, and the hour of it."""

TARGETS = (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
KEPT = 0.995


def rates(peak: float, hour: float, seed: int) -> np.ndarray:
    """Two weeks of requests a second by minute: a day's wave, quieter weekends, days that differ, noise that lasts."""
    draw = np.random.Generator(np.random.PCG64([seed, int(peak)]))
    at = np.arange(2 * DAYS * DAY)
    wave = 0.55 + 0.45 * np.cos(2 * np.pi * (at / 60 - hour) / 24)
    days = np.exp(0.08 * draw.standard_normal(2 * DAYS)) * np.where(np.arange(2 * DAYS) % 7 >= 5, 0.7, 1.0)
    noise, level = np.zeros(len(at)), 0.0
    for i, step in enumerate(draw.standard_normal(len(at))):
        level = 0.98 * level + 0.06 * 0.199 * step  # 6 % in the long run, an hour's memory
        noise[i] = level
    found: np.ndarray = peak * wave * days[at // DAY] * np.exp(noise)
    return found


def services(seed: int) -> list[Declared]:
    """The three services of a seed, scaled by a forecast."""
    latency, gpus = latency_model(MODEL, GPU)
    settings = EngineSettings(latency, kv_tokens(MODEL, GPU, gpus) // 16 + 1)
    service = Service(settings, mix_named("conversation"), Objectives(3.0, 0.1), "shortest-queue")
    curve = kept_curve(service)
    found = []
    for i, (name, (peak, hour)) in enumerate(PEAKS.items()):
        seen = drawn_counts(rates(peak, hour, seed), 10 * seed + i)
        table = ServiceTable(
            name=name, model=MODEL, gpu=GPU, ttft_s=3.0, tpot_s=0.1, traffic="", core=max(int(peak / 16), 1)
        )
        scaler = Foresight(curve, Rhythm(seen / 60, DAYS * DAY, table.cover, 7))
        found.append(Declared(table, service, curve, gpus, seen[DAYS * DAY :], scaler))
    return found


def alone(declared: Declared) -> np.ndarray:
    """Replicas that serve in each minute where the cluster has room for all that are asked for."""
    minutes = len(declared.counts)
    asked = np.zeros(minutes, dtype=np.int64)
    count, every = declared.table.core, declared.scaler.every_s // 60
    for now in range(minutes):
        if now % every == 0:
            count = declared.wanted(now, count)
        asked[now] = count
    late = np.concatenate([np.full(3, asked[0]), asked[:-3]])
    return np.minimum(asked, late)


def by_target(declared: Declared, target: float) -> Declared:
    """The same service, scaled by utilisation."""
    each = declared.curve.rates[-1] / declared.curve.replicas[-1]
    return replace(declared, scaler=Utilisation(each, declared.counts / 60, target))


def kept_alone(declared: Declared) -> float:
    return float(by_capacity(declared.counts, alone(declared), declared.curve).mean())


def static(declared: Declared, share: float) -> Declared:
    """The fewest replicas that bear this share of the week's minutes, known afterwards."""
    n = declared.curve.needed(float(np.quantile(declared.counts, share, method="higher")) / 60)
    return replace(declared, scaler=Static(n))


def training(seed: int) -> Any:
    """Jobs that together want more than the whole cluster, of 1 to 8 GPUs and half an hour to a day."""
    draw = np.random.Generator(np.random.PCG64([seed, 0x7]))
    count = 900
    return make_jobs(
        submit=np.sort(draw.integers(0, DAYS * 86_400, count)).tolist(),
        runtime=np.clip(draw.lognormal(np.log(7200), 1.0, count), 1800, 86_400).astype(int).tolist(),
        gpus=draw.choice([1, 2, 4, 8], count, p=[0.3, 0.2, 0.3, 0.2]).tolist(),
    )


def run(seed: int, declared: list[Declared]) -> dict[str, float]:
    """One week: what the services had and kept, and what training had."""
    end = DAYS * 86_400 * SECOND
    cluster = make_cluster(*[8] * NODES)
    summary = simulate(
        training(seed), cluster, read_profile("kant", "study"), seed=seed, until=end, services=declared
    ).summary
    rows = summary["services"]
    gpu_hours = sum(row["gpu_hours"] for row in rows)
    engine = [row["engine"] for row in rows]
    return {
        "gpu_hours": gpu_hours,
        "training": summary["sor"] * NODES * 8 * DAYS * 24 - gpu_hours,
        "capacity": 100 * min(row["kept_by_capacity"] for row in rows),
        "engine": 100 * sum(verdict["share"] for verdict in engine) / len(rows),
        "worst": 100 * min(verdict["share"] for verdict in engine),
        "error": 100 * max(verdict["error"] for verdict in engine),
        "judged": sum(verdict["judged"] for verdict in engine),
        "agree": 100 * sum(v["agree"] * v["judged"] for v in engine) / sum(v["judged"] for v in engine),
        "preemptions": summary["preemptions"],
    }


def tuned(weeks: list[list[Declared]]) -> list[float]:
    """For each service the highest target utilisation at which it keeps its objectives often enough in every week."""
    found = []
    for i in range(len(PEAKS)):
        good = [t for t in TARGETS if all(kept_alone(by_target(week[i], t)) >= KEPT for week in weeks)]
        found.append(max(good))
    return found


def page() -> Iterator[str]:
    weeks = [services(seed) for seed in SEEDS]
    targets = tuned(weeks)
    cases = {
        "forecast": weeks,
        "utilisation, best targets": [
            [by_target(d, target) for d, target in zip(week, targets, strict=True)] for week in weeks
        ],
        "static, for the peak": [[static(d, 1.0) for d in week] for week in weeks],
    }
    found = {name: [run(seed, week) for seed, week in zip(SEEDS, some, strict=True)] for name, some in cases.items()}
    fewest = [sum(static(d, KEPT).scaler.wanted(0, 0) for d in week) * DAYS * 24 for week in weeks]
    peaks = ", ".join(f"{peak:g}/s ({name})" for name, (peak, _) in PEAKS.items())
    chosen = ", ".join(f"{target:g} for {name}" for name, target in zip(PEAKS, targets, strict=True))
    by_peak, by_rule = "static, for the peak", "utilisation, best targets"
    yield "# Services that follow a forecast, beside training\n"
    yield "Made by `python -m benchmarks.studies.serving_services`.\n"
    yield f"""\
One week on {NODES} nodes of 8 GPUs under the profile `kant`. Three [services](../serving.md#services-of-a-cluster)
run Llama-3-8B on an A100 each, with conversations as Azure's; they promise 3 s to the first token and 100 ms a
token (P99 of each minute). Their requests are drawn: peaks of {peaks}, a wave over the day down to a tenth of that,
quieter weekends, days that differ by 8 %, and noise of 6 % that lasts an hour. A week before it is the history.
Training asks for more than the cluster and gets the rest. {len(SEEDS)} seeds, 95 % intervals; a replica takes
two minutes to start and half a minute to leave.

- *forecast* knows the requests before the present, and the capacity of the engines. It is the learned forecast alone;
  with what is seen beside it, as services are scaled, GPU-hours are about 1 % more (the next study).
- *utilisation* is Kubernetes' rule every minute, on the rate over what replicas bear. Its targets were chosen
  afterwards: for each service the highest of {TARGETS[0]:g}, {TARGETS[1]:g}, … {TARGETS[-1]:g} that keeps {
        100 * KEPT:g} % of minutes in every week ({chosen}).
- *static* has for each service the fewest replicas that bear the busiest minute of the very week.
"""
    names = (
        ("gpu_hours", "GPU-hours of services", "{:,.0f}"),
        ("training", "GPU-hours of training", "{:,.0f}"),
        ("capacity", "minutes within capacity, worst service, %", "{:.2f}"),
        ("engine", "minutes kept as the engine says, %", "{:.2f}"),
        ("worst", "the same, worst service, %", "{:.2f}"),
        ("preemptions", "preemptions", "{:,.0f}"),
    )
    yield "| | " + " | ".join(found) + " |"
    yield "|---|" + "---:|" * len(found)
    for key, label, form in names:
        cells = [interval([row[key] for row in rows]) for rows in found.values()]
        yield f"| {label} | " + " | ".join(f"{form.format(c.mean)} ± {form.format(c.half)}" for c in cells) + " |"
    held = {name: np.array([row["gpu_hours"] for row in rows]) for name, rows in found.items()}
    savings = {}
    for name, other in list(held.items())[1:]:
        share = interval((100 * (1 - held["forecast"] / other)).tolist())
        savings[name] = f"{share.mean:.1f} ± {share.half:.1f} %"
    rows = [row for some in found.values() for row in some]
    few = interval(fewest)
    judged = int(sum(row["judged"] for row in rows))
    total = len(rows) * len(PEAKS) * DAYS * DAY
    agree = sum(row["agree"] * row["judged"] for row in rows) / judged
    low = min(row["capacity"] for row in found["forecast"])
    error = max(row["error"] for row in rows)
    yield f"""
## What it says

The forecast needs {savings[by_peak]} fewer GPU-hours than static provisioning for the peak, and
{savings[by_rule]} fewer than the best target utilisations, whose objectives are kept about as often. The
fewest static replicas that bear {100 * KEPT:g} % of the minutes, known afterwards, would hold {few.mean:,.0f} ±
{few.half:,.0f} GPU-hours. In no week did a
service on a forecast have more requests than its replicas bear in more than {100 - low:.2f} % of the minutes.

The engine itself judged {judged:,} of the {total:,} minutes of all services, weeks and rules: a sample from strata
of load, each minute served after the one before it by as many engines as served then. On {agree:.0f} % of these the
capacity says the same. A capacity is asked to hold in nearly all minutes at that mean rate, of which many have more
requests, so *within capacity* is the stricter count. It is also the
surer one, as it counts every minute: the sample of one service and week has a standard error of up to
{error:.1f} points, which the intervals above (over seeds) do not hold.

## What it does not say

All services here have one model, and their days are drawn, not recorded. A minute is judged with the replicas that
it had throughout; requests that move when a replica goes are not followed. Targets of utilisation are chosen where
the cluster has room for all. What a training job loses when it is stopped depends on its checkpoints: here it loses
nothing.
"""


if __name__ == "__main__":
    print(write_part(PAGE, "serving_services", page()))
