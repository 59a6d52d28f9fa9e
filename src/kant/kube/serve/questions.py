"""What the web page of Kant on Kubernetes shows: the record of the leader's state, and answers about that state.

The questions are those of the API of a single machine (docs/up.md), as far as they apply. Each state has its own
record, so the page starts over after a rebuild of the state or a change of leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kant import __version__
from kant.cluster.columns import J_PRIORITY
from kant.kube.serve.led_run import LedRun
from kant.live.core import Core
from kant.live.questions import Questions, UnknownJobError
from kant.live.record import JOB_COLUMNS, STATUS, RunRecord
from kant.live.sentences import public_id, size_sentence
from kant.model.placement import MASK, NODE
from kant.model.status import JobStatus
from kant.model.units import GPU

PHASES = {
    JobStatus.PENDING: "waiting",
    JobStatus.RUNNING: "running",
    JobStatus.FINISHED: "finished",
    JobStatus.REJECTED: "rejected",
    JobStatus.CANCELLED: "cancelled",
}
MOST_JOBS = 100

Outside = Mapping[str, tuple[str, str]]
"""Waiting jobs that the core does not know, by name: the phase of each, and why it waits."""


class LeaderQuestions(Questions):
    """Answers questions about the run of a leader.

    `reason` returns why a job waits, "" if unknown. `journal` is the file being written, "" for none. `outside` returns
    the waiting jobs that the core does not know, since they are held.
    """

    kind = "kubernetes"

    def __init__(
        self,
        led: LedRun,
        reason: Callable[[str], str] = lambda job: "",
        journal: Callable[[], str] = lambda: "",
        outside: Callable[[], Outside] = dict,
    ) -> None:
        super().__init__(led.forecasts, led.optimality)
        self.led = led
        self.reason = reason
        self.journal = journal
        self.outside = outside

    def present(self) -> tuple[Core, RunRecord]:
        return self.led.present()

    def present_journal(self) -> tuple[str, int]:
        """Return the path of the journal ("": none), and the present time in microseconds since the Unix epoch."""
        core, _ = self.present()
        return self.journal(), core.now + core.zero

    # --- jobs ------------------------------------------------------------------------------------------------

    def core_ids(self, job: str) -> list[str]:
        core, run = self.present()
        self._kept(run, job)
        row = self._live().get(job)
        return [] if row is None else [core.state.ids[row]]

    def phase_of(self, job: str) -> tuple[str, str]:
        core, run = self.present()
        row, live = self._kept(run, job), self._live().get(job, -1)
        if (apart := self._apart(run, row, self.outside())) is not None:
            return apart
        runs = live in core.state.elastic and live in core.state.running
        size = f"it {size_sentence(core.state.live[live], core.state.elastic[live].pods)}" if runs else ""
        return PHASES[JobStatus(int(run.jobs.table[row, STATUS]))], size

    def health(self) -> dict[str, Any]:
        """Return the size of the cluster, and the present time (microseconds since the Unix epoch)."""
        core, run = self.present()
        state = core.state
        return {
            "version": __version__, "profile": core.profile.name, "cluster": state.spec.name,
            "nodes": len(state.node_index), "gpus": state.gpus_there, "jobs": len(run.ids),
            "running": len(state.running), "now_us": core.now + core.zero,
            "trouble": "", "journal": self.journal(),
        }  # fmt: skip

    def jobs(self, phases: tuple[str, ...], queue: str, user: str, before: int | None, limit: int) -> dict[str, Any]:
        """Return recorded jobs with these properties, the latest first: at most `limit`, from before row `before`."""
        _, run = self.present()
        names, found, live = run.queue_names(), list[dict[str, Any]](), self._live()
        outside = self.outside()
        last = run.jobs.used if before is None else min(before, run.jobs.used)
        for row in range(last - 1, -1, -1):
            own = dict(zip(JOB_COLUMNS, run.jobs.table[row].tolist(), strict=True))
            apart = self._apart(run, row, outside)
            phase = PHASES[JobStatus(own["status"])] if apart is None else apart[0]
            if phases and phase not in phases:
                continue
            if queue not in ("", names[own["queue"]]) or user not in ("", run.names[row][1]):
                continue
            if len(found) == limit:
                return {"jobs": found, "next": found[-1]["seq"]}
            found.append(self._row(row, live, outside))
        return {"jobs": found, "next": None}

    def job(self, job: str) -> dict[str, Any]:
        """Return one job, with its nodes. Its GPUs on them are unknown, since the kubelets choose them."""
        _, run = self.present()
        live = self._live()
        place = self._nodes(live.get(job))
        return {
            "job": self._row(self._kept(run, job), live, self.outside()), "command": [], "workdir": "", "env": [],
            "time_s": None, "retries": 0, "after": [], "after_ok": [], "stopping": "", "place": place, "log": "",
            "hidden": False,
        }  # fmt: skip

    # --- jobs by their public ids -------------------------------------------------------------------------

    def _kept(self, run: RunRecord, job: str) -> int:
        row = run.by_id.get(job)
        if row is None:
            raise UnknownJobError("JOB", "a job that Kant schedules", job)
        return row

    def _apart(self, run: RunRecord, row: int, outside: Outside) -> tuple[str, str] | None:
        """Return the phase of a waiting job that has left the core, and why it waits. None for any other job."""
        left = int(run.jobs.table[row, STATUS]) == JobStatus.CANCELLED
        return outside.get(run.ids[row]) if left else None

    def _live(self) -> dict[str, int]:
        """Return, by public id, the row in the core's state of each job that has not ended."""
        state = self.present()[0].state
        return {public_id(state.ids[row]): row for row in state.live}

    def _nodes(self, row: int | None) -> dict[str, str]:
        """Return the nodes of the job in a row of the core's state, each with a text such as "2 GPUs"; {}: none."""
        state, counts = self.present()[0].state, Counter[str]()
        for piece in state.running[row].tolist() if row is not None and row in state.running else ():
            counts[state.nodes[piece[NODE]].name] += piece[MASK].bit_count()
        return {name: f"{count} GPU{'s' * (count != 1)}" for name, count in counts.items()}

    def _row(self, row: int, live: dict[str, int], outside: Outside) -> dict[str, Any]:
        core, run = self.present()
        own = dict(zip(JOB_COLUMNS, run.jobs.table[row].tolist(), strict=True))
        name, zero, pending = run.ids[row], run.zero, own["status"] == JobStatus.PENDING
        place, apart = live.get(name), self._apart(run, row, outside)
        waits = self.reason(core.state.ids[place]) if pending and place is not None else ""
        phase, waits = (PHASES[JobStatus(own["status"])], waits) if apart is None else apart
        limit = core.state.live[place].limit if place is not None else -1
        return {
            "seq": row, "id": name, "array": -1, "array_index": -1, "phase": phase,
            "name": run.names[row][0], "queue": run.queue_names()[own["queue"]], "user": run.names[row][1],
            "priority": int(core.state.jobs[place, J_PRIORITY]) if place is not None else 0, "gpus": own["milli"] / GPU,
            "submitted": own["submit"] + zero, "started": own["start"] + zero if own["start"] >= 0 else -1,
            "ended": own["end"] + zero if own["end"] >= 0 and apart is None else -1,
            "attempt": own["preemptions"] + (own["start"] >= 0), "failures": 0,
            "code": None, "signal": None, "reason": "", "waits": waits, "nodes": self._nodes(place), "limit_us": limit,
        }  # fmt: skip
