"""What stands behind a reason: typed facts about the state, each with its numbers and a sentence.

Amounts are milli-GPUs, milli-cores or MiB, times microseconds on the run's clock.
"""

from __future__ import annotations

from msgspec import Struct

from kant.model.decision import Reason, amount, sentence
from kant.model.units import FOREVER, GPU, clock, show_duration


class _Fact(Struct, frozen=True, tag_field="about"):
    pass


class Free(_Fact, frozen=True, tag="free"):
    """Of the pools that admit the job: `free` of `capacity` milli-GPUs in service, on `on` of `nodes` nodes."""

    free: int
    capacity: int
    on: int
    nodes: int


class Fitting(_Fact, frozen=True, tag="fitting"):
    """`now` of `nodes` nodes take a pod of the group: `gpus` devices with `milli` thousandths of each free.

    They take `takes` of its `pods` together. `devices_only` more nodes have these devices, but not the CPU or memory.
    `needed` is the fewest nodes on which the group could lie if they were empty. With `island` the devices of a pod
    must lie in one NVLink island, with `mig` it asks for a MIG instance of that profile.
    """

    group: int
    gpus: int
    milli: int
    pods: int
    takes: int
    now: int
    nodes: int
    needed: int
    devices_only: int
    island: bool = False
    mig: str = ""


class Holder(_Fact, frozen=True, tag="holder"):
    """The running `jobs` of `queue` hold `held` milli-GPUs of the pools that admit the job."""

    queue: str
    held: int
    jobs: int


class Ending(_Fact, frozen=True, tag="ending"):
    """`job` is one of those that end next: expected at `at` (-1: nobody knows), it gives `held` milli-GPUs back."""

    job: str
    held: int
    at: int


class QuotaUse(_Fact, frozen=True, tag="quota"):
    """Of a quota of `queue`: `nominal` is its own, with what queues below it may lend; `used` is in use.

    `borrowed` is how far it is beyond, `lent` how much of what it does not use others keep from it now.
    """

    queue: str
    model: str
    resource: str
    nominal: int
    used: int
    borrowed: int
    lent: int


class UserUse(_Fact, frozen=True, tag="user"):
    """`user` holds `held` of a resource in `queue` and below, of at most `limit`."""

    user: str
    queue: str
    resource: str
    held: int
    limit: int


class Borrower(_Fact, frozen=True, tag="borrower"):
    """`queue` uses `borrowed` more than its own quota."""

    queue: str
    resource: str
    borrowed: int


class Promise(_Fact, frozen=True, tag="promise"):
    """`job` was promised at `since` to have `gpus` milli-GPUs on `nodes` nodes from `start` to `end`.

    With `own` it is the waiting job itself.
    """

    job: str
    since: int
    start: int
    end: int
    gpus: int
    nodes: int
    own: bool = False


class Blocker(_Fact, frozen=True, tag="blocker"):
    """`job` has to go first, and waits since `since` because of `reason` (None: it can start).

    With `same` it asks for the very same as the waiting job, so where the one does not fit, nor does the other.
    """

    job: str
    since: int
    reason: Reason | None
    same: bool = False


Fact = Free | Fitting | Holder | Ending | QuotaUse | UserUse | Borrower | Promise | Blocker


# --- What would free it: single changes, each tried --------------------------------------------------------------


class _Remedy(Struct, frozen=True, tag_field="if"):
    pass


class Ends(_Remedy, frozen=True, tag="ends"):
    """It has a place once all of `jobs` have ended and nobody else takes it: expected at `at` (-1: nobody knows).

    No single one can be left out (of more than 64: not without another placement). `more` are only counted.
    """

    jobs: tuple[str, ...]
    at: int
    more: int = 0


class MoreQuota(_Remedy, frozen=True, tag="quota"):
    """Its quota lets it pass with `more` of a resource in `queue`; `then` is what is missing then (None: nothing)."""

    queue: str
    model: str
    resource: str
    more: int
    limit: str
    then: Reason | None


class Shorter(_Remedy, frozen=True, tag="shorter"):
    """It starts now if it runs for at most `runtime` microseconds."""

    runtime: int


class Starts(_Remedy, frozen=True, tag="starts"):
    """`job` starts, or leaves; `then` is what is missing now without it (None: nothing)."""

    job: str
    then: Reason | None


class Opens(_Remedy, frozen=True, tag="opens"):
    """`queue` starts jobs again; `then` is what is missing then as things are now (None: nothing)."""

    queue: str
    then: Reason | None


class Time(_Remedy, frozen=True, tag="time"):
    """Its back-off ends at `at`; `then` is what is missing then as things are now (None: nothing)."""

    at: int
    then: Reason | None


Remedy = Ends | MoreQuota | Shorter | Starts | Opens | Time


