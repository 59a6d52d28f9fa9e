"""Runs on a Ray cluster, a task each: a worker or a node that is lost takes no run with it.

A worker says when it begins, and on which node; a run whose worker or node is lost is handed to the cluster again.
Results come back to this process, which alone writes them down, once each by their key. A worker refuses a run where
its code is not that of this process, so a run on the cluster is the run that it would be here. Workers live on from run
to run. Source: P. Moritz et al., "Ray: A Distributed Framework for Emerging AI
Applications", OSDI'18.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kant import __version__
from kant.experiments.code import code_digest
from kant.experiments.design import Experiment, Run
from kant.experiments.pool import LOOK_S, Ended, Watch, sentence, simulate
from kant.model.errors import InputError, missing_extra
from kant.scheduler.profile import Profile

RETRIES = 3
"""How often a run is begun anew whose worker was lost."""
PATIENCE_S = 10.0
"""Seconds in which a cluster has to answer."""
LOOK_AT_NODES_S = 2.0
"""Seconds between two looks at whether all nodes are there."""
QUEUED = 2
"""Runs handed to the cluster for each of its cores: one runs, one is there when it ends."""


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at `address` as `ray.init` understands it.

    Raises InputError where Ray is not installed, or where no cluster of its version answers.
    """
    try:
        import ray
    except ImportError:
        raise missing_extra("ray") from None
    _answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # ConnectionError, ValueError, RuntimeError of another version, and gRPC's own
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"--ray {address}", "the address of a Ray cluster that answers", reason) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Ask whether anybody listens at HOST:PORT, for Ray itself asks for ten minutes. Raises InputError."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--ray {address}", "the address of a Ray cluster that answers", reason) from None


def cores_of(ray: Any) -> int:
    """The cores that the cluster has now, at least one."""
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def run_on_ray(
    ray: Any, experiment: Experiment, runs: Sequence[Run], at_once: int | None, stop: Callable[[], bool], watch: Watch
) -> Iterator[Ended]:
    """Do `runs` on the cluster and give each as it ends. After `stop` those under way are dropped.

    At most `at_once` are handed to the cluster at a time; None: two for each of its cores, as many as it has then.
    """
    hand = _hands(ray, experiment)
    waiting = deque(runs)
    handed: dict[Any, _Handed] = {}
    lost: Counter[str] = Counter()
    alive, look_at = _alive(ray), time.monotonic() + LOOK_AT_NODES_S
    try:
        while (handed or waiting) and not stop():
            while waiting and len(handed) < (at_once or QUEUED * cores_of(ray)):
                run = waiting.popleft()
                handed[hand(run)] = _Handed(run)
            for line in ray.wait(list(handed), timeout=LOOK_S)[0]:
                ended = _heard(ray, line, handed[line], watch)
                if isinstance(ended, Ended):
                    del handed[line]
                    watch.ends(ended)
                    yield ended
                elif ended:
                    again = handed.pop(line).run
                    lost[again.key] += 1
                    if lost[again.key] <= RETRIES:
                        waiting.appendleft(again)
                    else:
                        told = Ended(again, 0.0, None, f"lost by the Ray cluster {lost[again.key]} times: {ended}")
                        watch.ends(told)
                        yield told
            if time.monotonic() > look_at:
                before, alive = alive, _alive(ray)
                look_at = time.monotonic() + LOOK_AT_NODES_S
                waiting.extendleft(_taken_back(ray, handed, alive, some_gone=bool(before - alive)))
            watch.ticks()
    finally:
        for line in handed:
            _cancel(ray, line)


@dataclass(slots=True)
class _Handed:
    """A run handed to the cluster; `node` is where it has begun, empty before."""

    run: Run
    node: str = ""


def _hands(ray: Any, experiment: Experiment) -> Callable[[Run], Any]:
    """What hands a run to the cluster, and gives the line on which its worker speaks."""
    codes = {name: _code(profile) for name, profile in experiment.profiles.items()}
    # Pickled here, and not by Ray, whose arrays cannot be written: the runs are to see what they see on one machine.
    sent = [ray.put(ray.cloudpickle.dumps(experiment))]
    task = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(on_worker)
    return lambda run: task.options(name=str(run)).remote(sent, run, codes[run.profile])


def _heard(ray: Any, line: Any, handed: _Handed, watch: Watch) -> Ended | str:
    """What a worker says: that it begins (an empty text) or how the run ended; or a sentence that it is lost."""
    try:
        node, summary, error, wall_s = ray.get(next(line))
    except ray.exceptions.RayError as loss:
        reason = str(loss).strip().partition("\n")[0]
        return f"{type(loss).__name__}: {reason}"
    if node:
        handed.node = node
        watch.begins(handed.run)
        return ""
    return Ended(handed.run, wall_s, summary, error)


def _taken_back(ray: Any, handed: dict[Any, _Handed], alive: set[str], some_gone: bool) -> list[Run]:
    """The runs that have begun on a node that is gone, or with `some_gone` may have; they are `handed` no more.

    Ray itself waits for minutes for a worker that it cannot reach. Should it go on nobody hears of it.
    """
    gone = [line for line, entry in handed.items() if (entry.node or some_gone) and entry.node not in alive]
    for line in gone:
        _cancel(ray, line)
    return [handed.pop(line).run for line in reversed(gone)]


def _cancel(ray: Any, line: Any) -> None:
    with suppress(ray.exceptions.RayError):
        ray.cancel(line, force=True)


def _alive(ray: Any) -> set[str]:
    """The nodes that the cluster can reach."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _code(profile: Profile) -> str:
    """The digest of the code that decides under a profile."""
    return code_digest(profile.order, profile.discipline, profile.placement, *profile.placements)


_known: dict[str, Experiment] = {}
"""On a worker: the experiment of its last run, by the reference to it."""

Said = tuple[str, dict[str, Any] | None, str, float]


def on_worker(sent: list[Any], run: Run, code: str) -> Iterator[Said]:
    """What a worker does: it says on which node it begins, and then the summary or what was wrong, and its seconds."""
    import ray

    yield (ray.get_runtime_context().get_node_id(), None, "", 0.0)
    began = time.monotonic()
    summary, error = None, ""
    try:
        key = sent[0].hex()
        if key not in _known:
            _known.clear()
            _known[key] = ray.cloudpickle.loads(ray.get(sent[0]))
        experiment = _known[key]
        if _code(experiment.profiles[run.profile]) != code:
            where = f"a worker on {socket.gethostname()}"
            raise InputError(where, "the same code of Kant as where the sweep was started", __version__)
        summary = simulate(experiment, run, lambda part: None, lambda: False)
    except Exception as problem:
        error = sentence(problem)
    yield ("", summary, error, time.monotonic() - began)
