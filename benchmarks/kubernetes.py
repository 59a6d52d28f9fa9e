"""Kant on a real API server, side by side with the real kube-scheduler and with binding alone.

`python -m benchmarks.kubernetes [CASE …] [--repeats N] [--rivals NAME,…]`; the cases are the functions of `CASES`.
Every run has a control plane of its own, and rivals take turns, so that a busy machine is busy for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.kubernetes_cases import STALL, Load, Run, arriving, backlog, probe
from benchmarks.kubernetes_heartbeats import cpu_a_minute
from benchmarks.kubernetes_load import NODES, POD_GROUPS, PODS, SLOTS, SPINE_LABEL, Watch, nodes, pod, pod_group
from benchmarks.kubernetes_questions import questions
from benchmarks.kubernetes_recovery import ALL_PODS, recover
from benchmarks.kubernetes_rig import Api, Plane
from benchmarks.kubernetes_rivals import BINDER, BINDER_EVENTS, KANT, RIVALS, SCHEDULER, Rival, has_kant
from benchmarks.measure import Figure

SIZES = {"pods-4000": Load(1_000, 4_000), "pods-10000": Load(1_250, 10_000)}
GANGS = Load(1_000, 4_000, gang=8)
LARGE = Load(1_000, 512, gang=512, level=SPINE_LABEL)
IDLE_NODES, IDLE_SECONDS = 5_000, 30
HEARTBEAT = 300
"""Seconds after which a kubelet reports its node again, as is the default."""
FULL_NODES, FULL_PODS = 5_000, 50_000
BLOCKED_NODES, BLOCKED_PODS = 1_000, 10
"""On each node one GPU is taken, so that a gang of so many whole nodes has no room."""


class Bench:
    """The rivals asked for, and how often each runs."""

    def __init__(self, repeats: int, names: Sequence[str]) -> None:
        self.repeats = repeats
        self.rivals = [RIVALS[name] for name in names]

    def has(self, rival: Rival) -> bool:
        return rival in self.rivals

    def runs(self, load: Load, rivals: Sequence[Rival], *, warm: bool = False) -> dict[str, list[Run]]:
        """Every rival's runs, in turns; those that were not asked for are left out."""
        found: dict[str, list[Run]] = {each.name: [] for each in rivals if self.has(each)}
        for _ in range(self.repeats):
            for each in rivals:
                if self.has(each):
                    found[each.name].append((arriving if warm else backlog)(each, load))
        return found


def pods(bench: Bench) -> Iterator[Figure]:
    """Pods of one GPU that wait when the scheduler starts."""
    for name, load in SIZES.items():
        yield from rates(name, bench.runs(load, (BINDER, BINDER_EVENTS, SCHEDULER, KANT)))


def gangs(bench: Bench) -> Iterator[Figure]:
    """500 gangs of 8 pods that wait when the scheduler starts; the rival has its native gang scheduling."""
    yield from rates("gangs-500", bench.runs(GANGS, (BINDER, BINDER_EVENTS, SCHEDULER, KANT)))


def rates(name: str, found: dict[str, list[Run]]) -> Iterator[Figure]:
    """Pods a second from first to last bind, the best run of each: Kant to each of the others, and they to binding."""
    best = {rival: max(runs, key=lambda each: each.rate) for rival, runs in found.items()}
    for rival, run in best.items():
        others = ("kube-scheduler", "binder", "binder-events") if rival == "kant" else ("binder",)
        for other in others:
            if other in best and other != rival:
                about = f"kube-{name}-{rival}" + (f"-to-{other}" if rival == "kant" else "")
                yield Figure(about, run.rate, "pods/s", run.rate / best[other].rate, other, notes(run))
        if rival == "binder":
            yield Figure(f"kube-{name}-binder", run.rate, "pods/s", None, "", notes(run))


def notes(run: Run) -> str:
    """The end of a figure's line: costs of each process, events, start to last bind."""
    return (
        f"{run.costs()}; {run.first - max(run.submit, run.started):.1f} s to the first bind, {run.whole:.1f} s to the "
        f"last; {run.events} events; {run.peak_mib:.0f} MiB"
    )


def submitted(bench: Bench) -> Iterator[Figure]:
    """Pods that are submitted while the scheduler runs: seconds from the first one created to the last one bound."""
    found = bench.runs(SIZES["pods-4000"], (BINDER_EVENTS, SCHEDULER, KANT), warm=True)
    yield from whole("submitted-4000", found, {"kube-scheduler": "binder-events", "kant": "kube-scheduler"})


