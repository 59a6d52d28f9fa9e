"""Implements `kant ops bench`: its agents, and the output of their results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from kant.cli.output import Reply
from kant.cli.show import console
from kant.model.errors import InputError
from kant.ops.bench.agents import BenchAgent, Oracle, RandomAgent, ReplayAgent, Scripted
from kant.ops.bench.run import AttemptRow, Score, bench, read_rows, traces
from kant.ops.bench.task import HERE, BenchTask, read_tasks
from kant.ops.bench.tools import Kind


def agent_of(
    name: str, tasks: Sequence[BenchTask], traced: Path | None, url: str | None, model: str | None
) -> BenchAgent:
    """Return the agent of a name. Raises InputError for a missing or unneeded option."""
    if traced is not None and name != "replay":
        raise InputError("--traces", "results from --out, and only with --agent replay", traced)
    if (url is not None or model is not None) != (name == "llm"):
        raise InputError("--url and --model", "both with --agent llm, and not otherwise")
    if traced is not None and not traced.exists():
        raise InputError(str(traced), "a file of results written by --out")
    if name == "llm":
        from kant.ops.bench.llm import Model

        if not url or not model:
            raise InputError("--agent llm", "--url of an OpenAI-compatible endpoint, and --model")
        return Model(url, model, os.environ.get("KANT_LLM_KEY", ""))
    if name == "replay" and traced is not None:
        return ReplayAgent(traces(read_rows(traced)))
    if name == "replay":
        from kant.ops.bench.remembering import Remembering
        from kant.ops.memory.runbooks import Runbooks

        return Remembering(Oracle(tasks), Runbooks())
    made: dict[str, BenchAgent] = {
        "oracle": Oracle(tasks), "rules": Scripted("rules", looks=True), "greedy": Scripted("greedy"),
        "naive": Scripted("naive", naive=True), "random": RandomAgent(),
    }  # fmt: skip
    return made[name]


def run(
    name: str, chosen: str, folder: Path | None, k: int, kind: Kind, out: Path | None, traced: Path | None,
    url: str | None, model: str | None, turns: int, json: bool,
) -> int:  # fmt: skip
    """Run the suite and print the score; return 0 if every task passed each time."""
    if k < 1 or turns < 1:
        raise InputError("-k and --turns", "at least 1")
    tasks = read_tasks(chosen, folder or HERE)
    agent = agent_of(name, tasks, traced, url, model)
    rows = bench(tasks, agent, k, kind, out, getattr(agent, "seen", lambda row: None), turns)
    score = Score.of(rows)
    answer = {"agent": agent.name, "tools": kind, "k": k, "score": msgspec.to_builtins(score), "rows": _rows(rows)}
    Reply(answer, lambda: _show(tasks, rows, score, agent.name, k)).print(json)
    if not json and isinstance(getattr(agent, "asked", None), int):
        console.print(f"{agent.asked} of {agent.steps} calls were chosen by the oracle", highlight=False)  # type: ignore[attr-defined]
    return 0 if score.pass_all == 1.0 and not score.errors else 1


def list_tasks(chosen: str, folder: Path | None, json: bool) -> int:
    """Print the tasks and their instructions."""
    tasks = read_tasks(chosen, folder or HERE)
    rows = [
        {"task": task.name, "category": task.category, "state": task.start.base, "text": task.text} for task in tasks
    ]

    def shown() -> None:
        table = Table("task", "category", "state", "instruction", box=None)
        for row in rows:
            table.add_row(row["task"], row["category"], row["state"], row["text"].partition("\n")[0])
        console.print(table)

    return Reply({"tasks": rows}, shown).print(json)


def _rows(rows: Sequence[AttemptRow]) -> list[dict[str, Any]]:
    return [{key: value for key, value in msgspec.to_builtins(row).items() if key != "calls"} for row in rows]


def _show(tasks: Sequence[BenchTask], rows: Sequence[AttemptRow], score: Score, agent: str, k: int) -> None:
    table = Table("task", "category", "passed", "turns", "what was wrong", box=None)
    for task in tasks:
        own = [row for row in rows if row.task == task.name]
        wrong = next((row for row in own if not row.passed), None)
        said = ""
        if wrong is not None:
            said = wrong.error or wrong.ended or "; ".join(f"{c}: {each[0]}" for c, each in wrong.complaints.items())
        turns = sum(row.turns for row in own) / len(own)
        table.add_row(task.name, task.category, f"{sum(row.passed for row in own)}/{len(own)}", f"{turns:.1f}", said)
    console.print(table)
    shares = f"pass@1 {score.pass_1:.1%}, pass@{k} {score.pass_any:.1%}, pass^{k} {score.pass_all:.1%}"
    console.print(f"{agent}: {shares} of {score.tasks} tasks; {score.turns:.1f} turns", highlight=False)
    counts = f"violations: {score.attempted} attempted, {score.committed} committed"
    console.print(counts + f"; {score.errors} attempts without a result" * bool(score.errors), highlight=False)
