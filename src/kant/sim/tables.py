"""What a compiled call of a simulated run reads and writes (`advance.py`): tables, limits, the position of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kant.compiled import merged
from kant.model.units import FOREVER

if TYPE_CHECKING:
    from kant.cluster.columns import Narrow, Table
    from kant.placement.cost.slowdown import SpanRows
    from kant.placement.group_kernel import Domains, Scores
    from kant.sim.blocked import Rights

# Columns of the table of arrivals. Queues, users and kinds are numbered by the workload.
A_TIME, A_RUNTIME, A_QUEUE, A_USER, A_KIND, A_ESTIMATE, A_PRIORITY, A_PREEMPTIBLE, A_DUE = range(9)
# Where the job waits: its bucket, its scheduling key, and its sort key.
A_BUCKET, A_KNOWN, A_KEY = range(9, 12)
ARRIVAL_WIDTH = 12

PYTHON = -1
"""Value of S_FIRST, and of a kind's shape, for jobs that Python decides."""

# The position of the run. If Python decides an instant, these values are set back.
(
    AT, TAKEN, SEEN, TRIED, SAMPLES, STAMP, QUEUES, USERS, NOW, RANK, WAITING, MILLI, PODS, MAY_TRY, DOUBTS, WAKES_ON,
    LOG, WAKE, FOLLOWED, RETRY, LOWEST, BEYOND,
) = range(22)  # fmt: skip
STANDS = 22
"""The pending queue reflects the first FOLLOWED events; LOWEST and BEYOND are the eviction bounds after these."""

# Of the call: SAID (its events), INSTANTS, CODE (why it ends before `until`; 0: it need not), ROOM (that it lacks).
SAID, INSTANTS, CODE, ROOM = range(4)
# Of the instant: TIME (µs), KNOWN (events before it), LAST (end of its arrivals), MORE (pods that may need pieces), TOP
# (end of the pieces), STARTED_LEAST (lowest preemptible priority that it starts), ABOVE (blocked jobs above priority
# ABOVE_OF), RUNNING (running jobs in columns; -1: not yet), EVICTS (1: it evicts), REVIEW (when to look again, µs).
TIME, KNOWN, LAST, MORE, TOP, STARTED_LEAST, ABOVE, ABOVE_OF, RUNNING, EVICTS, REVIEW = range(4, 15)
# Of the job that is tried: WHAT, WHY and WHICH (why it waits, as in its event), END (of its pieces), MAY_EVICT (1: if
# judged by totals), VICTIMS and RETRY_AT (as returned by `finds_victims`), OPENED (1: it has evicted jobs).
WHAT, WHY, WHICH, END, MAY_EVICT, VICTIMS, RETRY_AT, OPENED = range(15, 23)
INSTANT = 23


class Tables(NamedTuple):
    """All tables of a call. The first of `arrivals` gets row `begin` of `jobs`.

    `stands` and `instant` have the values numbered above. `quotas` and `running` are None if no queue has quotas and
    all jobs have one priority: then no job holds or evicts another, and no code for this is compiled. `running` has
    room for all jobs that may run at once. `evictions` is None if Python decides all instants with evictions;
    `reservations`, if the profile has none. `counts`: the number of preemptible running jobs by priority.
    """

    until: int
    checkpoint: int
    outgrown: bool
    by_priority: bool
    begin: int
    stands: Table
    instant: Table
    happened: Table
    arrivals: Table
    shape_of: Table
    shapes: Table
    groups: Table
    queues: Table
    users: Table
    jobs: Table
    work: Table
    table: Table
    log: Table
    pools: Table
    demands: Table
    held: Table
    trial: Table
    trial_log: Table
    typical: Table
    scores: Scores
    others: Scores
    domains: Domains | None
    heap: Table
    ends: Table
    samples: Table
    integrals: Table
    sampled: Table
    spans: SpanRows
    seen: Table
    entries: Table
    places: Narrow
    buckets: Table
    verdicts: Table
    ready: Table
    stirred: Table
    watched: Table
    rules: Any  # Rules | None
    rights: Rights
    quotas: Any  # Quotas | None
    counts: Table
    running: Any  # Running | None
    reservations: Any  # Reservations | None
    evictions: Any  # Evictions | None


@merged
def wake_at(v: Tables, time: int) -> None:
    """Ask for an instant at `time`, if that is in the future, even if no event happens until then."""
    review = v.instant[REVIEW]
    if v.instant[TIME] < time < FOREVER and (review < 0 or time < review):
        v.instant[REVIEW] = time
