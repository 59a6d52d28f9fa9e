"""Runs on a Ray cluster, each in its own task: no run is lost with a worker or a node.

A worker reports when it begins, and on which node; a run whose worker or node is lost is submitted again. Results
return to this process, which alone stores them, once each by their key. A worker refuses a run if its code differs from
that of this process, so a run on the cluster equals a local run. Workers are reused for further runs. Source: P. Moritz
et al., "Ray: A Distributed Framework for Emerging AI Applications", OSDI'18.
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
from kant.experiments.design import Experiment, PlannedRun
from kant.experiments.pool import LOOK_S, EndedRun, RunObserver, sentence, simulate
from kant.model.errors import InputError, missing_extra
from kant.scheduler.profile import Profile

RETRIES = 3
"""How often a run is restarted after its worker was lost."""
PATIENCE_S = 10.0
"""The timeout in seconds for a cluster to answer."""
LOOK_AT_NODES_S = 2.0
"""Seconds between two checks whether all nodes are alive."""
QUEUED = 2
"""Runs submitted to the cluster for each of its cores: one runs, and one is ready to follow it."""


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at `address`, which is in the format of `ray.init`.

    Raises InputError if Ray is not installed, or if no cluster of its version answers.
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
    """Check that HOST:PORT accepts connections, because Ray itself tries for ten minutes. Raises InputError."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--ray {address}", "the address of a Ray cluster that answers", reason) from None


def cores_of(ray: Any) -> int:
    """The present number of cores of the cluster, at least one."""
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def run_on_ray(
    ray: Any,
    experiment: Experiment,
    runs: Sequence[PlannedRun],
    at_once: int | None,
    stop: Callable[[], bool],
    watch: RunObserver,
) -> Iterator[EndedRun]:
    """Perform `runs` on the cluster and yield each as it ends. After `stop` the runs in progress are abandoned.

    At most `at_once` are submitted to the cluster at a time; None: two for each of its present cores.
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
                ended = _received(ray, line, handed[line], watch)
                if isinstance(ended, EndedRun):
                    del handed[line]
                    watch.ends(ended)
                    yield ended
                elif ended:
                    again = handed.pop(line).run
                    lost[again.key] += 1
                    if lost[again.key] <= RETRIES:
                        waiting.appendleft(again)
                    else:
                        final = EndedRun(again, 0.0, None, f"lost by the Ray cluster {lost[again.key]} times: {ended}")
                        watch.ends(final)
                        yield final
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
    """A run submitted to the cluster. `node` is the node on which it has begun; empty before that."""

    run: PlannedRun
    node: str = ""


def _hands(ray: Any, experiment: Experiment) -> Callable[[PlannedRun], Any]:
    """Return a function that submits a run to the cluster and returns its worker's stream of messages."""
    codes = {name: _code(profile) for name, profile in experiment.profiles.items()}
    # Pickled here and not by Ray, whose arrays are read-only: runs must see the same data as on one machine.
    sent = [ray.put(ray.cloudpickle.dumps(experiment))]
    task = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(on_worker)
    return lambda run: task.options(name=str(run)).remote(sent, run, codes[run.profile])


def _received(ray: Any, line: Any, handed: _Handed, watch: RunObserver) -> EndedRun | str:
    """Read a worker's message: it begins (""), how the run ended, or a sentence if the worker is lost."""
    try:
        node, summary, error, wall_s = ray.get(next(line))
    except ray.exceptions.RayError as loss:
        reason = str(loss).strip().partition("\n")[0]
        return f"{type(loss).__name__}: {reason}"
    if node:
        handed.node = node
        watch.begins(handed.run)
        return ""
    return EndedRun(handed.run, wall_s, summary, error)


def _taken_back(ray: Any, handed: dict[Any, _Handed], alive: set[str], some_gone: bool) -> list[PlannedRun]:
    """Remove and return the runs that have begun on a lost node or, with `some_gone`, may have begun on one.

    Ray itself waits for minutes for an unreachable worker. If the worker continues after all, its results are ignored.
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
"""On a worker: the experiment of its last run, by its object reference."""

Said = tuple[str, dict[str, Any] | None, str, float]


def on_worker(sent: list[Any], run: PlannedRun, code: str) -> Iterator[Said]:
    """The task of a worker: yields the node on which it begins, and then the summary or error, and the seconds."""
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