def large(bench: Bench) -> Iterator[Figure]:
    """A gang of 512 in one spine, from the first pod created to the last one bound; binding alone does not wait."""
    found = bench.runs(LARGE, (BINDER, SCHEDULER, KANT), warm=True)
    yield from whole("gang-512", found, {"kube-scheduler": "binder", "kant": "binder"})


def whole(name: str, found: dict[str, list[Run]], against: dict[str, str]) -> Iterator[Figure]:
    best = {rival: min(runs, key=lambda each: each.whole) for rival, runs in found.items()}
    for rival, run in best.items():
        other = best.get(against.get(rival, ""))
        ratio = None if other is None else other.whole / run.whole
        created = f"created in {run.submitted - run.submit:.1f} s; "
        yield Figure(f"kube-{name}-{rival}", run.whole, "s", ratio, against.get(rival, ""), created + notes(run))


def blocked(bench: Bench) -> Iterator[Figure]:
    """A gang of 10 whole nodes where no node is whole: seconds until each pod says why it waits."""
    for rival in (SCHEDULER, KANT):
        if bench.has(rival):
            seconds, reason = min(told(rival) for _ in range(bench.repeats))
            yield Figure(f"kube-blocked-{rival.name}", seconds, "s", None, "", reason)


def told(rival: Rival) -> tuple[float, str]:
    """Seconds from the first pod created to the last pod's reason, and the reason."""
    with Plane(gangs=True) as plane:
        asyncio.run(_create(plane, BLOCKED_NODES))
        taken = [pod(f"taken-{i:05}", "other", node=f"node-{i:05}") for i in range(BLOCKED_NODES)]
        asyncio.run(_post(plane, PODS, taken))
        rival.start(plane)
        asyncio.run(probe(plane, rival))
        return asyncio.run(_told(plane, rival))


async def _told(plane: Plane, rival: Rival) -> tuple[float, str]:
    async with Api(plane.config) as api:
        watch = Watch(api)
        await watch.start(unbound=True)
        await api.post_all(POD_GROUPS, [pod_group("gang", BLOCKED_PODS)])
        gang = [pod(f"pod-{i}", rival.scheduler, gpus=SLOTS, gang="gang") for i in range(BLOCKED_PODS)]
        begin = time.monotonic()
        await api.post_all(PODS, gang)
        if not await watch.until(lambda: len(watch.reasons) >= BLOCKED_PODS, STALL):
            raise RuntimeError(f"{len(watch.reasons)} of {BLOCKED_PODS} pods were told why: {plane.log(rival.name)}")
        await watch.stop()
        when, reason = max(watch.reasons.values())
        return when - begin, reason


def idle(bench: Bench) -> Iterator[Figure]:
    """Percent of a core with 5,000 nodes, of which each is reported again every five minutes, and nothing to do."""
    for rival in (SCHEDULER, KANT):
        if bench.has(rival):
            with Plane() as plane:
                asyncio.run(_create(plane, IDLE_NODES))
                rival.start(plane)
                asyncio.run(probe(plane, rival))
                before = plane.cpu()[rival.name]
                asyncio.run(_heartbeats(plane))
                share = 100 * (plane.cpu()[rival.name] - before) / IDLE_SECONDS
                memory = f"{plane.peak_mib(rival.name):.0f} MiB at most"
            yield Figure(f"kube-idle-{rival.name}", share, "% of a core", None, "", memory)


async def _heartbeats(plane: Plane) -> None:
    async with Api(plane.config) as api:
        end, beat = time.monotonic() + IDLE_SECONDS, 0
        while time.monotonic() < end:
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": f"beat {beat}"}
            body = msgspec.json.encode({"status": {"conditions": [ready]}})
            await api.do_all([("PATCH", f"{NODES}/node-{beat % IDLE_NODES:05}/status", body)])
            beat += 1
            await asyncio.sleep(HEARTBEAT / IDLE_NODES)


def heartbeats(bench: Bench) -> Iterator[Figure]:
    """What kubelets report in a minute, of 1,000 nodes and 5,000 pods of others, while nothing is to be decided."""
    for rival in (SCHEDULER, KANT):
        if bench.has(rival):
            for name, seconds in cpu_a_minute(rival, IDLE_SECONDS).items():
                yield Figure(f"kube-heartbeats-{name}", seconds, "CPU-s", None, "", "for the reports of a minute")


