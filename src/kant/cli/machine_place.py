"""Lets verbs ask and command Kant on this machine, or at KANT_URL."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kant.cli.output import Reply, start_of_last
from kant.cli.place import EXPORT, LIVE, Filter, Submitted, TrialReply, Wanted, WantedStage
from kant.model.errors import InputError
from kant.model.units import count_from
from kant.service.client import RefusedError, ServiceClient

if TYPE_CHECKING:
    from kant.sim.past import Past
    from kant.sim.question import Question

BARE = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""Variables that a job gets with any `--export`, since few programs start without them."""

MAY_COME = frozenset(("image", "after", "after_ok", "after_not_ok", "after_started", "after_each", "begin"))
"""Options with which a working folder may be missing at submission: it is in an image, or an earlier job makes it."""


class MachinePlace:
    """Sends questions and orders to Kant over HTTP. Raises InputError with Kant's message."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.client = ServiceClient(home)

    def submit(self, wanted: Wanted) -> Submitted:
        _check_command(wanted)
        self._check_folder(wanted)
        jobs: list[str] = self.client.post_short("/v1/jobs", _request(wanted))["jobs"]
        first = self.client.get(self.client.job(jobs[0]))["job"]
        return Submitted(jobs, first["reason"] if first["phase"] == "rejected" else "")

    def _check_folder(self, wanted: Wanted, line: str = "") -> None:
        """Raise InputError for a working folder that is missing on this machine, if Kant runs on this machine."""
        folder = wanted.get("workdir")
        if folder is None or self.client.url or any(wanted.get(name) for name in MAY_COME):
            return
        if not folder.is_dir():
            raise InputError(f"{line}--workdir", "an existing folder", str(folder))

    def trial(self, wanted: Wanted) -> TrialReply:
        _check_command(wanted)
        self._check_folder(wanted)
        found = self.client.post("/v1/eta", _request(wanted, {}))
        (row,) = found["jobs"]
        count_from(found["zero_us"])

        def show() -> None:
            from kant.cli.show_answers import show_one

            show_one(row, found["as_of_us"])

        return TrialReply(found, show, row["expected_us"]["never"])

    def submit_batch(self, lines: list[tuple[int, Wanted]]) -> Submitted:
        for number, wanted in lines:
            self._check_folder(wanted, f"line {number}, ")
        of_all = _environment(any("slurm" in wanted for _, wanted in lines))
        if any(EXPORT in wanted for _, wanted in lines):
            of_all = {}
        rows = [{"line": number, "job": _request(wanted, {} if of_all else None)} for number, wanted in lines]
        return Submitted(self.client.post("/v1/batches", {"lines": rows, "env": of_all})["jobs"])

    def submit_workflow(self, stages: list[WantedStage]) -> Submitted:
        rows = [
            {
                "job": _request(stage.wanted, {}) | {"stage": stage.facts},
                "after": stage.after,
                "after_ok": stage.after_ok,
            }
            for stage in stages
        ]
        env = _environment(any("slurm" in stage.wanted for stage in stages))
        return Submitted(self.client.post("/v1/workflows", {"stages": rows, "env": env})["jobs"])

    def jobs(self, chosen: Filter) -> Reply:
        if chosen.tried:
            return self._tried(chosen)
        page = self.client.get(
            "/v1/jobs", state=chosen.states, queue=chosen.queue, user=chosen.user, name=chosen.name,
            limit=chosen.limit, before=chosen.before,
        )  # fmt: skip

        def show() -> None:
            from kant.cli.job_table import show_jobs
            from kant.cli.plain import say

            now = self.client.get("/v1/health")["now_us"] if page["jobs"] else 0
            show_jobs(page["jobs"], now, chosen.states, chosen.columns)
            if page["next"] is not None:
                everything = "--all " if chosen.is_of_all else ""
                say(f"more: kant jobs {everything}--before {page['next']}", "dim")

        return Reply(page, show)

    def _tried(self, chosen: Filter) -> Reply:
        """Return the waiting jobs in scheduling order."""
        if chosen.before is not None:
            raise InputError("--before", "no pages in the queue's order: use a larger --limit", chosen.before)
        rows: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None and len(rows) < chosen.limit:
            page = self.client.get(
                "/v1/waiting", queue=chosen.queue, user=chosen.user, name=chosen.name, after=after, limit=100
            )
            rows += [row for row in page["jobs"] if row["phase"] in (chosen.states or LIVE).split(",")]
            after = page["next"]
        found = {"jobs": rows[: chosen.limit], "total": page["total"]}

        def show() -> None:
            from kant.cli.job_table import show_jobs

            now = self.client.get("/v1/health")["now_us"] if rows else 0
            show_jobs(found["jobs"], now, chosen.states, chosen.columns)

        return Reply(found, show)

    def logs(self, job: str, follow: bool, tail: int | None, write: Callable[[bytes], None], attempt: int = 0) -> None:
        names = [each["id"] for each in self.client.get(self.client.job(job, "outcome"))["jobs"]]
        if names == [job]:
            self._log(job, follow, tail, write, attempt)
            return
        if follow or attempt:
            option = "--follow" if follow else "--attempt"
            raise InputError(option, f"a single job of the array, such as {names[0]}", job)
        at_start = True

        def noted(part: bytes) -> None:
            nonlocal at_start
            write(part)
            at_start = part.endswith(b"\n") if part else at_start

        for name in names:
            noted(b"" if at_start else b"\n")
            noted(f"==> {name} <==\n".encode())
            self._log(name, False, tail, noted, 0)

    def _log(self, job: str, follow: bool, tail: int | None, write: Callable[[bytes], None], attempt: int) -> None:
        client, at = self.client, self._tail(job, tail, attempt) if tail is not None else 0
        while True:
            headers, body = client.stream(
                client.job(job, "log"), offset=at, follow="true" if follow else "", attempt=attempt or ""
            )
            begins, end = int(headers["X-Kant-Offset"]), int(headers["X-Kant-End"])
            if begins > at >= 0:
                print(f"[kant: {begins - at:,} bytes before this were dropped]", flush=True)
            at = begins
            for part in body:
                write(part)
                at += len(part)
            if follow:
                if not attempt:
                    self._check_over(job)
                headers, _ = client.stream(client.job(job, "log"), offset=at, attempt=attempt or "")
            if follow or at >= end:
                break
        if dropped := int(headers.get("X-Kant-Dropped", "0")):
            print(f"kant: {dropped:,} bytes of its output are lost: the disk was full", file=sys.stderr)

    def _tail(self, job: str, lines: int, attempt: int) -> int:
        """Return the offset of the last `lines` lines of a run's output."""
        if lines < 0:
            raise InputError("--tail", "a number of lines, 0 or more", lines)
        span = 4096
        while True:
            headers, body = self.client.stream(self.client.job(job, "log"), offset=-span, attempt=attempt or "")
            begins, text = int(headers["X-Kant-Offset"]), b"".join(body)
            at = start_of_last(text, lines)
            if at > 0 or span >= int(headers["X-Kant-End"]) or begins == 0:
                return begins + max(at, 0)
            span *= 8

    def _check_over(self, job: str) -> None:
        """Raise InputError if the output of a job has ended before the job has, because Kant stopped."""
        try:
            is_over = self.client.get(self.client.job(job))["job"]["phase"] not in LIVE.split(",")
        except RefusedError:
            raise
        except InputError:
            is_over = False
        if not is_over:
            raise InputError(f"job {job}", "Kant to run until the job ends; Kant has stopped, and the job continues")

    def order(self, verb: str, jobs: tuple[str, ...]) -> list[str]:
        done: list[str] = []
        for job in jobs:
            done += self.client.post(self.client.job(job, verb))["jobs"]
        return done

    def cancel_all(self, chosen: Filter, name: str) -> list[str]:
        from fnmatch import fnmatchcase

        found: dict[str, None] = {}
        before, who = None, self.client.get("/v1/whoami")
        own = who["user"] if who["role"] == "tenant" and not who["queues"] else ""  # an ordinary user
        while True:
            page = self.client.get(
                "/v1/jobs", state=chosen.states, queue=chosen.queue, user=chosen.user or own, limit=1000, before=before
            )
            for row in page["jobs"]:
                if not name or fnmatchcase(row["name"], name):
                    whole = row["array"] >= 0 and chosen.states == LIVE  # its jobs differ only in their states
                    found[str(row["array"]) if whole else row["id"]] = None
            before = page["next"]
            if before is None:
                return self.order("cancel", tuple(found))

    def queues(self) -> Reply:
        found = self.client.get("/v1/queues")

        def show() -> None:
            from kant.cli.show_answers import show_queues

            count_from(found["zero_us"])
            show_queues(found["queues"], found["budgets"])

        return Reply(found, show)

    def top(self) -> Reply:
        found = self.client.get("/v1/top")

        def show() -> None:
            from kant.cli.show import console
            from kant.cli.show_answers import show_top, table

            show_top(found["pools"], found["jobs"])
            names = {"node": "node", "gpus": "GPUs", "gpus_used": "used", "cores": "cores", "cores_used": "used"}
            if any(node["gpus_powered"] is not None for node in found["nodes"]):
                names["gpus_powered"] = "by power cap"
            table("Nodes", found["nodes"], names | {"memory_mib": "MiB", "memory_used_mib": "used"})
            if (most := found["gpus_powered"]) is not None:
                used = sum(node["gpus_used"] for node in found["nodes"])
                console.print(f"{used:g} GPUs in use of the {most:g} that the power cap of all machines allows")
            if found["gpus"]:
                shown = [
                    row | {"busy": f"{100 * row['busy']:.0f} %", "jobs": ", ".join(row["jobs"])}
                    for row in found["gpus"]
                ]
                names = {"gpu": "GPU", "model": "model", "busy": "busy", "memory_mib": "MiB", "memory_used_mib": "used"}
                table("GPUs", shown, names | {"jobs": "jobs"})
            if complaint := self.client.get("/v1/health")["complaint"]:
                console.print(complaint, style="yellow", markup=False)

        return Reply(found, show)

    def why(self, job: str) -> Reply:
        found = self.client.get(self.client.job(job, "why"))

        def show() -> None:
            from kant.cli.show_everyday import show_why

            show_why(found)

        return Reply(found, show)

    def eta(self, job: str | None) -> Reply:
        found = self.client.get("/v1/eta", job=job)
        count_from(found["zero_us"])

        def show() -> None:
            from kant.cli.show_answers import show_age, show_dry, show_expectations, show_one

            if job is not None and len(found["jobs"]) == 1:
                show_one(found["jobs"][0], found["time_us"])
                show_dry(found["budgets"], found["time_us"])
            else:
                show_expectations(found["jobs"], found["time_us"], found["budgets"])
            show_age(found)

        return Reply(found, show)

    def status(self, optimality: bool) -> Reply:
        found = self.client.get("/v1/status", optimality="true" if optimality else "false")

        def show() -> None:
            from kant.cli.status import show

            show(found)

        return Reply(found, show)

    def futures(self, asked: Question, profile: str | None, out: Path | None) -> dict[str, Any] | None:
        """Return Kant's answer to a what-if; None if this user can read the journal of Kant, which has more
        information. Raises InputError for questions that only the journal can answer.
        """
        if not self.client.url and os.access(self._journal()["journal"] or self.home, os.R_OK):
            return None
        if out is not None:
            raise InputError("--out", "none, since only the owner of Kant can read its journal", str(out))
        if profile is not None and Path(profile).is_file():
            raise InputError("--profile", "a built-in profile; only the owner of Kant may name a file", profile)
        from msgspec import to_builtins

        found: dict[str, Any] = self.client.post("/v1/whatif", to_builtins(asked))
        count_from(found["zero_us"])
        return found

    def _journal(self) -> Any:
        """Return the health of Kant on this machine, with the path of its journal and the present time in it."""
        client = ServiceClient(self.home, here=True)
        client.get("/v1/queues")  # answered once Kant has a state
        return client.get("/v1/health")

    def past(self) -> Past:
        from kant.sim.past import read_past

        found = self._journal()
        if not found["journal"]:
            raise InputError(str(self.home), "a Kant that can write its journal, which a what-if needs")
        return read_past(Path(found["journal"]), today=found["now_us"])


