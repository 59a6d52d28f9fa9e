"""`kant ops`: plan a change of a cluster, see its effects on all jobs, apply it, undo it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.ops_options import Where
from kant.cli.ops_runbooks import runbooks_app
from kant.cli.ops_show import show_audit, show_habits, show_plan, show_transaction
from kant.cli.output import Reply
from kant.cli.show import console
from kant.model.errors import InputError
from kant.model.units import clock, parse_duration

if TYPE_CHECKING:
    from kant.ops.desk import Desk

ops_app = App(name="ops", help="Plan a change of a cluster, see its effects, apply it, undo it.")
ops_app.command(runbooks_app)
HERE = Where()
REFUSED = 1
Several = list[str] | None
Reason = Annotated[str, Parameter(help="The reason, which the audit log records.")]


@ops_app.command
def plan(
    *command: Annotated[str, Parameter(help="After `--`: the command of the job of --submit.")],
    submit: Annotated[
        Several, Parameter(help="Submit a job: gpus=8,time=4h, also pods, queue, name, priority.", negative="")
    ] = None,
    cancel: Annotated[Several, Parameter(help="Withdraw this job.", negative="")] = None,
    hold: Annotated[Several, Parameter(help="Keep this waiting job from starting.", negative="")] = None,
    release: Annotated[Several, Parameter(help="Release this held job.", negative="")] = None,
    priority: Annotated[Several, Parameter(help="JOB=N: the new priority of a waiting job.", negative="")] = None,
    preempt: Annotated[Several, Parameter(help="Stop this job's run; it waits again.", negative="")] = None,
    quota: Annotated[Several, Parameter(help="QUEUE=GPUS: the new nominal quota.", negative="")] = None,
    drain: Annotated[Several, Parameter(help="Start nothing new on this node.", negative="")] = None,
    evict: Annotated[bool, Parameter(help="Stop the jobs on drained nodes.", negative="")] = False,
    resume: Annotated[Several, Parameter(help="Let this drained node accept jobs again.", negative="")] = None,
    reserve: Annotated[
        Several, Parameter(help="Book GPUs: name=course,gpus=8,time=2h, also start and within.", negative="")
    ] = None,
    unreserve: Annotated[Several, Parameter(help="Cancel this reservation.", negative="")] = None,
    defragment: Annotated[int, Parameter(help="Move at most this number of running jobs together.")] = 0,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Print the combined effects of these orders, and the id of this plan, to apply it. Nothing is done."""
    orders: list[dict[str, Any]] = [{"op": "submit"} | _words(text, "--submit") for text in submit or ()]
    if command and not orders:
        raise InputError("ops plan", "orders as options, such as --hold JOB (kant ops plan --help)", " ".join(command))
    if command and len(orders) > 1:
        raise InputError("--submit", "one job with a command")
    if command:
        orders[0]["command"] = list(command)
    named = {"hold": hold, "release": release}
    orders += [{"op": op, "job": job} for op, jobs in named.items() for job in jobs or ()]
    orders += [{"op": "priority"} | _pair(text, "--priority", "job", "value") for text in priority or ()]
    orders += [{"op": "quota"} | _pair(text, "--quota", "queue", "gpus") for text in quota or ()]
    orders += [{"op": "drain", "node": node, "evict": evict} for node in drain or ()]
    orders += [{"op": "resume", "node": node} for node in resume or ()]
    orders += [{"op": "reserve"} | _words(text, "--reserve") for text in reserve or ()]
    orders += [{"op": "unreserve", "name": name} for name in unreserve or ()]
    named = {"cancel": cancel, "preempt": preempt}  # last, because a running Kant then starts other jobs at once
    orders += [{"op": op, "job": job} for op, jobs in named.items() for job in jobs or ()]
    orders += [{"op": "defragment", "moves": defragment}] if defragment else []
    if not orders:
        raise InputError("ops plan", "at least one order, such as --hold JOB (kant ops plan --help)")
    found = _desk(where).plan(orders)
    Reply(found, lambda: show_plan(found)).print(json)
    return 0 if found["can_be_applied"] else REFUSED