def restart(bench: Bench) -> Iterator[Figure]:
    """Start with 5,000 nodes and 50,000 pods on them: seconds to the first bind of a pod, and the most memory."""
    for rival in (SCHEDULER, KANT):
        if bench.has(rival):
            with Plane() as plane:
                asyncio.run(_create(plane, FULL_NODES))
                where = [f"node-{i % (FULL_NODES - 1):05}" for i in range(FULL_PODS)]
                gpus = [int(i < (FULL_NODES - 1) * SLOTS) for i in range(FULL_PODS)]
                what = zip(where, gpus, strict=True)
                running = [pod(f"pod-{i:05}", rival.scheduler, n, node) for i, (node, n) in enumerate(what)]
                asyncio.run(_post(plane, PODS, running))
                begin = time.monotonic()
                rival.start(plane)
                asyncio.run(probe(plane, rival))
                seconds = time.monotonic() - begin
                time.sleep(5)
                spent, peak = plane.cpu()[rival.name], plane.peak_mib(rival.name)
            yield Figure(f"kube-restart-{rival.name}", seconds, "s", None, "", f"{spent:.1f} CPU-s of its own")
            yield Figure(f"kube-memory-{rival.name}", peak, "MiB", None, "", "what it keeps of each pod")


def recovery(bench: Bench) -> Iterator[Figure]:
    """A leader is killed while it binds 50 gangs of 8: seconds until all are bound, the longest of all runs."""
    if bench.has(KANT):
        runs = [recover() for _ in range(bench.repeats)]
        first = ", ".join(f"{each.first:.1f}" for each in runs)
        note = f"until all {ALL_PODS} are bound; {len(runs)} kills after {runs[0].bound}, the next bind after {first} s"
        yield Figure("kube-recovery-kant", max(each.whole for each in runs), "s", None, "", note)


def killed(bench: Bench) -> Iterator[Figure]:
    """The same with 10,000 pods on 1,000 nodes: seconds until the next leader binds, the longest of all runs."""
    if bench.has(KANT):
        runs = [recover(FULL_NODES // 5, FULL_PODS // 5) for _ in range(bench.repeats)]
        note = f"until the next bind; all {ALL_PODS} after {', '.join(f'{each.whole:.1f}' for each in runs)} s"
        yield Figure("kube-killed-kant", max(each.first for each in runs), "s", None, "", note)


def kubectl(bench: Bench) -> Iterator[Figure]:
    """One question of `kubectl kant`, a process of its own: CPU-seconds, the least of the runs, and by the clock."""
    if bench.has(KANT):
        for name, runs in questions(bench.repeats):
            best = min(runs, key=lambda each: each.cpu)
            yield Figure(f"kubectl-{name}", best.cpu, "CPU-s", None, "", f"{best.wall:.1f} s by the clock")


async def _create(plane: Plane, count: int) -> None:
    await _post(plane, NODES, nodes(count))


async def _post(plane: Plane, path: str, bodies: list[bytes]) -> None:
    async with Api(plane.config) as api:
        await api.post_all(path, bodies)


CASES = {
    each.__name__: each
    for each in (pods, gangs, submitted, large, blocked, idle, heartbeats, restart, recovery, killed, kubectl)
}


def measure(cases: Sequence[str] = tuple(CASES), repeats: int = 3, rivals: Sequence[str] = ()) -> Iterator[Figure]:
    """Every figure; Kant's only where this Kant has a driver for Kubernetes."""
    names = list(rivals) or [name for name in RIVALS if name != "kant" or has_kant()]
    bench = Bench(repeats, names)
    for case in cases:
        yield from CASES[case](bench)


def main() -> int:
    from benchmarks.__main__ import show

    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all of them where none is named")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rivals", default="", help=f"some of {','.join(RIVALS)}")
    asked = parser.parse_args()
    rivals = [name for name in asked.rivals.split(",") if name]
    if unknown := [name for name in rivals if name not in RIVALS]:
        parser.error(f"expected rivals among {', '.join(RIVALS)}, got {unknown[0]}")
    return 1 if show(measure(asked.cases or tuple(CASES), asked.repeats, rivals)) else 0


if __name__ == "__main__":
    sys.exit(main())
