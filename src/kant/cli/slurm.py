"""Implements Slurm's commands with Kant: `python -m kant.cli.slurm squeue --me`.

Source of options and columns: squeue(1), sacct(1), sinfo(1), scontrol(1), scancel(1) and sbatch(1) of Slurm 25.11.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from typing import Any

from kant.cli.place import LIVE
from kant.cli.slurm_common import (
    STATES,
    client,
    clock,
    detail,
    jobs_of,
    me,
    moment,
    options,
    reason,
    rows,
)
from kant.cli.slurm_lists import sacct, sinfo, squeue
from kant.cli.srun import SrunUsageError, hostnames, named


def main(words: list[str]) -> int:
    """Run one of the commands; return its exit code."""
    name, arguments = words[0], words[1:]
    from kant.cli import app
    from kant.model.errors import InputError

    try:
        return _COMMANDS[name](arguments)
    except (SrunUsageError, app.UsageError, InputError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - nobody reads any more
        return 0
    except KeyboardInterrupt:
        return 130


def srun(arguments: list[str]) -> int:
    """Inside a job, start its tasks; outside, do what `kant run` does with the same options."""
    from kant.cli.srun import PART, parsed, run, run_part

    if arguments == [PART]:
        return run_part()
    if os.environ.get("KANT_JOB_ID") and os.environ.get("SLURM_JOB_ID"):
        return run(arguments)
    from kant.cli.app import run as kant

    step = parsed(arguments)
    at = len(arguments) - len(step.command)
    return kant(["run", *_asked([word for word in arguments[:at] if word != "--"]), "--", *step.command])


def _asked(words: list[str]) -> list[str]:
    """Return the options of srun and salloc as options of `kant run`."""
    said, rest = _said(words)
    if rest:
        raise SrunUsageError(f"{rest[0]}: expected an option")
    made = _translated([one for one in said if one.name not in ("--pty", "--label", "--unbuffered", "--mpi")])
    known = {
        "--gpus", "--cpus", "--memory", "--time", "--name", "--queue", "--priority", "--env", "--workdir", "--nodes",
        "--tasks", "--task-gpus", "--no-preemptible", "--account",
    }  # fmt: skip
    for option in made:
        if option[0] not in known:
            print(f"kant: {option[0]} is ignored: a job with a terminal has no such option", file=sys.stderr)
    return [word for option in made if option[0] in known for word in option]


def _said(words: list[str]) -> tuple[list[Any], list[str]]:
    """Parse the options of sbatch or a similar command; return them, and the remaining words."""
    from kant.cli.sbatch import ALONE, SHORT, SbatchOption

    found, at = list[SbatchOption](), 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:]
        name = SHORT.get(name, name)
        if equals or name in ALONE or name in ("--pty", "--label", "--unbuffered", "--nice"):
            found.append(SbatchOption(name, value if equals else None, "command line"))
            continue
        if at == len(words):
            raise SrunUsageError(f"{name}: expected a value after it")
        found.append(SbatchOption(name, words[at], "command line"))
        at += 1
    return found, words[at:]


def _translated(said: list[Any]) -> list[list[str]]:
    from kant.cli.sbatch import SbatchTranslation

    made = SbatchTranslation(said)
    if made.faults:
        raise SrunUsageError("; ".join(str(fault) for fault in made.faults))
    if made.left_out:
        print(f"kant: ignored: {', '.join(made.left_out)}", file=sys.stderr)
    return made.options


def sbatch(arguments: list[str]) -> int:
    """Queue a script, or a line with --wrap, and print the number of the job as Slurm does."""
    from kant.cli import verbs
    from kant.cli.quick import quick
    from kant.cli.scripts import expanded

    said, rest = _said(arguments)
    parsable = any(one.name == "--parsable" for one in said)
    wrap = next((one.value or "" for one in reversed(said) if one.name == "--wrap"), "")
    own = [one for one in said if one.name not in ("--parsable", "--wrap")]
    made = [word for option in _translated(own) for word in option]
    if wrap:
        named = [] if "--name" in made else ["--name", "wrap"]
        command = ["submit", "--slurm", *made, *named, "--", "sh", "-c", wrap]
    elif rest:
        slurm = [] if "--slurm" in made else ["--slurm"]
        command = ["submit", *slurm, *made, *rest]
        if "/" not in rest[0] and os.path.exists(rest[0]):  # noqa: PTH110 - one look
            command[-len(rest)] = f"./{rest[0]}"
    else:
        command = ["submit", "--slurm", *made]
    command = expanded(command)
    if "--output" not in command[: command.index("--") if "--" in command else None]:
        name = "slurm-%A_%a.out" if "--array" in command else "slurm-%j.out"
        command[1:1] = ["--output", name]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = (quick(command) or (lambda: verbs.call(command)))()
    job = out.getvalue().strip()
    if job:
        print(job if parsable or "--test-only" in command else f"Submitted batch job {job}", flush=True)
    return int(code or 0)


def salloc(arguments: list[str]) -> int:
    """Allocate GPUs, and start a shell on them."""
    from kant.cli.app import run as kant

    return kant(["alloc", *_asked(arguments)])


def scancel(arguments: list[str]) -> int:
    """Cancel jobs, or send them a signal."""
    valued = named(
        "user -u --user; name -n --name --jobname; state -t --state; queue -p --partition; signal -s --signal"
    )
    alone = named("me --me; other -b --batch -f --full -Q --quiet -v --verbose")
    said, words = options(arguments, valued, alone)
    jobs = [job for word in words for job in jobs_of(word)]
    if not jobs:
        if not {"me", "user", "name", "queue"} & set(said):
            raise SrunUsageError("expected the ids of jobs, or --me, --user, --name or --partition")
        states = {"PENDING": "held,blocked,waiting", "PD": "held,blocked,waiting", "RUNNING": "running", "R": "running"}
        live = states.get(said.get("state", "").upper(), LIVE)
        found = rows(live, said.get("user", me() if "me" in said else ""), said.get("queue", ""))
        jobs = [row["id"] for row in found if said.get("name", row["name"]) == row["name"]]
    kant = client()
    for job in jobs:
        if "signal" in said and said["signal"].upper().removeprefix("SIG") not in ("KILL", "9"):
            from kant.cli.sbatch import SIGNALS

            name = said["signal"].upper().removeprefix("SIG")
            kant.post(kant.job(job, "signal"), {"signal": SIGNALS.get(int(name), "") if name.isdigit() else name})
        else:
            kant.post(kant.job(job, "cancel"))
    return 0


def scontrol(arguments: list[str]) -> int:
    """Implement `show` of hostnames, hostlist, job and node; hold, release, requeue and update of jobs; and ping."""
    said, words = options(arguments, {}, {"-o": "line", "--oneliner": "line", "-d": "detail", "--details": "detail"})
    match words:
        case ["show", "hostname" | "hostnames", *names]:
            listed = names or [os.environ.get("SLURM_JOB_NODELIST", "")]
            print("\n".join(name for text in listed for name in hostnames(text)))
        case ["show", "hostlist" | "hostlistsorted", *names]:
            print(",".join(names))
        case ["show", "job" | "jobs", *names]:
            texts = names or [row["id"] for row in rows(LIVE)]
            for job in (job for text in texts for job in jobs_of(text)):
                _show_job(job, "line" in said)
        case ["show", "node" | "nodes", *names]:
            for node in client().get("/v1/top")["nodes"]:
                if not names or node["node"] in names:
                    print(f"NodeName={node['node']} Gres=gpu:{node['gpus']:g} GresUsed=gpu:{node['gpus_used']:g}")
        case ["show", "partition" | "partitions", *names]:
            for queue in client().get("/v1/queues")["queues"]:
                if not names or queue["queue"] in names:
                    print(f"PartitionName={queue['queue']} State={'UP' if queue['state'] == 'open' else 'DOWN'}")
        case ["hold" | "uhold" | "release" | "requeue" as verb, *names] if names:
            kant = client()
            for job in (job for text in names for job in jobs_of(text)):
                kant.post(kant.job(job, "hold" if verb == "uhold" else verb))
        case ["update", *pairs] if pairs:
            _update(dict(pair.partition("=")[::2] for pair in pairs))
        case ["ping"]:
            found = client().get("/v1/health")
            print(f"Kant {found['version']} at {found['cluster']} is UP")
        case _:
            raise SrunUsageError(
                f"expected show hostnames, hostlist, job, node or partition, hold, release, requeue, update or ping, "
                f"got {' '.join(words)!r}"
            )
    return 0


def _show_job(job: str, on_one_line: bool) -> None:
    found = detail({"id": job})
    row = found["job"]
    code = f"{row['code'] or 0}:{row['signal'] or 0}"
    ran = (row["ended"] if row["ended"] >= 0 else time.time() * 1e6) - row["started"] if row["started"] >= 0 else 0
    lines = [
        {"JobId": row["seq"], "JobName": row["name"]},
        {"UserId": row["user"], "Priority": row["priority"], "Account": found["account"] or "(null)",
         "QOS": found["qos"] or "(null)"},
        {"JobState": STATES[row["phase"]][1], "Reason": reason(row), "Dependency": ",".join(found["after"]) or "none"},
        {"Requeue": 1, "Restarts": max(row["attempt"] - 1, 0), "ExitCode": code},
        {"RunTime": clock(ran / 1e6),
         "TimeLimit": clock(found["time_s"]) if found["time_s"] is not None else "UNLIMITED"},
        {"SubmitTime": moment(row["submitted"]), "StartTime": moment(row["started"]), "EndTime": moment(row["ended"])},
        {"Partition": row["queue"], "NodeList": ",".join(found["place"]) or "(null)", "NumNodes": len(found["place"])},
        {"Gres": f"gpu:{row['gpus']:g}", "Command": " ".join(found["command"]), "WorkDir": found["workdir"]},
        {"Comment": found["comment"]},
    ]  # fmt: skip
    texts = [" ".join(f"{name}={value}" for name, value in each.items()) for each in lines]
    print(" ".join(texts) if on_one_line else "\n   ".join(texts))


def _update(pairs: dict[str, str]) -> None:
    from kant.cli.sbatch import dependencies_of, time_of
    from kant.model.units import SECOND, parse_limit

    low = {name.lower(): value for name, value in pairs.items()}
    if low.keys() == {"partitionname", "state"}:
        orders = {"DOWN": "pause", "INACTIVE": "pause", "UP": "resume"}
        if (order := orders.get(low["state"].upper())) is None:
            raise SrunUsageError(f"State: expected UP, DOWN or INACTIVE, got {low['state']!r}")
        client().post(f"/v1/queues/{order}", {"queues": [low["partitionname"]]})
        return
    jobs = jobs_of(low.pop("jobid", ""))
    asked: dict[str, object] = {}
    for name, value in low.items():
        if name == "timelimit":
            found = time_of(value, "TimeLimit")
            if not found:
                raise SrunUsageError("TimeLimit: expected a time such as 1:30:00")
            asked["time_s"] = parse_limit(found[0][1], "TimeLimit") / SECOND
        elif name in ("partition", "name", "jobname"):
            asked["queue" if name == "partition" else "name"] = value
        elif name == "dependency":
            asked["dependencies"] = dependencies_of(value or "none", "Dependency")
        elif name == "priority" and re.fullmatch("-?[0-9]{1,9}", value):
            asked["priority"] = int(value)
        else:
            raise SrunUsageError(f"{name}: expected TimeLimit, Partition, Priority, Dependency or JobName with a value")
    if not jobs:
        raise SrunUsageError("expected JobId=ID")
    kant = client()
    for job in jobs:
        kant.post(kant.job(job, "update"), asked)


_COMMANDS = {
    "sacct": sacct, "salloc": salloc, "sbatch": sbatch, "scancel": scancel, "scontrol": scontrol, "sinfo": sinfo,
    "squeue": squeue, "srun": srun,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
