"""The allocator: finds devices for all of some claims, or none, by an exhaustive search with a limit on its steps.

Claims that have no pool in common are searched separately, so that the search does not grow with the product of a
gang's nodes. Of devices that are equivalent for the claims, only one is tried.

The order of the search is that of k8s.io/dynamic-resource-allocation, structured: claims and requests in their order,
the first alternative of a request first, devices by driver, pool, slice and position in the slice.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kant.kube.objects import views as k
from kant.kube.translate.device_capacity import Taken, taken_of
from kant.kube.translate.device_claims import MOST_DEVICES, Asked, Want
from kant.kube.translate.devices import Candidate, Counter, DeviceId, PoolId
from kant.kube.translate.selectors import tolerates

STEPS = 20_000
"""Maximum number of choices in one search."""


class TooHardError(Exception):
    """The search has reached its limit of steps without a result."""


class Grant(NamedTuple):
    """A device that a request gets."""

    want: Want
    device: Candidate

    @property
    def taken(self) -> dict[str, int]:
        """How much the request uses of a shared device, by capacity, in billionths; {} for other devices."""
        return (taken_of(dict(self.want.capacity), self.device.limits) or {}) if self.device.shared else {}


class Task(NamedTuple):
    """A claim that needs some of `devices`, all of which its pods can use.

    `incomplete`: ResourceSlices of a pool are missing, so a request for all of its devices fails.
    """

    asked: Asked
    devices: tuple[Candidate, ...]
    incomplete: bool = False


class Free(NamedTuple):
    """What may be allocated: whether a device is free; how much is `left` of a counter; whether a device matches a
    request; and how much of a shared device other claims have `spent`."""

    is_free: Callable[[DeviceId], bool]
    left: Callable[[Counter], int]
    matches: Callable[[Want, Candidate, str], bool]
    spent: Callable[[DeviceId], Taken] = lambda _: {}


def allocate(tasks: Sequence[Task], free: Free, steps: int = STEPS) -> list[list[Grant]] | None:
    """Return devices for each task; None if not all can be satisfied. Raises TooHardError, SelectorError."""
    found: list[list[Grant]] = [[] for _ in tasks]
    for part in _apart(tasks):
        grants = _Search([tasks[at] for at in part], free, steps).run()
        if grants is None:
            return None
        for at, own in zip(part, grants, strict=True):
            found[at] = own
    return found


def _apart(tasks: Sequence[Task]) -> list[list[int]]:
    """Return the tasks in groups that have no pool in common. Tasks of a group are in the order of `tasks`."""
    parts: list[tuple[set[PoolId], list[int]]] = []
    for at, task in enumerate(tasks):
        pools, members = {one.pool for one in task.devices}, [at]
        apart = []
        for own, others in parts:
            if own & pools:
                pools, members = pools | own, [*others, *members]
            else:
                apart.append((own, others))
        parts = [*apart, (pools, members)]
    return [sorted(members) for _, members in parts]


class _At(NamedTuple):
    """A position of the search: task, request, its alternative (-1: not chosen), and the next device to try."""

    task: int
    request: int
    alternative: int = -1
    first: int = 0
    lacking: int = 0


class _Step(NamedTuple):
    """The grants that one choice of the search adds, and the position after it."""

    grants: tuple[Grant, ...]
    then: _At


@dataclass(slots=True)
class _Search:
    tasks: Sequence[Task]
    free: Free
    steps: int
    grants: list[list[Grant]] = field(default_factory=list)
    taken: Tally[DeviceId] = field(default_factory=Tally)  # how often each device has been allocated
    spent: dict[DeviceId, Tally[str]] = field(default_factory=dict)  # used capacity of shared devices
    used: dict[Counter, int] = field(default_factory=dict)
    likeness: dict[tuple[int, DeviceId], object] = field(default_factory=dict)

    def run(self) -> list[list[Grant]] | None:
        """Search depth first. The stack is explicit: a gang may need more devices than Python's recursion limit."""
        self.grants = [[] for _ in self.tasks]
        at = self._settled(_At(0, 0))
        if at.task == len(self.tasks):
            return self.grants
        stack: list[tuple[_At, Iterator[_Step], _Step | None]] = [(at, self._steps(at), None)]
        while stack:
            at, choices, _ = stack[-1]
            step = next(choices, None)
            if step is None:
                _, _, before = stack.pop()
                if before is not None:
                    self._undo(stack[-1][0].task, before)
                continue
            self.steps -= 1
            if self.steps < 0:
                raise TooHardError
            self._do(at.task, step)
            then = self._settled(step.then)
            if then.task == len(self.tasks):
                return self.grants
            stack.append((then, self._steps(then), step))
        return None

    def _settled(self, at: _At) -> _At:
        """Return the first position, from this one on, at which there is something to choose."""
        while at.task < len(self.tasks):
            if at.request == len(self.tasks[at.task].asked.requests):
                at = _At(at.task + 1, 0)
            elif at.alternative >= 0 and at.lacking == 0:
                at = _At(at.task, at.request + 1)
            else:
                break
        return at

    def _steps(self, at: _At) -> Iterator[_Step]:
        """Yield the choices at a position; the caller undoes each before it takes the next."""
        task = self.tasks[at.task]
        alternatives = task.asked.requests[at.request]
        if at.alternative < 0:
            for number, want in enumerate(alternatives):
                if want.number:
                    yield _Step((), _At(at.task, at.request, number, 0, want.number))
                elif (grants := self._everything(at.task, want)) is not None:
                    yield _Step(grants, _At(at.task, at.request, number))
            return
        want = alternatives[at.alternative]
        tried: set[object] = set()
        for number in range(at.first, len(task.devices) - at.lacking + 1):
            device = task.devices[number]
            if not self.free.matches(want, device, task.asked.namespace) or not self._can(at.task, want, device):
                continue
            had = (self._spent(device), self._is_first(device)) if device.shared else ()
            like = self._likeness(at.task, device), had
            if like not in tried:
                tried.add(like)
                then = _At(at.task, at.request, at.alternative, number + 1, at.lacking - 1)
                yield _Step((Grant(want, device),), then)

    def _everything(self, at: int, want: Want) -> tuple[Grant, ...] | None:
        """Return all matching devices; None if there is none, or if one of them cannot be allocated."""
        task = self.tasks[at]
        if task.incomplete:
            return None
        found = [one for one in task.devices if self.free.matches(want, one, task.asked.namespace)]
        if not found or len(self.grants[at]) + len(found) > MOST_DEVICES:
            return None
        done: list[_Step] = []
        for device in found:
            if not self._can(at, want, device):
                break
            done.append(_Step((Grant(want, device),), _At(at, 0)))
            self._do(at, done[-1])
        for step in reversed(done):
            self._undo(at, step)
        return tuple(step.grants[0] for step in done) if len(done) == len(found) else None

    def _can(self, at: int, want: Want, device: Candidate) -> bool:
        """Whether the device can be allocated to the claim of task `at`, in addition to the present grants."""
        if not device.usable or len(self.grants[at]) >= MOST_DEVICES:
            return False
        if any(taint.effect in ("NoSchedule", "NoExecute") and not _bears(want, taint) for taint in device.taints):
            return False
        if not device.shared and any(one.device is device for one in self.grants[at]):
            return False  # a claim gets a device only once, with or without administrative access
        if (want.capacity or device.shared) and not self._has_room(want, device):
            return False
        if not want.admin:
            if not device.shared and not self._is_first(device):
                return False
            if self._is_first(device) and any(
                self.used.get(counter, 0) + amount > self.free.left(counter) for counter, amount in device.takes
            ):
                return False
        return all(
            self._agrees(at, device, constraint.attribute, constraint.distinct, constraint.is_about)
            for constraint in self.tasks[at].asked.constraints
            if constraint.is_about(want)
        )

    def _is_first(self, device: Candidate) -> bool:
        """Whether no claim has the device yet. Of the claims that share a device, only the first uses its counters."""
        return not self.taken[device.id] and self.free.is_free(device.id)

    def _spent(self, device: Candidate) -> tuple[int, ...]:
        """Return how much of each capacity of a shared device is used, in billionths."""
        others, own = self.free.spent(device.id), self.spent.get(device.id, Tally())
        return tuple(others.get(name, 0) + own[name] for name in device.limits)

    def _has_room(self, want: Want, device: Candidate) -> bool:
        """Whether the device has the requested capacity, and, if it is shared, enough of it left."""
        taken = taken_of(dict(want.capacity), device.limits)
        if taken is None or not device.shared or want.admin:
            return taken is not None
        had = dict(zip(device.limits, self._spent(device), strict=True))
        return all(had[name] + taken[name] <= limit.value for name, limit in device.limits.items())

    def _agrees(
        self, at: int, device: Candidate, attribute: str, distinct: bool, is_about: Callable[[Want], bool]
    ) -> bool:
        value = device.attribute(attribute)
        if value is None:
            return False
        others = (one.device.attribute(attribute) for one in self.grants[at] if is_about(one.want))
        return all((other != value) if distinct else (other == value) for other in others)

    def _do(self, at: int, step: _Step) -> None:
        for one in step.grants:
            self.grants[at].append(one)
            if not one.want.admin:
                for counter, amount in one.device.takes if self._is_first(one.device) else ():
                    self.used[counter] = self.used.get(counter, 0) + amount
                self.taken[one.device.id] += 1
                if one.device.shared:
                    self.spent.setdefault(one.device.id, Tally()).update(one.taken)

    def _undo(self, at: int, step: _Step) -> None:
        for one in reversed(step.grants):
            self.grants[at].pop()
            if not one.want.admin:
                self.taken[one.device.id] -= 1
                for counter, amount in one.device.takes if self._is_first(one.device) else ():
                    self.used[counter] -= amount
                if one.device.shared:
                    self.spent[one.device.id].subtract(one.taken)

    def _likeness(self, at: int, device: Candidate) -> object:
        """Return a key that is equal for devices that are equivalent for the tasks from number `at` on."""
        known = self.likeness.get((at, device.id))
        if known is None:
            asked = [
                (task.asked.namespace, number, want)
                for number, task in enumerate(self.tasks)
                if number >= at
                for alternatives in task.asked.requests
                for want in alternatives
            ]
            attributes = {one.attribute for task in self.tasks[at:] for one in task.asked.constraints}
            known = self.likeness[at, device.id] = (
                tuple(self.free.matches(want, device, namespace) for namespace, _, want in asked),
                tuple(sorted((name, repr(device.attribute(name))) for name in attributes)),
                device.takes,
                tuple(device.limits.items()) if device.shared or any(want.capacity for _, _, want in asked) else (),
                device.shared,
                device.reach,
                device.taints,
            )
        return known


def _bears(want: Want, taint: k.Taint) -> bool:
    return any(tolerates(one, (taint.key, taint.value, taint.effect)) for one in want.tolerations)
