"""Several routers before the same engines: `python -m benchmarks.studies.serving_replicas`, a minute or two.

Each request comes to one of them at random. Each knows what it has sent, and of the others what engines' metrics show,
or what they tell it. Then rules by load alone, told at once and rarely, on two published traces. Writes
its part of docs/studies/serving-routers.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.data import DATA
from benchmarks.prefix import SETTINGS, conversation, documents
from benchmarks.studies.parts import write_part
from benchmarks.studies.topology import interval
from kant.gateway.backend import Backend
from kant.gateway.gossip import EVERY_S
from kant.gateway.scrape import Scraped
from kant.serving import columns as c
from kant.serving.columns import FOREVER
from kant.serving.fleet import Fleet, new_fleet
from kant.serving.read import read_requests
from kant.serving.requests import Requests
from kant.serving.routers import router_named
from kant.serving.routers.prefix import PrefixAware
from kant.serving.routing import decide
from kant.serving.site import ObservedSite, Sites

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "serving-routers.md"
COUNT, SEEDS, SCRAPE_S = 1500, range(3), 1.0
SEEN: Any = SimpleNamespace(unseen=False)
"""Stands for each request of a backend: only their number counts here."""


@dataclass(frozen=True)
class Way:
    """How many routers there are, whether engines tell them of prefixes, and whether they tell each other of loads."""

    routers: int
    events: bool = True
    gossip: bool = False
    every_s: float = EVERY_S
    """Seconds between two times at which they tell each other."""

    by: str = "prefix"
    """The name of the rule."""

    def __str__(self) -> str:
        loads = "gossip" if self.gossip else "metrics"
        return "one" if self.routers == 1 else f"{self.routers}, {loads}{', KV events' if self.events else ''}"


WAYS = (Way(1), Way(4, False), Way(4), Way(4, False, True), Way(2, True, True), Way(4, True, True))


def observe(fleet: Fleet, backends: list[Backend]) -> None:
    """Let a router see the tokens of its own requests."""
    for backend in backends:
        rows = fleet.engines[backend.number].requests
        for i in list(backend.site.live):
            row = rows[fleet.number[i]]
            if row[c.STATE] == c.FINISHED:
                backend.site.end(i)
                del backend.rows[i]
            else:
                backend.site.said(i, int(row[c.DONE]))


def tell(views: list[list[Backend]]) -> None:
    """Let each router hear what the others have."""
    for k in range(len(views[0])):
        loads = {j: view[k].own_load() for j, view in enumerate(views)}
        for j, view in enumerate(views):
            view[k].peers = {other: load for other, load in loads.items() if other != j}
            view[k].add_up()


def scrape(fleet: Fleet, backends: list[Backend]) -> None:
    """Let a router read the metrics of each engine."""
    for backend in backends:
        state = fleet.engines[backend.number].state
        usage = 1 - int(state[c.FREE]) / (SETTINGS.num_blocks - 1)
        said = Scraped(int(state[c.RUNS]), int(state[c.WAITS]), usage)
        backend.compare(said, *backend.own_load()[:2])


RULES = ("shortest-queue", "least-tokens", "llumnix", "lmetric", "prefix", "two-choices", "dodoor")
TOLD_S = (EVERY_S, 1.0, 5.0)
MANY = 16
"""Engines of the rules by load alone."""

AZURE, MOONCAKE = "azure_llm2023_conv.csv.gz", "mooncake_conversation.jsonl.gz"
TRACES = {AZURE: (22.0, 8), MOONCAKE: (8.0, 4)}
"""The published traces, the requests a second at which they come, and their pieces."""

SAID = """\
Rules that take the least of all engines send to the same one together where loads are old. On Azure's conversations,
in which no prompts repeat, four routers that tell each other every second have a mean of 31 to 57 % above one's with
them, 12 % with `dodoor` and 6 % with `two-choices`. `dodoor` has the lowest mean of four routers, however old the loads
are, and at 1 s a lower mean and P99 than each other rule beyond the intervals; alone it has the mean of the best within
1 %. On Mooncake's, where most of a prompt repeats, `prefix` and `lmetric` have lower means than it, and differ from
it by less than the intervals.
"""


def piece(trace: Requests, k: int, pieces: int) -> Requests:
    """Piece k of a trace; the pieces lie evenly over it."""
    at = slice((len(trace) - COUNT) // (pieces - 1) * k, None)
    lengths = trace.arrival[at], trace.prompt[at], trace.output[at]
    return Requests(trace.name, *lengths, hashes=trace.hashes[at], grain=trace.grain).first(COUNT)


def waits(requests: Requests, engines: int, way: Way, seed: int) -> tuple[float, float]:
    """Mean and P99 of the time to first token, in seconds."""
    routers = [router_named(way.by) for _ in range(way.routers)]
    fleet = new_fleet(requests, SETTINGS, engines, None, routers[0], seed)
    draw = np.random.Generator(np.random.PCG64(seed + 1))
    for router in routers if way.events else ():
        if isinstance(router, PrefixAware) and isinstance(routers[0], PrefixAware):
            router.index = routers[0].index
    views = [[Backend(k, f"http://{k}", ObservedSite(SETTINGS, k)) for k in range(engines)] for _ in routers]
    due = {"scrape": 0.0, "tell": 0.0 if way.gossip else FOREVER} if way.routers > 1 else {}

    def reach(until: float) -> None:
        for engine in fleet.engines:
            fleet.drive(engine, until)

    for i, now in enumerate(requests.arrival.tolist()):
        while due and min(due.values()) <= now:
            what = min(due, key=due.__getitem__)
            reach(due[what])
            for view in views:
                observe(fleet, view)
            if what == "tell":
                tell(views)
                due[what] += way.every_s
            else:
                for view in views:
                    scrape(fleet, view)
                due[what] += SCRAPE_S
        reach(now)
        j = int(draw.integers(way.routers))
        observe(fleet, views[j])
        request, sites = fleet.incoming(i, now), [backend.site for backend in views[j]]
        k = decide(routers[j], request, Sites(sites), fleet.draw)
        cached = routers[j].sent(request, sites[k])
        fleet.add(i, now, k, cached)
        sites[k].send(i, request.prompt, request.predicted, cached)
        views[j][k].rows[i] = SEEN
    reach(FOREVER)
    first = [fleet.engines[fleet.where[i]].times[fleet.number[i], c.FIRST] for i in range(len(requests))]
    wait = np.array(first) - requests.arrival
    return float(wait.mean()), float(np.quantile(wait, 0.99))


def page() -> Iterator[str]:
    yield "# Several routers before the same engines\n"
    yield "Made by `python -m benchmarks.studies.serving_replicas`.\n"
    yield f"""\
