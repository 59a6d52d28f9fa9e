"""Turn rows of a workload into jobs with pod groups, and with the run-time estimates that policies see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.model.cut import blocks_for, pods_of
from kant.model.errors import StateError
from kant.model.event import JobSubmitted
from kant.model.job import LEVELS, Demand, Job, PodGroup
from kant.model.mig import profile_on, usual_milli
from kant.model.node import ClusterSpec
from kant.model.units import FOREVER, GPU, SECOND
from kant.sim.options import SimOptions
from kant.workload.workload import Workload, only_value

CHUNK = 512

NAMES = ("", *LEVELS)
"""Level names, by the codes of a workload."""

PODS = ("pods", "gpus", "milli", "cpu")
WHERE = ("island", "mig", "models", "queue")
SHAPE = ("memory", "segment", "segment_within", "floor")
"""The columns that the groups of a job depend on."""

LARGE = 1 << 31
"""Two numbers below this bound can be combined into one number of 62 bits."""

Groups = tuple[PodGroup, ...]


class Gangs:
    """Makes the pod groups of jobs; jobs with equal requests share one object."""

    def __init__(self, cluster: ClusterSpec, by_gpu: bool) -> None:
        self.by_gpu = by_gpu
        self._nodes = cluster.nodes
        self._named = {queue for node in cluster.nodes for queue in node.queues}
        self._blocks: dict[tuple[tuple[str, ...], str, int, int, bool], Counter[int]] = {}
        self._made: dict[
            tuple[int, int, int, int, int, int, str, tuple[str, ...], str, int, int, int], Groups
        ] = {}  # the groups for each set of arguments of `of`

    def of(
        self, pods: int, gpus: int, milli: int, cpu: int, memory: int, island: int = 0, mig: str = "",
        models: tuple[str, ...] = (), segment: int = 0, level: int = 0, floor: int = 0, queue: str = "",
    ) -> Groups:  # fmt: skip
        """Return the pod groups of a job; with `pods` 0, `gpus` is a total that is cut into whole nodes and a
        remainder.

        Only nodes that a job of `queue` on one of `models` may use count (model/cut.py). With `island` each pod must
        lie in one NVLink island, and a total is cut into whole islands. With `mig` each pod is one instance of that
        profile; its size is that on the first node of `models` that offers it. Each `segment` pods in a row must lie
        in one domain of `level` (1 + its index in LEVELS); 0 and 0: no constraint. An elastic gang can run with `floor`
        pods; 0 for other jobs.
        """
        by_node = not pods
        if queue not in self._named:  # its jobs may use the nodes open to all queues
            queue = ""
        key = (
            pods, gpus, milli, cpu, memory, island, mig, models if mig or by_node else (), queue if by_node else "",
            segment, level, floor,
        )  # fmt: skip
        groups = self._made.get(key)
        if groups is None:
            if mig:
                demand = Demand(1, self._milli_of(mig, models), cpu, memory, mig=mig)
                groups = (PodGroup(max(pods, 1), demand),)
            else:
                groups = self._make(pods, gpus, milli, cpu, memory, island, floor, models, queue)
            if level:
                cut = LEVELS[level - 1]
                groups = tuple(
                    replace(group, within=cut, segment=segment) if group.count > 1 else group for group in groups
                )
            self._made[key] = groups
        return groups

    def _milli_of(self, mig: str, models: tuple[str, ...]) -> int:
        """Return the size of a MIG profile on this cluster in milli-GPUs; the usual size if no node offers it."""
        here = [node.mig for node in self._nodes if node.mig and (not models or node.model in models)]
        found = (profile_on(geometry, mig) for geometry in here)
        return next((offer[0] for offer in found if offer is not None), usual_milli(mig))

    def _make(
        self, pods: int, gpus: int, milli: int, cpu: int, memory: int, island: int, floor: int,
        models: tuple[str, ...], queue: str,
    ) -> Groups:  # fmt: skip
        def demand(devices: int) -> Demand:
            return Demand(devices, milli if devices else GPU, cpu, memory, bool(island) and devices > 1)

        if pods > 0:
            return (PodGroup(pods, demand(gpus), floor=floor),)
        if self.by_gpu and gpus > 0:
            return (PodGroup(gpus, demand(1)),)
        asked = models, queue, cpu, memory, bool(island)
        if asked not in self._blocks:
            self._blocks[asked] = blocks_for(self._nodes, *asked)
        return tuple([PodGroup(count, demand(each)) for count, each in pods_of(gpus, self._blocks[asked])])


def run_times(workload: Workload, options: SimOptions) -> np.ndarray:
    """Return the true run time of each job, microseconds at full speed."""
    if options.slowdown_permille == 1000 and not options.extra_runtime_s:
        return workload.runtime
    return workload.runtime * options.slowdown_permille // 1000 + options.extra_runtime_s * SECOND


def estimates(workload: Workload, options: SimOptions, truth: np.ndarray, seed: int) -> np.ndarray:
    """Return the run times that policies know, microseconds; -1: unknown.

    With an `estimate_factor` f each is multiplied by a random factor, log-uniform from 1 to f, since users overestimate
    (after the f-model of Mu'alem and Feitelson, IEEE TPDS 12(6), 2001, whose factors are uniform).
    """
    known: np.ndarray = {"perfect": truth, "limit": workload.limit, "none": np.full(len(workload), -1)}[
        options.estimates
    ]
    if options.estimate_factor == 1:
        return known
    draw = np.random.Generator(np.random.PCG64([seed, 0xF]))
    longer = known * options.estimate_factor ** draw.random(len(workload))
    return np.where(known >= 0, np.minimum(np.rint(longer), FOREVER // 2), -1).astype(np.int64)


class Arrivals(Iterator[JobSubmitted]):
    """The submissions in order, built on demand. `at` is the number of the next submission.

    A job of run time 0 ends in the instant in which it starts; with the speed `interval-overhead`, a microsecond later.
    """

    def __init__(self, workload: Workload, gangs: Gangs, options: SimOptions, seed: int = 0) -> None:
        self.workload = workload
        self.at = 0
        truth, least = run_times(workload, options), 1 if options.speed == "interval-overhead" else 0
        if truth.min(initial=least) < least:
            truth = np.maximum(truth, least)
        estimate = estimates(workload, options, truth, seed)
        limits = np.where(workload.limit > 0, workload.limit, -1) if options.enforce_limits else _none(len(truth))
        rigid = options.static or options.speed == "interval-overhead"  # these support one size only
        kinds, asked = _alike(workload, (*PODS, *WHERE, *SHAPE))
        self._columns = (
            kinds, workload.submit, workload.queue, workload.user, workload.models, workload.priority, estimate, truth,
            workload.overhead, limits, workload.due, workload.title, workload.base_job, workload.preemptible,
            workload.within, workload.within_required, workload.affinity, workload.apart, workload.apart_required,
            workload.near, workload.training,
        )  # fmt: skip
        self._made = [_groups(workload, gangs, row, rigid) for row in asked.tolist()]
        self.checkpoint = -1 if options.checkpoint_s in (None, -1) else options.checkpoint_s * SECOND
        self._retries = options.retries
        self._chunk = -1
        self._rows: dict[int, tuple[int, ...]] = {}

    def event(self, number: int) -> JobSubmitted:
        """Return the submission of this number without advancing."""
        at, chunk, rows = self.at, self._chunk, self._rows
        if number // CHUNK != chunk:
            self._rows = {number % CHUNK: tuple([column.item(number) for column in self._columns])}
        self.at, self._chunk = number, number // CHUNK
        found = next(self)
        self.at, self._chunk, self._rows = at, chunk, rows
        return found

    def __next__(self) -> JobSubmitted:
        number, workload = self.at, self.workload
        if number == len(workload):
            raise StopIteration
        self.at += 1
        if number // CHUNK != self._chunk:
            self._chunk = number // CHUNK
            span = slice(self._chunk * CHUNK, (self._chunk + 1) * CHUNK)
            rows = zip(*[_values(column, span) for column in self._columns], strict=False)
            self._rows = dict(enumerate(rows))
        (
            kind, submit, queue, user, model, priority, guess, runtime, overhead, limit, due, title, base,
            preemptible, level, required, affinity, apart, apart_required, near, training,
        ) = self._rows[number % CHUNK]  # fmt: skip
        job = Job(
            workload.ids[number], submit, self._made[kind], workload.queues[queue], workload.users[user], priority,
            workload.model_sets[model], guess, bool(preemptible), workload.titles[title], limit, due, self.checkpoint,
            self._retries, workload.ids[base] if base >= 0 else "", NAMES[level], bool(required),
            workload.affinities[affinity], NAMES[apart], bool(apart_required), NAMES[near],
            training=workload.trainings[training],
        )  # fmt: skip
        return JobSubmitted(submit, job, runtime, overhead)

    def kinds(self) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the kind of each submission, and which kinds are simple.

        Jobs of a simple kind have no property beyond the columns of the job table. Raises StateError if two jobs
        have one name: compiled instants forget names (`Advancer`).
        """
        ids = self.workload.ids
        if len(set(ids)) < len(ids):
            raise StateError(f"job {Counter(ids).most_common(1)[0][0]!r} was submitted twice")
        (_, submit, _, _, _, priority, estimate, _, _, limit, due, _, base, *_) = self._columns
        workload = self.workload
        special = (limit >= 0) | (base >= 0) | (workload.affinity > 0) | (workload.apart > 0) | (workload.near > 0)
        for column in (submit, estimate, priority, due):
            special |= abs(column) >= FOREVER
        asked = _alike(workload, (*PODS, *WHERE, *SHAPE, "within", "within_required", "training"))
        self._queues, self._users = _by_name(workload.queues), _by_name(workload.users)
        kinds, count = asked[0], len(asked[1])
        kinds[special] += count
        return kinds, np.arange(2 * count) < count

    def columns(self, span: slice, kinds: NDArray[np.int32]) -> Table:
        """Return some submissions as a table (`advance.py`); `kinds` has the kinds of all submissions."""
        (_, submit, queue, user, _, priority, estimate, truth, _, _, due, _, _, preemptible, *_) = self._columns
        queue, user = self._queues[queue[span]], self._users[user[span]]
        return np.array([
            submit[span], truth[span], queue, user, kinds[span], estimate[span], priority[span], preemptible[span],
            due[span],
        ]).T  # fmt: skip


def _by_name(names: Sequence[str]) -> NDArray[np.int64]:
    """Return, for each code, the first code with the same name."""
    first = {name: code for code, name in reversed(list(enumerate(names)))}
    return np.array([first[name] for name in names], dtype=np.int64)


def _none(length: int) -> np.ndarray:
    return np.broadcast_to(np.int64(-1), length)  # one value in memory for all jobs


def _groups(workload: Workload, gangs: Gangs, row: int, rigid: bool) -> Groups:
    """Return the groups of one job. A `rigid` gang has no floor."""
    pods, gpus, milli, cpu = [getattr(workload, name).item(row) for name in PODS]
    island, profile, models, queue = _where(workload, row)
    memory, segment, level, floor = [getattr(workload, name).item(row) for name in SHAPE]
    return gangs.of(
        pods, gpus, milli, cpu, memory, island, profile, models, segment, level, 0 if rigid else floor, queue=queue
    )


def _where(workload: Workload, row: int) -> tuple[int, str, tuple[str, ...], str]:
    """Return a job's constraints on nodes: island, MIG profile, GPU models, queue."""
    mig, models, queue = workload.mig.item(row), workload.models.item(row), workload.queue.item(row)
    return workload.island.item(row), workload.profiles[mig], workload.model_sets[models], workload.queues[queue]


def _values(column: np.ndarray, span: slice) -> Iterator[int]:
    """Iterate over part of a column as integers; a column with one value for all jobs is not expanded."""
    value = only_value(column)
    return iter(column[span].tolist()) if value is None else repeat(value)


def _alike(workload: Workload, names: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Group jobs that are equal in these columns: the kind number of each job, and one job of each kind."""
    code, kinds = np.zeros(len(workload), dtype=np.int64), 1
    for name in names:
        column = getattr(workload, name)
        if not len(column) or only_value(column) is not None:
            continue
        low, width = int(column.min()), int(column.max()) - int(column.min()) + 1
        if width > LARGE:
            known, column = np.unique(column, return_inverse=True)
            low, width = 0, len(known)
        if kinds > LARGE:
            known, code = np.unique(code, return_inverse=True)
            kinds = len(known)
        code, kinds = code * width + (column - low), kinds * width
    _, jobs, numbers = np.unique(code, return_index=True, return_inverse=True)
    return numbers.astype(np.int32), jobs


def typical_pods(
    workload: Workload, gangs: Gangs, share: float, pools_of: Callable[[tuple[str, ...], tuple[str, int]], int]
) -> np.ndarray:
    """Return the most frequent pods that together make up `share` of all pods, as rows (cpu, gpus, milli, pool mask,
    count).

    Classes go by count, the larger class first on ties (Weng et al., USENIX ATC 2023, section 4.2). `pools_of` returns
    as bits the pools that admit a set of GPU models and a MIG profile of a size ("", 0: none).
    """
    numbers, jobs = _alike(workload, (*PODS, *WHERE))
    tally: dict[tuple[int, int, int, tuple[str, ...], str], int] = {}
    for row, count in zip(jobs.tolist(), np.bincount(numbers, minlength=len(jobs)).tolist(), strict=True):
        pods, gpus, milli, cpu = [getattr(workload, name).item(row) for name in PODS]
        island, profile, models, queue = _where(workload, row)
        for group in gangs.of(pods, gpus, milli, cpu, 0, island, profile, models, queue=queue):
            demand = group.demand
            key = (demand.cpu, demand.milli if demand.gpus else 0, demand.gpus, models, demand.mig)
            tally[key] = tally.get(key, 0) + group.count * count
    ranked = sorted(tally.items(), key=lambda entry: (entry[1], entry[0]), reverse=True)
    rows, seen, total = [], 0, sum(tally.values())
    for (cpu, milli, gpus, models, mig), count in ranked:
        if seen >= share * total:
            break
        rows.append((cpu, gpus, milli, pools_of(models, (mig, milli if mig else 0)), count))
        seen += count
    return np.array(rows, dtype=np.int64).reshape(-1, 5)
