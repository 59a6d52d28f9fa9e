"""`kant show`: all details of one job."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Home, Json
from kant.cli.output import Reply
from kant.service.client import ServiceClient, home_of


def show(
    job: Annotated[str, Parameter(help="The id of a job.")],
    /,
    *jobs: Annotated[str, Parameter(help="More jobs.")],
    home: Home = None,
    json: Json = False,
) -> int:
    """Print everything about jobs: their requests, their state, and their runs with the resources used.

    With --json, several jobs are an object with the list `jobs`.
    """
    client = ServiceClient(home_of(home))
    found = [_found(client, each) for each in (job, *jobs)]

    def show() -> None:
        for number, each in enumerate(found):
            print(end="\n" if number else "")
            _show(each)

    return Reply({"jobs": found} if jobs else found[0], show).print(json)


def _found(client: ServiceClient, job: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(client.job(job))
    found["sentence"] = client.get(client.job(job, "why"))["sentence"]
    return found


def _show(found: dict[str, Any]) -> None:
    from kant.cli.plain import local_time, say, section
    from kant.cli.show_everyday import stage_lines

    row, names = found["job"], {"submitted": "submitted", "started": "started", "ended": "ended"}
    because = f": {found['sentence']}" if found["sentence"] else ""
    say(f"{row['id']}: {row['name']}, {row['phase']}{because}", "bold")
    lines = [
        ("queue", f"{row['queue']}, priority {row['priority']}, of {row['user']}"),
        ("asks for", _asked(found)),
        ("command", "(shown only to its owner)" if found["hidden"] else shlex.join(found["command"])),
        ("folder", found["workdir"]),
        ("for", ", ".join(f"{name} {found[name]}" for name in ("account", "qos", "comment") if found.get(name))),
        ("after", ", ".join(found["after"] + [f"{job} (must succeed)" for job in found["after_ok"]])),
        *((name, local_time(row[key])) for key, name in names.items()),
        ("place", "; ".join(f"{node}: {f'GPUs {gpus}' if gpus else 'cores'}" for node, gpus in found["place"].items())),
        ("files", found["log"]),
    ]
    section("job", [f"{name:10} {text}" for name, text in lines if text])
    section("GPUs", _used(found["gpu_use"]) if found.get("gpu_use") else [])
    section("workflow", stage_lines(found["stage"]))
    job = found["job"]
    runs = job["attempt"] if job["phase"] in ("running", "stopping") else 0
    section("runs", [_run(each, runs) for each in found["attempts"]])


def _asked(found: dict[str, Any]) -> str:
    from kant.model.units import show_duration

    gpus, cpus, memory, limit = found["job"]["gpus"], found["cpus"], found["memory_mib"], found["time_s"]
    parts = [
        f"{gpus:g} GPU{'s' if gpus != 1 else ''}" if gpus else "",
        f"{cpus:g} core{'s' if cpus != 1 else ''}" if cpus is not None else "",
        f"{memory:,} MiB" if memory else "",
        f"at most {show_duration(limit * 1e6)}" if limit is not None else "",
        f"{found['retries']} {'retry' if found['retries'] == 1 else 'retries'}" if found["retries"] else "",
        f"in reservation {found['reservation']}" if found["reservation"] else "",
    ]
    return ", ".join(part for part in parts if part)


def _used(use: dict[str, Any]) -> list[str]:
    """Return lines about the GPU use of a job."""
    now, mean = (f"{100 * use[key]:.0f} %" for key in ("busy", "busy_mean"))
    memory, most, total = (f"{use[key] / 1024:.1f}" for key in ("memory_mib", "peak_mib", "total_mib"))
    lines = [f"busy       {now}, {mean} since it began", f"memory     {memory} of {total} GiB, {most} at most"]
    return lines + [use["warning"]] * bool(use["warning"])


def _run(attempt: dict[str, Any], runs: int) -> str:
    """Return one line about a run; `runs` is the number of the run that has not ended, 0 if all have."""
    from kant.model.units import show_duration

    if attempt["ran_us"] < 0:
        return f"{attempt['number']}  {'running' if attempt['number'] == runs else 'how it ended is unknown'}"
    end = f"signal {attempt['signal']}" if attempt["signal"] is not None else f"exit code {attempt['code']}"
    ended = {"": "", "limit": ", at its time limit", "memory": ", over its memory"}.get(attempt["why"], ", on request")
    used = f"{attempt['cpu_us'] / 1e6:.2f} s of a core, {attempt['rss_kib'] / 1024:.4g} MiB"
    lost = f", {attempt['dropped']:,} bytes of output are lost" if attempt["dropped"] else ""
    return f"{attempt['number']}  {end}{ended} after {show_duration(attempt['ran_us'])}: {used}{lost}"
