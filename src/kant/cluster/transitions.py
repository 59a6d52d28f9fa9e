"""Changes of the job and node tables: one function for each kind of event, which takes the tables and the job's row.

Changes that every run makes are compiled by Numba. Rare changes are plain Python, unless compiled code makes them too.

The functions for events (`job_events.py`) check their input, call these functions, and update what only Python uses.
"""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.model.status import JobStatus

PENDING, RUNNING = int(JobStatus.PENDING), int(JobStatus.RUNNING)

STAYS, ONE_MORE, ENDS = 0, 1, -1
"""How a stop changes J_RETURNS, the count of consecutive returns to the queue: it stays, grows by one, or becomes 0."""


@compiled
def submitted(
    jobs: Table, row: int, now: int, rank: int, queue: int, user: int, shape: int, milli: int, pods: int, submit: int,
    estimate: int, priority: int, preemptible: bool, due: int, checkpoint: int, base: int,
    limit: int,
) -> None:  # fmt: skip
    """Write the row of a submitted job, which waits."""
    job = jobs[row]
    job[c.J_SUBMIT] = submit
    job[c.J_STATUS] = PENDING
    job[c.J_QUEUE] = queue
    job[c.J_SHAPE] = shape
    job[c.J_PRIORITY] = priority
    job[c.J_MILLI] = milli
    job[c.J_ESTIMATE] = job[c.J_REMAINING] = estimate
    job[c.J_SINCE] = now
    job[c.J_FIRST_START] = job[c.J_END] = job[c.J_STARTED] = -1
    job[c.J_RANK] = rank
    job[c.J_PODS] = pods
    job[c.J_PREEMPTIBLE] = preemptible
    job[c.J_USER] = user
    job[c.J_DUE] = due
    job[c.J_CHECKPOINT] = checkpoint
    job[c.J_BASE] = base
    job[c.J_LIMIT] = limit


@compiled
def started(
    table: Table, log: Table, pools: Table, jobs: Table, pieces: Table, demands: Table, row: int, now: int,
    held: Table, at: int,
) -> int:  # fmt: skip
    """Start a waiting job: take its pieces and copy them into `held` from row `at` on. Returns -1.

    If a piece is not free, returns the index of the first such piece, and nothing has changed.
    """
    missing = c.take(table, log, pools, pieces, demands)
    if missing < 0:
        for piece in range(pieces.shape[0]):
            c.copy_row(pieces, piece, held, at + piece)
        job = jobs[row]
        job[c.J_PIECE] = at
        job[c.J_PIECES] = pieces.shape[0]
        job[c.J_WAITED] += now - job[c.J_SINCE]
        job[c.J_SINCE] = job[c.J_STARTED] = now
        job[c.J_STATUS] = RUNNING
        if job[c.J_FIRST_START] < 0:
            job[c.J_FIRST_START] = now
    return int(missing)


@compiled
def stopped(
    table: Table, log: Table, pools: Table, jobs: Table, pieces: Table, demands: Table, row: int, now: int, status: int,
    cost: int, counted: int, returns: int, ran: bool,
) -> None:  # fmt: skip
    """Stop a running job and free its pieces. The job waits again with `cost` µs more work, or leaves for good.

    `counted` is the column that counts such stops (-1: none). If `ran` is False, the job never started: it only waited.
    """
    c.give(table, log, pools, pieces, demands)
    job = jobs[row]
    job[c.J_STATUS] = status
    elapsed = now - job[c.J_SINCE]
    job[c.J_SINCE] = now
    if ran:
        job[c.J_ATTAINED] += elapsed
        if job[c.J_REMAINING] >= 0:
            job[c.J_REMAINING] = max(job[c.J_REMAINING] - elapsed, 0) + cost
    else:
        job[c.J_WAITED] += elapsed
        if job[c.J_FIRST_START] == job[c.J_STARTED]:
            job[c.J_FIRST_START] = -1
    if status != PENDING:
        job[c.J_END] = now
    if counted >= 0:
        job[counted] += 1
    job[c.J_RETURNS] = 0 if returns == ENDS else job[c.J_RETURNS] + returns


@inlined
def withdrawn(jobs: Table, row: int, now: int, status: int) -> None:
    """Remove a waiting job for good."""
    job = jobs[row]
    job[c.J_WAITED] += now - job[c.J_SINCE]
    job[c.J_SINCE] = job[c.J_END] = now
    job[c.J_STATUS] = status


@inlined
def progressed(jobs: Table, row: int, now: int, remaining: int) -> None:
    """Record the remaining run time that a running job reports."""
    job = jobs[row]
    job[c.J_ATTAINED] += now - job[c.J_SINCE]
    job[c.J_SINCE] = now
    job[c.J_REMAINING] = remaining