def _check_command(wanted: Wanted) -> None:
    if not wanted["command"]:
        raise InputError("COMMAND", "a program and its arguments, such as `kant submit --gpus 1 -- python train.py`")


def _request(wanted: Wanted, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the request in the service's form: a `Submission` of `model/submission.py`, with the current environment
    unless another is given."""
    wanted = dict(wanted)
    names = wanted.pop(EXPORT, None)
    if env is None:
        env = _environment("slurm" in wanted)
    if names is not None:
        kept = {*BARE, *names.split(",")}
        env = {name: value for name, value in env.items() if name in kept}
    mask = os.umask(0)
    os.umask(mask)
    if wanted.get("slurm"):
        env = env | {"SLURM_SUBMIT_DIR": str(Path.cwd()), "SLURM_SUBMIT_HOST": os.uname().nodename}
    own = {
        "name": wanted.get("name") or Path(wanted["command"][0]).name,
        "workdir": str((wanted.get("workdir") or Path.cwd()).absolute()),
        "env": env | wanted.get("env", {}),
        "umask": mask,
    }
    return wanted | own


def _environment(slurm: bool) -> dict[str, str]:
    """Return the current environment without non-UTF-8 entries and variables of another job (`slurm`: nor of Slurm)."""
    others = ("KANT_RUN", "KANT_ARRAY", "SLURM_", "SLURMD_") if slurm else ("KANT_RUN", "KANT_ARRAY")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(others) and not any("\ud800" <= ch <= "\udfff" for ch in name + value)
    }
