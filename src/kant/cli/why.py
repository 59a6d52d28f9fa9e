"""`kant why`: what a job of a journal waited for at a time. First what blocks it, then the evidence, then the cure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json
from kant.cli.kube_place import Asked
from kant.cli.simulate import print_json
from kant.cli.up import Home
from kant.model.units import clock, parse_duration, show_duration

if TYPE_CHECKING:
    from kant.model.decision import Reason
    from kant.scheduler.explain import Explanation
    from kant.sim.retrace import Standing

JournalFile = Annotated[Path, Parameter(help="A journal.jsonl that a run has written.")]
At = Annotated[str | None, Parameter(help="A time of the run, such as 2h or 1d3h. Default: the end of the journal.")]

Learn = Annotated[
    bool, Parameter(help="Learn from how earlier expected starts of the journal turned out (takes some seconds).")
]


def parse_at(text: str | None) -> int | None:
    """The time that was asked for, microseconds; None for the end."""
    return None if text is None else parse_duration(text, "--at")


def why(
    job: Annotated[str, Parameter(help="The id of a job.")],
    journal: JournalFile | None = None,
    /,
    *,
    at: At = None,
    learn: Learn = True,
    home: Home = None,
    json: Json = False,
    there: Asked = Asked(),  # noqa: B008 - it is frozen
) -> int:
    """Say why a job waits: what blocks it, what stands behind that, what would free it, and when it may start.

    Without a journal the Kant of this machine is asked (`kant up`), with --kube that of a Kubernetes cluster."""
    if there and journal is None and home is None:
        from kant.cli import kube_jobs

        refuse_at(at)
        return kube_jobs.why(there, job, json)
    if journal is None:
        return _ask(job, at, home, json)
    from kant.live.answers import as_json
    from kant.scheduler.explain import explanation
    from kant.sim.retrace import stand_at

    standing = stand_at(journal, parse_at(at), keep_ledger=True, keep_answers=learn)
    check_job(standing, job, journal)
    answer = history(standing, job)
    if answer["status"] != "pending":
        print_json(answer) if json else show_history(answer)
        return 0
    found = explanation(standing.scheduler, job, standing.now, standing.answers)
    print_json(answer | as_json(found)) if json else show(found, answer)
    return 0


def refuse_at(at: str | None) -> None:
    """A Kant that runs has no past."""
    from kant.model.errors import InputError

    if at is not None:
        raise InputError("--at", "a journal beside it: a Kant that runs is asked about now", at)


def _ask(job: str, at: str | None, home: Path | None, json: bool) -> int:
    """Ask the Kant of this machine."""
    from kant.cli.show import console
    from kant.service.client import Client, home_of

    refuse_at(at)
    client = Client(home_of(home))
    found = client.get(client.job(job, "why"))
    if json:
        print_json(found)
        return 0
    because = f": {found['sentence']}" if found["sentence"] else ""
    console.print(f"{job}: it is {found['phase']}{because}", style="bold", soft_wrap=True)
    answer, so_far = found["answer"], waits(found["waited_us"]) if found["waited_us"] else []
    if answer is None:
        section("waited", so_far)
        return 0
    now, rivals, own = answer["time_us"], answer["among_rivals"], answer["in_queue"]
    console.print(f"it has waited {show_duration(now - answer['since_us'])}", style="dim")
    section("evidence", [each["sentence"] for each in answer["facts"]])
    section("what would free it", [each["sentence"] for each in answer["remedies"]])
    ranks = f"{rivals['rank']:,} of {rivals['of']:,} among its rivals, {own['rank']:,} of {own['of']:,} in its queue"
    section("position", [ranks])
    early, late = (_in(answer["expected_us"], name, now) for name in ("p50", "p90"))
    earlier = earlier_said(answer["earlier"])
    expected = [f"P50 {early}, P90 {late}", *([earlier] if earlier else [])]
    section("expected start", expected)
    section("wait or place", [answer["wait_or_place"]["sentence"]] if answer["wait_or_place"] else [])
    section("waited so far", so_far)
    return 0


def earlier_said(earlier: Any) -> str:
    """What became of earlier answers, as one that was asked for here or came as JSON; "" where nothing is known."""
    from kant.scheduler.calibration import Earlier

    return str(Earlier(**earlier) if isinstance(earlier, dict) else earlier or "")


def _in(expected: dict[str, Any], name: str, now: int) -> str:
    start = expected[name]
    if start is None:
        return "never" if expected["never"] else "unknown: no end is in sight"
    return f"in {show_duration(max(start - now, 0))}"


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
    from kant.cluster.columns import J_END
    from kant.live.answers import job_facts

    assert standing.ledger is not None
    state = standing.state
    row = state.rows[job]
    waited = {cause: int(column[row]) for cause, column in standing.ledger.columns(standing.now).items()}
    return job_facts(state, job, standing.now) | {
        "end_us": int(state.jobs[row, J_END]),
        "rejected_because": standing.rejected.get(job),
        "waited_us": {"total": sum(waited.values())} | waited,
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
    section("evidence", [fact(each) for each in found.facts])
    section("has lost its place to", [", ".join(answer["bad_nodes"])] if answer["bad_nodes"] else [])
    section("what would free it", [remedy(each) for each in found.remedies])
    rivals, own = found.among_rivals, found.in_queue
    section(
        "position",
        [
            f"{rivals.rank:,} of {rivals.of:,} among the waiting jobs that compete for its GPUs, "
            f"{own.rank:,} of {own.of:,} in its queue"
        ],
    )
    early, late = (expected(start, now, found.reason) for start in found.expected)
    start = f"P50 {early}, P90 {late}" if early != late else f"P50 and P90 {early}"
    section("expected start", [start, *([str(found.earlier)] if found.earlier is not None else [])])
    section("wait or place", [str(found.choice)] if found.choice is not None else [])
    section("waited so far", waits(answer["waited_us"]))


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
    section("has lost its place to", [", ".join(answer["bad_nodes"])] if answer["bad_nodes"] else [])
    section("waited", waits(answer["waited_us"]))


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


def section(title: str, lines: list[str]) -> None:
    """A title and its lines, indented; nothing where there are none."""
    from kant.cli.show import console

    if lines:
        console.print(title, style="cyan")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
