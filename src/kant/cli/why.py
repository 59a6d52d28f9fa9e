"""`kant why`: what a job of a journal waited for at a time. First what blocks it, then the evidence, then the cure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json
from kant.cli.simulate import print_json
from kant.model.units import clock, parse_duration, show_duration

if TYPE_CHECKING:
    from kant.model.decision import Reason
    from kant.scheduler.explain import Explanation
    from kant.sim.retrace import Standing

JournalFile = Annotated[Path, Parameter(help="A journal.jsonl that a run has written.")]
At = Annotated[str | None, Parameter(help="A time of the run, such as 2h or 1d3h. Default: the end of the journal.")]


def parse_at(text: str | None) -> int | None:
    """The time that was asked for, microseconds; None for the end."""
    return None if text is None else parse_duration(text, "--at")


def why(
    job: Annotated[str, Parameter(help="The id of a job.")],
    journal: JournalFile,
    /,
    *,
    at: At = None,
    json: Json = False,
) -> int:
    """Say why a job waits: what blocks it, what stands behind that, what would free it, and when it may start."""
    from kant.scheduler.explain import explanation
    from kant.sim.retrace import stand_at

    standing = stand_at(journal, parse_at(at), keep_ledger=True)
    check_job(standing, job, journal)
    answer = history(standing, job)
    if answer["status"] != "pending":
        print_json(answer) if json else show_history(answer)
        return 0
    found = explanation(standing.scheduler, job, standing.now)
    print_json(answer | as_json(found)) if json else show(found, answer)
    return 0


def check_job(standing: Standing, job: str, journal: Path) -> None:
    """Raise InputError unless the job had come by that time."""
    from kant.model.errors import InputError

    if job in standing.state.rows:
        return
    if job in standing.coming:
        raise InputError(
            "--at", f"a time from {clock(standing.coming[job])} on, when job {job} comes", clock(standing.now)
        )
    raise InputError("JOB", f"a job of {journal}", job)


def history(standing: Standing, job: str) -> dict[str, Any]:
    """What happened to a job so far, with its waits split by cause."""
    from kant.cluster import columns as c
    from kant.model.status import JobStatus
    from kant.model.units import GPU

    assert standing.ledger is not None
    state = standing.state
    row = state.rows[job]
    own = state.jobs[row]
    waited = {cause: int(column[row]) for cause, column in standing.ledger.columns(standing.now).items()}
    return {
        "job": job,
        "time_us": standing.now,
        "status": JobStatus(int(own[c.J_STATUS])).name.lower(),
        "queue": list(state.queues)[int(own[c.J_QUEUE])],
        "priority": int(own[c.J_PRIORITY]),
        "pods": int(own[c.J_PODS]),
        "gpus": int(own[c.J_MILLI]) / GPU,
        "submitted_us": int(own[c.J_SUBMIT]),
        "since_us": int(own[c.J_SINCE]),
        "started_us": int(own[c.J_STARTED]),
        "end_us": int(own[c.J_END]),
        "bad_nodes": [state.spec.nodes[node].name for node in state.health.bad.get(row, ())],
        "rejected_because": standing.rejected.get(job),
        "waited_us": {"total": sum(waited.values())} | waited,
    }


def as_json(found: Explanation) -> dict[str, Any]:
    """What explains a wait, as one object."""
    from kant.model.decision import sentence
    from kant.scheduler.evidence import fact, remedy
    from kant.scheduler.explain import is_final

    early, late = found.expected
    return {
        "reason": found.reason,
        "sentence": sentence(found.reason) if found.reason is not None else "",
        "facts": [{"fact": each, "sentence": fact(each)} for each in found.facts],
        "remedies": [{"remedy": each, "sentence": remedy(each)} for each in found.remedies],
        "among_rivals": {"rank": found.among_rivals.rank, "of": found.among_rivals.of},
        "in_queue": {"rank": found.in_queue.rank, "of": found.in_queue.of},
        "expected_us": {"p50": early, "p90": late, "never": is_final(found.reason)},
    }


def show(found: Explanation, answer: dict[str, Any]) -> None:
    """An explanation for the terminal."""
    from kant.cli.show import console
    from kant.model.decision import sentence
    from kant.scheduler.evidence import fact, remedy

    now = found.now
    what = sentence(found.reason) if found.reason is not None else "nothing keeps it, the next cycle can start it"
    console.print(f"{found.job}: {what}", style="bold", soft_wrap=True)
    console.print(
        f"at {clock(now)} it has waited {show_duration(now - found.since)} for {_asks(answer)}",
        style="dim",
        soft_wrap=True,
    )
    _section("evidence", [fact(each) for each in found.facts])
    _section("has lost its place to", [", ".join(answer["bad_nodes"])] if answer["bad_nodes"] else [])
    _section("what would free it", [remedy(each) for each in found.remedies])
    rivals, own = found.among_rivals, found.in_queue
    _section(
        "position",
        [
            f"{rivals.rank:,} of {rivals.of:,} among the waiting jobs that compete for its GPUs, "
            f"{own.rank:,} of {own.of:,} in its queue"
        ],
    )
    early, late = (expected(start, now, found.reason) for start in found.expected)
    _section("expected start", [f"P50 {early}, P90 {late}" if early != late else f"P50 and P90 {early}"])
    _section("waited so far", waits(answer["waited_us"]))


def show_history(answer: dict[str, Any]) -> None:
    """What became of a job that does not wait, for the terminal."""
    from kant.cli.show import console

    started, ended = clock(answer["started_us"]), clock(answer["end_us"])
    what = {
        "running": f"runs since {started}",
        "finished": f"ran from {started} and finished at {ended}",
        "rejected": f"was given back at {ended}: {answer['rejected_because']}",
        "cancelled": f"was withdrawn at {ended}",
    }[answer["status"]]
    console.print(f"{answer['job']}: it does not wait, it {what}", style="bold", soft_wrap=True)
    console.print(
        f"at {clock(answer['time_us'])}; submitted at {clock(answer['submitted_us'])} for {_asks(answer)}",
        style="dim",
        soft_wrap=True,
    )
    _section("has lost its place to", [", ".join(answer["bad_nodes"])] if answer["bad_nodes"] else [])
    _section("waited", waits(answer["waited_us"]))


def _asks(answer: dict[str, Any]) -> str:
    pods = "1 pod" if answer["pods"] == 1 else f"{answer['pods']:,} pods"
    where = f" in queue {answer['queue']}" if answer["queue"] else ""
    gpus = "1 GPU" if answer["gpus"] == 1 else f"{answer['gpus']:g} GPUs"
    return f"{gpus} in {pods}{where}, priority {answer['priority']}"


def waits(waited: dict[str, int]) -> list[str]:
    """A wait by cause, the longest first."""
    causes = sorted(((span, cause) for cause, span in waited.items() if cause != "total" and span), reverse=True)
    split = ": " + ", ".join(f"{cause} {show_duration(span)}" for span, cause in causes) if causes else ""
    return [show_duration(waited["total"]) + split]


def expected(start: int | None, now: int, reason: Reason | None) -> str:
    """An expected start for people."""
    from kant.scheduler.explain import is_final

    if start is not None:
        return f"{clock(start)} (in {show_duration(start - now)})"
    return "never" if is_final(reason) else "unknown: no end is in sight"


def _section(title: str, lines: list[str]) -> None:
    from kant.cli.show import console

    if lines:
        console.print(title, style="cyan")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
