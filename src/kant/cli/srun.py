"""`srun` inside a job: one process for each task, each with its ranks, on the nodes of the job.

If a job is on one machine, however many nodes it asked for, its tasks are processes on that machine, and the node of a
task determines which GPUs it sees. If a job is on several machines (docs/join.md), another `srun` on each other machine
starts the tasks there, next to the job's process on that machine. The variables are those of srun(1)
(https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES) and those that launchers read instead: `RANK`
and others of torchrun, `OMPI_COMM_WORLD_RANK` of Open MPI (which DeepSpeed and accelerate read, too), `PMI_RANK` of
MPICH, `MV2_COMM_WORLD_RANK` of MVAPICH.

It loads only the standard library, unless its tasks are in containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO


def named(text: str) -> dict[str, str]:
    """Parse option names by meaning: `ntasks -n --ntasks; nodes -N --nodes`."""
    found: dict[str, str] = {}
    for part in text.split(";"):
        meaning, *names = part.split()
        found |= dict.fromkeys(names, meaning)
    return found


VALUED = named(
    "ntasks -n --ntasks; nodes -N --nodes; per_node --ntasks-per-node; nodelist -w --nodelist; relative -r --relative;"
    "task_gpus --gpus-per-task; gpus -G --gpus; node_gpus --gpus-per-node --gres;"
    "chdir -D --chdir; output -o --output; error -e --error; export --export;"
    "kill -K --kill-on-bad-exit; exclude -x --exclude; image --container-image; mounts --container-mounts"
)
OTHERS = named(
    "other -c --cpus-per-task --cpu-bind --gpu-bind --mem --mem-per-cpu --mem-per-gpu"
    " --mpi -m --distribution -t --time -J --job-name -p --partition -A --account --jobid --threads-per-core --hint"
    " --signal --het-group --mem-bind --cpu-freq -q --qos --reservation -C --constraint -i --input --wait -W"
    " --comment --network --propagate --slurmd-debug --nice -d --dependency"
    " --cpus-per-gpu -T --ntasks-per-gpu --ntasks-per-core --ntasks-per-socket"
)
"""Options with a value that a step does not need in Kant, because the job already has what they request."""
OPTIONAL = {"-K": "1", "--kill-on-bad-exit": "1", "--nice": ""}
"""Options whose value, if any, follows `=`."""
ALONE = named(
    "label -l --label; other -u --unbuffered --exclusive --exact --overlap --pty -v --verbose -Q --quiet -O"
    " --overcommit -s --oversubscribe -k --no-kill -X -E --preserve-env"
)
MASTER = "127.0.0.1"
PART = "--kant-part"
"""The option with which one `srun` calls another on a joined machine."""


class SrunUsageError(Exception):
    """The command line of `srun` is invalid."""


@dataclass(slots=True)
class SrunRequest:
    """The request of an `srun` line: options by the names of `VALUED`, and the command."""

    said: dict[str, str] = field(default_factory=dict)
    label: bool = False
    command: list[str] = field(default_factory=list)


def parsed(arguments: list[str]) -> SrunRequest:
    """Parse the options and the command of a line. Raises SrunUsageError."""
    step, at = SrunRequest(), 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-":
        word = arguments[at]
        at += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and word[:2] not in ALONE:  # -n4
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        if name in ALONE or (not word.startswith("--") and word[:2] in ALONE):
            step.label |= name == "--label" or (not word.startswith("--") and "l" in word)
            continue
        if name not in VALUED and name not in OTHERS:
            raise SrunUsageError(f"{name}: expected an option of srun that Kant knows")
        if not equals and name in OPTIONAL:
            value = OPTIONAL[name]
        elif not equals:
            if at == len(arguments):
                raise SrunUsageError(f"{name}: expected a value after it")
            value = arguments[at]
            at += 1
        if name in VALUED:
            step.said[VALUED[name]] = value
    step.command = arguments[at:]
    if not step.command:
        raise SrunUsageError("COMMAND: expected a program and its arguments")
    return step


def _number(step: SrunRequest, name: str, text: str | None) -> int:
    text = step.said.get(name, text or "0").partition("-")[0]
    if not re.fullmatch("[0-9]{1,6}", text):
        raise SrunUsageError(f"{name}: expected a whole number, got {text!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class StepProcess:
    """A process of a step: its rank, its rank on its node, and the index of that node within the step."""

    rank: int
    local: int
    node: int


def layout(step: SrunRequest, env: Mapping[str, str]) -> tuple[list[int], list[StepProcess]]:
    """Return the indices of the job's nodes on which a step runs, and its tasks in blocks. Raises SrunUsageError."""
    names = hostnames(env.get("SLURM_JOB_NODELIST", "localhost"))
    chosen = list(range(len(names)))
    if "nodelist" in step.said:
        wanted = hostnames(step.said["nodelist"])
        chosen = [at for at, name in enumerate(names) if name in wanted]
        if not chosen:
            raise SrunUsageError(
                f"--nodelist: expected nodes of the job ({', '.join(names)}), got {', '.join(wanted)!r}"
            )
    if "exclude" in step.said:
        chosen = [at for at in chosen if names[at] not in hostnames(step.said["exclude"])]
    chosen = chosen[_number(step, "relative", None) :]
    nodes, per_node = _number(step, "nodes", None), _number(step, "per_node", None)
    if nodes > len(chosen):
        raise SrunUsageError(f"--nodes: expected at most {len(chosen)}, as many as the job has, got {nodes}")
    tasks = _number(step, "ntasks", None)
    if nodes:
        chosen = chosen[:nodes]
    whole = len(chosen) == len(names)
    if not tasks:
        per_node = per_node or (0 if not whole else int(env.get("SLURM_NTASKS_PER_NODE") or 0))
        of_job = int(env.get("SLURM_NTASKS") or 0) if whole else len(chosen)
        tasks = per_node * len(chosen) or of_job or len(chosen)
    elif tasks < len(chosen):
        chosen = chosen[:tasks]
    if not chosen:
        raise SrunUsageError("--nodes: expected a node of the job")
    each, rest = divmod(tasks, len(chosen))
    if per_node and tasks > per_node * len(chosen):
        raise SrunUsageError(f"--ntasks: expected at most {per_node * len(chosen)} with --ntasks-per-node, got {tasks}")
    counts = [each + (at < rest) for at in range(len(chosen))]
    found = [StepProcess(0, local, node) for node, count in enumerate(counts) for local in range(count)]
    return chosen, [StepProcess(rank, one.local, one.node) for rank, one in enumerate(found)]