@ops_app.command
def apply(
    plan_id: Annotated[str, Parameter(help="The id that `kant ops plan` printed, or `last` for your latest.")],
    /,
    *,
    reason: Reason,
    yes: Annotated[bool, Parameter(help="Confirm a plan that exceeds the limits.", negative="")] = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Carry out a plan completely or not at all, if nothing has changed since it was made."""
    own = _desk(where)
    plan_id = own.latest("plan") if plan_id == "last" else plan_id

    def agreed() -> str:
        question = own.question(plan_id)
        return own.who.user if question and (yes or asked(question)) else ""

    return _carried_out(lambda: own.apply(plan_id, reason, agreed()), json)


@ops_app.command
def undo(
    transaction: Annotated[str, Parameter(help="The id that `kant ops apply` printed, or `last` for your latest.")],
    /,
    *,
    reason: Reason,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Undo what was applied in the last 15 minutes, as far as possible."""
    own = _desk(where)
    transaction = own.latest("applied") if transaction == "last" else transaction
    return _carried_out(lambda: own.undo(transaction, reason), json)


@ops_app.command
def audit(
    *,
    limit: Annotated[int, Parameter(help="Number of entries, the latest first.")] = 50,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """List who planned, applied and undid which changes, why, and what was refused; the latest first."""
    from kant.ops.look import audit as entries

    own = _desk(where)
    rows: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None and len(rows) < limit:
        page = entries(own, cursor)
        rows += page["entries"]
        cursor = page["next"]
    return Reply({"entries": rows[:limit]}, lambda: show_audit(rows[:limit])).print(json)


@ops_app.command
def habits(
    *about: Annotated[str, Parameter(help="What is asked, such as: limits of ana. Default: of all users.")],
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Print the habits of users: how accurate their time limits are, and what they usually request."""
    from kant.ops.look import habits as asked_for

    found = asked_for(_desk(where), " ".join(about) or "jobs")
    return Reply(found, lambda: show_habits(found["habits"])).print(json)


@ops_app.command
def step(
    duration: Annotated[str, Parameter(help="For how long, such as 2h.")],
    /,
    *,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Let time pass on the simulated cluster of a scenario."""
    found = _desk(where).step(parse_duration(duration, "DURATION"))
    return Reply(found, lambda: console.print(f"it is {clock(found['now_us'])}")).print(json)


@ops_app.command
def bench(
    *,
    agent: Annotated[
        Literal["oracle", "rules", "greedy", "naive", "random", "replay", "llm"],
        Parameter(help="The agent that does the tasks."),
    ] = "oracle",
    tasks: Annotated[str, Parameter(help="Names, patterns or categories of tasks, separated by commas.")] = "*",
    folder: Annotated[Path | None, Parameter(help="A folder of tasks. Default: those of Kant.")] = None,
    k: Annotated[int, Parameter(name=["-k", "--attempts"], help="Number of attempts at each task.")] = 4,
    tools: Annotated[
        Literal["desk", "plain"], Parameter(help="The tools of `kant mcp`, or only list, submit and cancel.")
    ] = "desk",
    out: Annotated[
        Path | None, Parameter(help="Write the results to this file, one line each, and continue an interrupted run.")
    ] = None,
    traces: Annotated[Path | None, Parameter(help="With replay: results of --out whose calls are repeated.")] = None,
    url: Annotated[
        str | None,
        Parameter(help="With llm: an OpenAI-compatible endpoint: http://host/v1. Key: KANT_LLM_KEY."),
    ] = None,
    model: Annotated[str | None, Parameter(help="With llm: the name of the model there.")] = None,
    turns: Annotated[int, Parameter(help="The most calls of one attempt.")] = 100,
    show: Annotated[bool, Parameter(name="--list", help="Only list the tasks.", negative="")] = False,
    json: Json = False,
) -> int:
    """Measure an assistant on tasks that are verified by the resulting state. Exits with 1 unless all tasks pass."""
    from kant.cli.ops_bench import list_tasks, run

    if show:
        return list_tasks(tasks, folder, json)
    return run(agent, tasks, folder, k, tools, out, traces, url, model, turns, json)


def _desk(where: Where) -> Desk:
    return where.opening().desk("terminal")


def _carried_out(act: Callable[[], dict[str, Any]], json: bool) -> int:
    """Run an action, and print what was done or why it was refused."""
    from kant.ops.desk import RefusalError

    try:
        found = act()
    except RefusalError as refusal:
        print(f"kant: {refusal}", file=sys.stderr)
        return REFUSED
    return Reply(found, lambda: show_transaction(found)).print(json)


def asked(question: str) -> bool:
    """Ask the user in the terminal; False if standard input is not a terminal."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} Apply it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _number(text: str) -> Any:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, int | float) else text


def _words(text: str, option: str) -> dict[str, Any]:
    """Parse words such as `gpus=8,time=2h`."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        word, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or word in found:
            raise InputError(option, "words such as gpus=8,time=2h, each once", part)
        found[word] = _number(value) if word not in ("name", "queue", "time", "start") else value
    if "preemptible" in found:
        found["preemptible"] = bool(found["preemptible"])
    return found


def _pair(text: str, option: str, first: str, second: str) -> dict[str, Any]:
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise InputError(option, f"{first.upper()}=NUMBER", text)
    return {first: name, second: _number(value)}
