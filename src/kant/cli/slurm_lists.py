"""squeue, sacct and sinfo: jobs and queues in the columns that Slurm scripts read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

from kant.cli.place import LIVE
from kant.cli.slurm_common import (
    STATES,
    Row,
    client,
    clock,
    detail,
    formatted,
    jobs_of,
    limit,
    me,
    moment,
    nodes_of,
    options,
    reason,
    rows,
)
from kant.cli.srun import SrunUsageError, named


def squeue(arguments: list[str]) -> int:
    """List the jobs that have not ended."""
    valued = named(
        "user -u --user; jobs -j --jobs; queue -p --partition; name -n --name; states -t --states --state;"
        "format -o --format; sort -S --sort; account -A --account"
    )
    alone = named("bare -h --noheader; me --me; other -l --long -a --all -r --array --start")
    said, _ = options(arguments, valued, alone)
    pattern = said.get("format", "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R")
    states = {word.upper() for word in said.get("states", "").split(",") if word}
    found = rows(LIVE, me() if "me" in said else said.get("user", ""), said.get("queue", ""))
    now = time.time()
    columns: dict[str, tuple[str, Callable[[Row], object]]] = {
        "i": ("JOBID", lambda row: row["id"]), "A": ("JOBID", lambda row: row["seq"]),
        "F": ("ARRAY_JOB_ID", lambda row: row["array"] if row["array"] >= 0 else row["seq"]),
        "K": ("ARRAY_TASK_ID", lambda row: row["array_index"] if row["array"] >= 0 else "N/A"),
        "P": ("PARTITION", lambda row: row["queue"]), "j": ("NAME", lambda row: row["name"]),
        "u": ("USER", lambda row: row["user"]), "t": ("ST", lambda row: STATES[row["phase"]][0]),
        "T": ("STATE", lambda row: STATES[row["phase"]][1]), "Q": ("PRIORITY", lambda row: row["priority"]),
        "M": ("TIME", lambda row: clock(now - row["started"] / 1e6 if row["started"] >= 0 else 0)),
        "D": ("NODES", lambda row: max(len(nodes_of(row).split(",")), 1)), "b": ("TRES_PER_NODE", _gres),
        "R": ("NODELIST(REASON)", lambda row: nodes_of(row) or f"({reason(row)})"), "N": ("NODELIST", nodes_of),
        "r": ("REASON", reason), "V": ("SUBMIT_TIME", lambda row: moment(row["submitted"])),
        "S": ("START_TIME", lambda row: moment(row["started"])), "l": ("TIME_LIMIT", limit),
        "L": ("TIME_LEFT", _left),
        "C": ("CPUS", lambda row: detail(row)["cpus"] or 0),
        "m": ("MIN_MEMORY", lambda row: detail(row)["memory_mib"]),
        "a": ("ACCOUNT", lambda row: detail(row)["account"] or "(null)"), "q": ("QOS", lambda row: detail(row)["qos"]),
        "k": ("COMMENT", lambda row: detail(row)["comment"] or "(null)"),
        "Z": ("WORK_DIR", lambda row: detail(row)["workdir"]),
    }  # fmt: skip
    if "bare" not in said:
        print(formatted(pattern, {}, columns, head=True))
    wanted = set(jobs_of(said["jobs"])) if "jobs" in said else None
    for row in found:
        if wanted is not None and not wanted & {row["id"], str(row["array"]), str(row["seq"])}:
            continue
        if "name" in said and row["name"] not in said["name"].split(","):
            continue
        if states and "ALL" not in states and not states & {word.upper() for word in STATES[row["phase"]]}:
            continue
        print(formatted(pattern, row, columns, head=False).rstrip())
    return 0


def _left(row: Row) -> str:
    found = detail(row)["time_s"]
    if found is None:
        return "UNLIMITED"
    return clock(found - (time.time() - row["started"] / 1e6 if row["started"] >= 0 else 0))


def _gres(row: Row) -> str:
    return f"gres/gpu:{row['gpus']:g}" if row["gpus"] else "N/A"


def sacct(arguments: list[str]) -> int:
    """List jobs, and how they ended."""
    valued = named(
        "jobs -j --jobs; user -u --user; format -o --format; state -s --state; since -S --starttime;"
        "until -E --endtime; queue -r --partition; name --name; account -A --accounts; delimiter --delimiter"
    )
    alone = named(
        "bare -n --noheader; parsable -P --parsable2; piped -p --parsable; all -a --allusers; brief -b --brief;"
        "other -X --allocations -l --long -D --duplicates"
    )
    said, _ = options(arguments, valued, alone)
    brief = "JobID,State,ExitCode"
    names = said.get("format", brief if "brief" in said else "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode")
    fields = [name.partition("%")[0].lower() for name in names.split(",") if name]
    for name in fields:
        if name not in _FIELDS:
            raise SrunUsageError(
                f"{name}: expected fields that Kant has ({', '.join(title for title, _ in _FIELDS.values())})"
            )
    if "jobs" in said:
        kant = client()
        ids = [each["id"] for job in jobs_of(said["jobs"]) for each in kant.get(kant.job(job, "outcome"))["jobs"]]
        found = [detail({"id": job})["job"] for job in ids]
    else:
        since = _since(said.get("since", time.strftime("%Y-%m-%d")))
        found = [row for row in rows("", "" if "all" in said else said.get("user", me()), said.get("queue", ""))
                 if row["ended"] < 0 or row["ended"] >= since]  # fmt: skip
    states = {word.upper() for word in said.get("state", "").split(",") if word}
    found = [row for row in found if not states or states & {word.upper() for word in _state(row)}]
    found = [row for row in found if said.get("name", row["name"]) == row["name"]]
    cells = [[str(_FIELDS[name][1](row)) for name in fields] for row in found]
    _print([_FIELDS[name][0] for name in fields], cells, said)
    return 0


def _since(text: str) -> int:
    from datetime import datetime, timedelta

    if match := re.fullmatch(r"now-(\d+)(minute|hour|day|week)s?", text):
        return int((datetime.now() - timedelta(**{f"{match[2]}s": int(match[1])})).timestamp() * 1e6)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1e6)
    except ValueError:
        raise SrunUsageError(f"--starttime: expected a time such as 2030-01-31 or now-7days, got {text!r}") from None


def _state(row: Row) -> tuple[str, str]:
    if row["phase"] == "failed" and "time limit" in row["reason"]:
        return ("TO", "TIMEOUT")
    if row["phase"] == "failed" and "memory" in row["reason"]:
        return ("OOM", "OUT_OF_MEMORY")
    return STATES[row["phase"]]


def _print(titles: list[str], cells: list[list[str]], said: dict[str, str]) -> None:
    lines = ([] if "bare" in said else [titles]) + cells
    if "parsable" in said or "piped" in said:
        between = said.get("delimiter", "|")
        for line in lines:
            print(between.join(line) + (between if "piped" in said else ""))
        return
    widths = [max(len(line[at]) for line in [titles, *cells]) for at in range(len(titles))]
    rule = [] if "bare" in said else [["-" * width for width in widths]]
    for line in [*lines[: len(rule)], *rule, *lines[len(rule) :]]:
        print(" ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _ran(row: Row) -> float:
    if row["started"] < 0:
        return 0.0
    return float((row["ended"] / 1e6 if row["ended"] >= 0 else time.time()) - row["started"] / 1e6)


def _long_clock(seconds: float) -> str:
    days, rest = divmod(int(max(seconds, 0)), 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def _peak(row: Row) -> str:
    attempts = detail(row)["attempts"]
    return f"{attempts[-1]['rss_kib']}K" if attempts else ""


_FIELDS: dict[str, tuple[str, Callable[[Row], object]]] = {
    "jobid": ("JobID", lambda row: row["id"]), "jobidraw": ("JobIDRaw", lambda row: row["seq"]),
    "jobname": ("JobName", lambda row: row["name"]), "partition": ("Partition", lambda row: row["queue"]),
    "user": ("User", lambda row: row["user"]), "account": ("Account", lambda row: detail(row)["account"]),
    "qos": ("QOS", lambda row: detail(row)["qos"]), "comment": ("Comment", lambda row: detail(row)["comment"]),
    "alloccpus": ("AllocCPUS", lambda row: f"{detail(row)['cpus'] or 1:g}"),
    "reqmem": ("ReqMem", lambda row: f"{detail(row)['memory_mib']}M"),
    "state": ("State", lambda row: _state(row)[1]),
    "exitcode": ("ExitCode", lambda row: f"{row['code'] or 0}:{row['signal'] or 0}"),
    "elapsed": ("Elapsed", lambda row: _long_clock(_ran(row))),
    "elapsedraw": ("ElapsedRaw", lambda row: int(_ran(row))),
    "submit": ("Submit", lambda row: moment(row["submitted"])), "start": ("Start", lambda row: moment(row["started"])),
    "end": ("End", lambda row: moment(row["ended"])), "timelimit": ("Timelimit", limit), "maxrss": ("MaxRSS", _peak),
    "alloctres": ("AllocTRES", lambda row: f"gres/gpu={row['gpus']:g}"),
    "nodelist": ("NodeList", lambda row: ",".join(detail(row)["place"])), "reason": ("Reason", reason),
    "priority": ("Priority", lambda row: row["priority"]),
    "nnodes": ("NNodes", lambda row: max(len(detail(row)["place"]), 1)),
}  # fmt: skip
"""The fields of sacct by their names in lower case."""


def sinfo(arguments: list[str]) -> int:
    """List queues with the nodes that each of them may use."""
    valued = named("queue -p --partition; format -o --format; other -n --nodes -t --states")
    alone = named("bare -h --noheader; each -N --Node; other -l --long -s --summarize -a --all")
    said, _ = options(arguments, valued, alone)
    kant = client()
    queues = list(dict.fromkeys(row["queue"] for row in kant.get("/v1/queues")["queues"])) or ["default"]
    nodes = kant.get("/v1/top")["nodes"]
    pattern = said.get("format", "%9P %5a %10l %6D %6t %N")
    columns: dict[str, tuple[str, Callable[[Row], object]]] = {
        "P": ("PARTITION", lambda row: row["queue"]), "R": ("PARTITION", lambda row: row["queue"]),
        "a": ("AVAIL", lambda row: "up"), "l": ("TIMELIMIT", lambda row: "infinite"),
        "D": ("NODES", lambda row: len(row["nodes"])), "t": ("STATE", lambda row: row["state"]),
        "T": ("STATE", lambda row: row["long"]), "N": ("NODELIST", lambda row: _names(row["nodes"])),
        "G": ("GRES", lambda row: f"gpu:{row['nodes'][0]['gpus']:g}"),
        "c": ("CPUS", lambda row: f"{row['nodes'][0]['cores'] or 0:g}"),
        "m": ("MEMORY", lambda row: f"{row['nodes'][0]['memory_mib'] or 0:g}"),
    }  # fmt: skip
    if "bare" not in said:
        print(formatted(pattern, {}, columns, head=True).rstrip())
    for queue in queues:
        if said.get("queue", queue) != queue:
            continue
        for state, long in (("idle", "idle"), ("mix", "mixed"), ("alloc", "allocated")):
            own = [node for node in nodes if _use(node) == state]
            for some in [[node] for node in own] if "each" in said else [own] if own else []:
                row = {"queue": queue, "nodes": some, "state": state, "long": long}
                print(formatted(pattern, row, columns, head=False).rstrip())
    return 0


def _use(node: Row) -> str:
    if 0 < node["gpus"] <= node["gpus_used"]:
        return "alloc"
    return "mix" if node["gpus_used"] or node["cores_used"] else "idle"


def _names(nodes: Iterable[Row]) -> str:
    return ",".join(node["node"] for node in nodes)