`prefix` before the engines of `python -m benchmarks.prefix`, {COUNT:,} requests, each of which comes to one of the
routers at random. A router sees its own requests. Of the others' it sees the engines' metrics, once a second, the least
of three looks; with gossip what each has on each engine, every {1e3 * EVERY_S:.0f} ms. With KV events all know which
prompts an engine has. {len(SEEDS)} seeds, 95 % intervals.
"""
    yield "| load | routers | mean to first token, s | of one router's | P99, s |"
    yield "|---|---|---:|---:|---:|"
    for load, engines in ((documents, 8), (conversation, 4)):
        name = load.__name__
        alone: list[float] = []
        for way in WAYS:
            rows = []
            for seed in SEEDS:
                draw = np.random.Generator(np.random.PCG64(seed))
                rows.append(waits(load(draw, COUNT), engines, way, seed))
            means, tails = zip(*rows, strict=True)
            alone = alone or list(means)
            ratios = [mean / one for mean, one in zip(means, alone, strict=True)]
            mean, tail, over = (interval(list(values)) for values in (means, tails, ratios))
            yield (
                f"| {name} | {way} | {mean.mean:.3f} ± {mean.half:.3f} | {over.mean:.2f} ± {over.half:.2f}"
                f" | {tail.mean:.2f} ± {tail.half:.2f} |"
            )
    yield """
Metrics are up to three seconds old and do not show waiting prompts, so four routers send to the same engine at
once. With both, four routers are nearly as good as one: the rest is what they send within the same twentieth of a
second.
"""
    yield from front_ends()


def front_ends() -> Iterator[str]:
    """The part about rules by load alone, told at once and rarely."""
    counts = " and ".join(str(pieces) for _, pieces in TRACES.values())
    yield f"""
## Front ends that are told rarely

{MANY} engines and the published traces of Azure (conversations of 2023, at {TRACES[AZURE][0]:g} a second) and of
Mooncake (at {TRACES[MOONCAKE][0]:g}), {counts} pieces of {COUNT:,} requests. Four routers without KV events tell each
other of loads as seldom as the head says. Mean time to first token, s; then what is 1 s old beside `dodoor`, piece by
piece, with 95 % intervals.
"""
    for name, (rate, pieces) in TRACES.items():
        trace, heads = read_requests(DATA / name), [f"4, {every_s:g} s" for every_s in TOLD_S]
        yield f"| {'Azure' if name == AZURE else 'Mooncake'} | one | {' | '.join(heads)} | mean beside `dodoor` | P99 |"
        yield "|---|" + "---:|" * (3 + len(TOLD_S))
        found = {
            rule: np.array(
                [
                    [waits(piece(trace, k, pieces).at_rate(rate), MANY, way, k) for k in range(pieces)]
                    for way in (Way(1, False, by=rule), *(Way(4, False, True, every_s, rule) for every_s in TOLD_S))
                ]
            )
            for rule in RULES
        }
        at = 1 + TOLD_S.index(1.0)
        for rule, figures in found.items():
            apart = (interval(list(100 * (figures[at] / found["dodoor"][at] - 1)[:, k])) for k in (0, 1))
            cells = [f"{mean:.3f}" for mean in figures[:, :, 0].mean(axis=1)]
            cells += ["-" if rule == "dodoor" else f"{each.mean:+.0f} ± {each.half:.0f} %" for each in apart]
            yield f"| `{rule}` | {' | '.join(cells)} |"
        yield ""
    yield SAID


if __name__ == "__main__":
    print(write_part(PAGE, "serving_replicas", page()))