def gpus_of(step: SrunRequest, env: Mapping[str, str], chosen: list[int], tasks: list[StepProcess]) -> list[list[str]]:
    """Return the GPUs of each node of the step: those of the job or, if the step requests a number, that many which no
    other step of the job uses; this waits until they are free. Empty outside a job. Raises SrunUsageError.
    """
    if "KANT_SLOTS" not in env:
        return []
    slots = [env["KANT_SLOTS"].split(";")[at].split(",") for at in chosen]
    asked = [step.said[name].rpartition(":")[2] for name in ("gpus", "node_gpus", "task_gpus") if name in step.said]
    if not asked or not slots[0][0]:
        return slots
    if not asked[0].isdigit():
        raise SrunUsageError(f"--gpus: expected a whole number, got {asked[0]!r}")
    needed = int(asked[0])
    if "gpus" in step.said:
        needed = -(-needed // len(chosen))
    elif "node_gpus" not in step.said:
        needed *= max(sum(one.node == node for one in tasks) for node in range(len(chosen)))
    if needed > len(slots[0]):
        raise SrunUsageError(
            f"--gpus: expected at most {len(slots[0])} on a node, as many as the job has, got {needed}"
        )
    if needed in (0, len(slots[0])):
        return slots
    locks = Path(f"/tmp/kant-steps-{os.getuid()}-{env.get('SLURM_JOB_ID')}-{env.get('KANT_ATTEMPT')}")
    locks.mkdir(mode=0o700, exist_ok=True)
    return [_claimed(locks, at, slot, needed) for at, slot in zip(chosen, slots, strict=True)]


def _claimed(locks: Path, node: int, gpus: list[str], needed: int) -> list[str]:
    """Claim `needed` GPUs of a node; their locks are held until this process ends."""
    while True:
        found: dict[str, int] = {}
        for gpu in gpus:
            file = os.open(locks / f"{node}-{gpu}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                continue
            found[gpu] = file
            if len(found) == needed:
                return list(found)
        for file in found.values():
            os.close(file)
        time.sleep(0.1)


def environment(
    step: SrunRequest,
    env: Mapping[str, str],
    chosen: list[int],
    tasks: list[StepProcess],
    task: StepProcess,
    gpus: list[list[str]],
) -> dict[str, str]:
    """Return the environment of a task that has these GPUs on its node."""
    names = hostnames(env.get("SLURM_JOB_NODELIST", "localhost"))
    counts = [sum(one.node == node for one in tasks) for node in range(len(chosen))]
    own = dict(env)
    if "export" in step.said:
        own = exported(step.said["export"], env)
    size, local_size = len(tasks), counts[task.node]
    listed = ",".join(names[at] for at in chosen)
    master = names[chosen[0]] if "KANT_HOSTS" in env else MASTER
    own |= {
        "SLURM_PROCID": str(task.rank), "SLURM_LOCALID": str(task.local), "SLURM_NODEID": str(task.node),
        "SLURM_NTASKS": str(size), "SLURM_NPROCS": str(size), "SLURM_NNODES": str(len(chosen)),
        "SLURM_STEP_ID": env.get("SLURM_STEP_ID", "0"), "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": str(len(chosen)), "SLURM_STEP_NODELIST": listed,
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)), "SLURMD_NODENAME": names[chosen[task.node]],
        "SLURM_LAUNCH_NODE_IPADDR": master, "SLURM_SRUN_COMM_HOST": master,
        "SLURM_GTIDS": ",".join(str(one.rank) for one in tasks if one.node == task.node),
    }  # fmt: skip
    for prefix in ("OMPI_COMM_WORLD", "MV2_COMM_WORLD"):
        own |= {
            f"{prefix}_RANK": str(task.rank), f"{prefix}_SIZE": str(size), f"{prefix}_LOCAL_RANK": str(task.local),
            f"{prefix}_LOCAL_SIZE": str(local_size),
        }  # fmt: skip
    own |= {"OMPI_COMM_WORLD_NODE_RANK": str(task.local), "PMI_RANK": str(task.rank), "PMI_SIZE": str(size)}
    own |= {"MPI_LOCALRANKID": str(task.local), "MPI_LOCALNRANKS": str(local_size)}
    if size > 1:  # these variables make a program look for other ranks
        own |= {
            "RANK": str(task.rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(task.local),
            "LOCAL_WORLD_SIZE": str(local_size), "GROUP_RANK": str(task.node), "NODE_RANK": str(task.node),
        }  # fmt: skip
        own.setdefault("MASTER_ADDR", master)
        own.setdefault("MASTER_PORT", str(15000 + int(env.get("SLURM_JOB_ID") or 0) % 15000))
    if gpus:
        seen = gpus[task.node]
        each = _number(step, "task_gpus", env.get("SLURM_GPUS_PER_TASK"))
        if each:
            seen = seen[task.local * each : (task.local + 1) * each]
        own["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
        own["SLURM_STEP_GPUS"] = own["CUDA_VISIBLE_DEVICES"]
    return own


def exported(text: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment left by `--export`: ALL, NONE, and names, some with values. Slurm variables stay."""
    words = [word for word in text.split(",") if word]
    if any(word.upper() == "ALL" for word in words):
        own = dict(env)
    else:
        kept = {"PATH", "HOME", "USER", "KANT_SLOTS", *words}
        own = {
            name: value for name, value in env.items() if name in kept or name.startswith(("SLURM", "KANT_", "CUDA_"))
        }
    return own | dict(word.split("=", 1) for word in words if "=" in word)


def hostnames(text: str) -> list[str]:
    """Parse the names in a list such as a[1-3,7],b: `a1 a2 a3 a7 b`."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            found.append(part)
            continue
        for span in match[2].split(","):
            low, _, high = span.partition("-")
            for number in range(int(low), int(high or low) + 1):
                found += hostnames(f"{match[1]}{number:0{len(low)}}{match[3]}")
    return found


def path_of(pattern: str, env: Mapping[str, str]) -> str:
    """Return the file named by an `--output` pattern for a task."""
    values = {
        "j": env.get("SLURM_JOB_ID", ""), "J": env.get("SLURM_JOB_ID", ""), "A": env.get("SLURM_ARRAY_JOB_ID", ""),
        "a": env.get("SLURM_ARRAY_TASK_ID", ""), "t": env["SLURM_PROCID"], "n": env["SLURM_NODEID"],
        "N": env["SLURMD_NODENAME"], "x": env.get("SLURM_JOB_NAME", ""), "u": env.get("SLURM_JOB_USER", ""),
        "s": env["SLURM_STEP_ID"], "%": "%",
    }  # fmt: skip
    return re.sub(r"%(\d*)([%a-zA-Z])", lambda part: values.get(part[2], part[0]).zfill(int(part[1] or 0)), pattern)


def run(arguments: list[str]) -> int:
    """Start the tasks of a command line and wait for them; return their highest exit code. Raises SrunUsageError."""
    step = parsed(arguments)
    chosen, tasks = layout(step, os.environ)
    gpus = gpus_of(step, os.environ, chosen, tasks)
    envs = [environment(step, os.environ, chosen, tasks, task, gpus) for task in tasks]
    hosts = os.environ["KANT_HOSTS"].split(",") if "KANT_HOSTS" in os.environ else []
    elsewhere: dict[str, list[dict[str, str]]] = {}
    here = []
    for task, env in zip(tasks, envs, strict=True):
        host = hosts[chosen[task.node]] if hosts else ""
        if hosts and host != hosts[0]:
            elsewhere.setdefault(host, []).append(env)
        else:
            here.append(env)
    return start(step, here, elsewhere)


def run_part() -> int:
    """Start this machine's tasks of a step, which standard input describes; return their highest exit code."""
    said = json.loads(sys.stdin.buffer.read())
    own = {name: os.environ[name] for name in ("KANT_RUN", "KANT_HOME", "KANT_CONTAINER") if name in os.environ}
    with contextlib.suppress(OSError):  # for example if the folder is not shared
        os.chdir(said["folder"])
    for env in said["tasks"]:
        env |= own
        env["PATH"] = f"{own.get('KANT_HOME', '')}/slurm:{env.get('PATH', os.defpath)}"
    return start(SrunRequest(said["said"], said["label"], said["command"]), said["tasks"], {})


def start(step: SrunRequest, here: list[dict[str, str]], elsewhere: dict[str, list[dict[str, str]]]) -> int:
    """Start tasks with these environments on this machine and on others; return their highest exit code."""
    running: list[subprocess.Popen[bytes]] = []
    there: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    files: dict[str, IO[bytes]] = {}
    ranks = [env["SLURM_PROCID"] for env in here]
    alone = len(here) == 1 and not elsewhere and here[0]["SLURM_NTASKS"] == "1"

    def passed(number: int, _: object) -> None:
        for one in (*running, *there):
            with contextlib.suppress(OSError):
                one.send_signal(number)

    for name in ("INT", "TERM"):  # other signals are sent by Kant itself, to tasks that handle them
        signal.signal(signal.Signals[f"SIG{name}"], passed)
    try:
        for host, envs in elsewhere.items():
            there.append(_start_there(step, host, envs))
        for env in here:
            streams = [_stream(step.said.get(name, ""), env, files) for name in ("output", "error")]
            if step.label:
                streams = [stream if stream is not None else subprocess.PIPE for stream in streams]
            one = subprocess.Popen(
                _line(step, env), env=env, cwd=step.said.get("chdir"), stdout=streams[0],
                stderr=streams[1] if streams[1] is not None else streams[0] if streams[0] not in (None, -1) else None,
                stdin=None if alone else subprocess.DEVNULL,
            )  # fmt: skip
            running.append(one)
            for pipe, out in ((one.stdout, sys.stdout), (one.stderr, sys.stderr)):
                if pipe is not None:
                    reader = threading.Thread(target=_label, args=(pipe, out.buffer, int(env["SLURM_PROCID"])))
                    reader.start()
                    readers.append(reader)
    except OSError as error:
        for one in (*running, *there):
            one.kill()
        print(f"srun: {step.command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    codes = _wait([*running, *there], step.said.get("kill", "0") != "0")
    for reader in readers:
        reader.join()
    worst = max((code if code >= 0 else 128 - code) for code in codes)
    for rank, code in zip(ranks, codes, strict=False):  # the `srun` of another machine reports its own tasks
        if code and not alone:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            print(f"srun: task {rank}: {how}", file=sys.stderr)
    return worst


def _line(step: SrunRequest, env: dict[str, str]) -> list[str]:
    """Return the command of a task, in its container if it has one. Raises OSError if there is no container runtime."""
    image, of_job = step.said.get("image", ""), os.environ.get("KANT_CONTAINER", "")  # the image of this machine
    if not image and not of_job:
        return step.command
    from kant.local.containers import Container, step_container

    if not image:
        return Container.read(of_job).around(step.command, env)
    folder = step.said.get("chdir") or str(Path.cwd())
    mounts = tuple(part for part in step.said.get("mounts", "").split(",") if part)
    return step_container(image.replace("#", "/", 1), mounts, folder, env).around(step.command, env)


def _start_there(step: SrunRequest, host: str, envs: list[dict[str, str]]) -> subprocess.Popen[bytes]:
    """Let another `srun` start tasks next to the part of this job on another machine. Raises OSError."""
    line = [sys.executable, "-m", "kant", "shell", os.environ["KANT_JOB_ID"], "--node", host, "--", "srun", PART]
    one = subprocess.Popen(line, stdin=subprocess.PIPE)
    assert one.stdin is not None
    said = {"said": step.said, "label": step.label, "command": step.command, "folder": str(Path.cwd()), "tasks": envs}
    with one.stdin as into, contextlib.suppress(BrokenPipeError):
        into.write(json.dumps(said).encode())
    return one


def _wait(running: list[subprocess.Popen[bytes]], kill: bool) -> list[int]:
    """Wait for all processes; with `kill`, the others are killed when one has failed."""
    left = {one.pid: one for one in running}
    while left:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        one = left.pop(pid, None)
        if one is None:
            continue
        one.returncode = os.waitstatus_to_exitcode(status)
        if one.returncode and kill:
            for other in left.values():
                with contextlib.suppress(OSError):
                    other.terminate()
    return [one.returncode or 0 for one in running]


def _stream(pattern: str, env: Mapping[str, str], files: dict[str, IO[bytes]]) -> IO[bytes] | int | None:
    if not pattern or pattern in ("all", "none"):
        return subprocess.DEVNULL if pattern == "none" else None
    path = path_of(pattern, env)
    if path not in files:
        files[path] = open(path, "wb")  # noqa: SIM115, PTH123 - it is the processes'
    return files[path]


def _label(pipe: IO[bytes], out: IO[bytes], rank: int) -> None:
    for line in pipe:
        out.write(b"%d: %s" % (rank, line))
        out.flush()