def _of(model: str) -> str:
    return f" of {model}" if model else ""


def _gpus(milli: int) -> str:
    return "1 GPU" if milli == GPU else f"{milli / GPU:g} GPUs"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def fact(found: Fact) -> str:
    """A fact for people."""
    match found:
        case Free(free=free, capacity=capacity, on=on, nodes=nodes):
            return f"{free / GPU:g} of {_gpus(capacity)} are free in all, on {on:,} of {_count(nodes, 'node')}"
        case Fitting():
            return _fitting(found)
        case Holder(queue=queue, held=held, jobs=jobs):
            return (
                f"{f'queue {queue}' if queue else 'jobs without a queue'} holds {_gpus(held)} ({_count(jobs, 'job')})"
            )
        case Ending(job=job, held=held, at=at):
            when = f"is expected to end at {clock(at)}" if at >= 0 else "ends nobody knows when"
            return f"job {job} {when} and holds {_gpus(held)}"
        case QuotaUse(queue=queue, model=model, resource=resource, nominal=nominal, used=used):
            text = (
                f"queue {queue} uses {amount(used, resource)} of its quota of {amount(nominal, resource)}{_of(model)}"
            )
            if found.borrowed:
                return f"{text}: it borrows {amount(found.borrowed, resource)}"
            return f"{text}: {amount(found.lent, resource)} of the rest are in use by others" if found.lent else text
        case UserUse(user=user, queue=queue, resource=resource, held=held, limit=limit):
            return f"user {user} holds {amount(held, resource)} of at most {amount(limit, resource)} in queue {queue}"
        case Borrower(queue=queue, resource=resource, borrowed=borrowed):
            return f"queue {queue} uses {amount(borrowed, resource)} more than its own quota"
        case Promise(job=job, since=since, start=start, end=end, gpus=gpus, nodes=nodes, own=own):
            until = f" to {clock(end)}" if end < FOREVER else " on"
            return (
                f"{'it' if own else f'job {job}'} is promised {_gpus(gpus)} on {_count(nodes, 'node')} "
                f"from {clock(start)}{until} (since {clock(since)})"
            )
        case Blocker(job=job, since=since, reason=reason, same=same):
            what = sentence(reason) if reason is not None else "nothing keeps it"
            who = f"job {job}, which asks for the same," if same else f"job {job}"
            return f"{who} waits since {clock(since)}: {what}"


def _fitting(found: Fitting) -> str:
    if found.mig:
        what = f"a place for a MIG instance {found.mig}"
    elif found.gpus == 0:
        what = "the CPU and memory of a pod free"
    elif found.milli < GPU:
        what = f"{_count(found.gpus, 'device')} with {found.milli / GPU:g} of a GPU free"
    else:
        what = f"{_count(found.gpus, 'whole GPU')} free"
    if found.island:
        what += " in one NVLink island"
    text = f"{found.now:,} of {_count(found.nodes, 'node')} have {what}"
    if found.gpus and found.devices_only:
        text += f" and the CPU and memory of a pod ({found.devices_only:,} more have only the GPUs)"
    short = found.pods - found.takes
    lacking = f"room for {_count(short, 'pod')} is short" if short > 0 else "that is room for each of its pods alone"
    return f"{text}; the gang needs {found.needed:,} or more: {lacking}"


def remedy(found: Remedy) -> str:
    """What would free the job, for people."""
    match found:
        case Ends(jobs=jobs, at=at, more=more):
            names = ", ".join(jobs) + (f" and {more:,} other{'s' * (more > 1)}" if more else "")
            who = f"job {names} ends" if len(jobs) + more == 1 else f"jobs {names} end"
            when = f"expected at {clock(at)}" if at >= 0 else "nobody knows when"
            return f"{who} ({when}): then there is a place"
        case MoreQuota(queue=queue, model=model, resource=resource, more=more, limit=limit, then=then):
            what = "as the limit of a user" if limit == "user" else "of quota"
            plus = amount(more, resource).replace(" ", " more ", 1)
            return f"{plus}{_of(model)} {what} in queue {queue}: {_then(then)}"
        case Shorter(runtime=runtime):
            return f"it would start now if it ran for at most {show_duration(runtime)}"
        case Starts(job=job, then=then):
            return f"job {job} starts or leaves: {_then(then)}"
        case Opens(queue=queue, then=then):
            return f"queue {queue} is opened: {_then(then)}"
        case Time(at=at, then=then):
            return f"it is tried again at {clock(at)}: {_then(then)}"


def _then(then: Reason | None) -> str:
    return "then it would start" if then is None else f"as things are, this is left: {sentence(then)}"


def known(time: int) -> int:
    """A time, or -1 where nobody knows it."""
    return time if time < FOREVER else -1
