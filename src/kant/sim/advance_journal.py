"""Writes the events and decisions of a compiled call (`happened.py`) to the journal of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.model.decision import Decision, Hold, Plan, Preempt, Reason, Reserve, Start
from kant.model.event import JobFinished, JobPreempted, JobReserved, JobStarted, JobSubmitted
from kant.model.placement import Allocation
from kant.sim import happened as h
from kant.sim.evict import BACKFILL, MOVED, RECLAIM

if TYPE_CHECKING:
    from kant.sim.run import Run

Lack = Callable[[int, int, int, int], Reason]
"""Returns why a job waits, from H_WHAT, H_ROW, H_PIECE and H_COUNT of the event that records the wait."""


def pieces_of(state: ClusterState, rows: np.ndarray) -> Iterator[Allocation]:
    """Yield the pieces that each of these jobs holds, or held until it ended."""
    for at, count in state.jobs[rows[:, None], [c.J_PIECE, c.J_PIECES]].tolist():
        yield state.pieces[at : at + count].copy()


def _preempted(state: ClusterState, row: int, by: int, bits: int) -> Preempt:
    """Return the decision that an eviction records."""
    why = "backfill" if bits & BACKFILL else "reclaim" if bits & RECLAIM else "priority"
    return Preempt(state.ids[row], bits & MOVED > 0, state.ids[by], why)


def write_events(
    run: Run, happened: np.ndarray, came: Callable[[int], JobSubmitted], lack: Lack, broken_off: bool
) -> None:
    """Write the events and decisions of a call to the journal, and add the decisions to its digest.

    `came` returns the submission of a row. With `broken_off` the last instant has only job ends; Python decides it.
    """
    state, recorder, what = run.state, run.recorder, happened[:, h.H_WHAT]
    decided, cycled = happened[(what >= h.EVICTED) & (what < h.CYCLED)], happened[what == h.CYCLED]
    if run.journal.sink is not None:
        _write_all(run, happened, came, lack, broken_off)
    elif len(decided):
        names = [state.ids[row] for row in decided[:, h.H_ROW].tolist()]
        kind = decided[:, h.H_WHAT]
        counts = np.where((kind == h.STARTED) | (kind == h.RESERVED), decided[:, h.H_COUNT], 0)
        others = [
            Hold(state.ids[row], lack(event, row, value, other)) if event != h.EVICTED
            else _preempted(state, row, other, bits)
            for _, event, row, _, value, other, bits, _ in decided[counts == 0].tolist()
        ]  # fmt: skip
        pieces = state.pieces[state.pieces_used - int(counts.sum()) : state.pieces_used]
        when = decided[:, [h.H_TIME, h.H_INSTANT, h.H_COUNT, h.H_BEGIN, h.H_END]]
        when[:, 2] = -1
        when[kind != h.RESERVED, 3:] = 0
        if len(cycled):
            when[:, 2] = cycled[np.searchsorted(cycled[:, h.H_INSTANT], when[:, 1]), h.H_PIECE]
        run.journal.decided(when, names, counts, pieces, iter(others))
    if recorder.keep_intervals:
        held = dict[int, Allocation]()  # the allocations of jobs that start in the call
        for now, event, row, _, value, count, _, began in happened[what <= h.STARTED].tolist():
            if event == h.STARTED:
                held[row] = state.pieces[value : value + count].copy()
            elif event != h.CAME:
                began = began if event == h.EVICTED else state.jobs.item(row, c.J_STARTED)
                recorder.ended(row, held[row] if row in held else state.running[row], began, now)


def _write_all(
    run: Run, happened: np.ndarray, came: Callable[[int], JobSubmitted], lack: Lack, broken_off: bool
) -> None:
    state, journal = run.state, run.journal
    cut = np.flatnonzero(np.diff(happened[:, h.H_INSTANT])) + 1
    instants = [part.tolist() for part in np.split(happened, cut)] if len(happened) else []
    for at, instant in enumerate(instants):
        decisions, review, costs = list[Decision](), -1, list[int]()
        for now, event, row, _, value, other, start, end in instant:
            if event == h.ENDED:
                journal.write(JobFinished(now, state.ids[row]))
            elif event == h.CAME:
                journal.write(came(row))
            elif event == h.STARTED:
                decisions.append(Start(state.ids[row], state.pieces[value : value + other].copy()))
            elif event == h.RESERVED:
                decisions.append(Reserve(state.ids[row], start, end, state.pieces[value : value + other].copy()))
            elif event == h.CYCLED:
                review = value
            elif event == h.EVICTED:
                decisions.append(_preempted(state, row, other, start))
                costs.append(value)
            else:
                decisions.append(Hold(state.ids[row], lack(event, row, value, other)))
        now = instant[0][h.H_TIME]
        if decisions or at < len(instants) - 1 or not broken_off:
            journal.plan(Plan(now, [*decisions], review))
        for one in decisions:
            if isinstance(one, Start):
                journal.write(JobStarted(now, one.job, one.allocation))
            elif isinstance(one, Reserve):
                journal.write(JobReserved(now, one.job, one.start, one.end, one.allocation))
            elif isinstance(one, Preempt):
                journal.write(JobPreempted(now, one.job, costs.pop(0), one.moved, one.by))
