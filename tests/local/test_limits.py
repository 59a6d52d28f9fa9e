"""Memory and cores: no run takes more than it was given, whatever the machine has to see to it with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.local.up import Up, eventually

from kant.local import cgroups, memory
from kant.local.completion import show_memory
from kant.local.cores import share
from kant.local.forks import ForkServer
from kant.local.processes import marked, started
from kant.local.runs import Spec, begin, clear, read_claim, read_exit

MIB = 1 << 20
HOLD = "held = bytearray({mib} << 20); held[::4096] = bytes(len(held[::4096])); "


def take(mib: int, seconds: float = 60) -> str:
    """A command of the shell that takes so much memory and sleeps."""
    return f'{sys.executable} -S -c "import time; {HOLD.format(mib=mib)} time.sleep({seconds})"'


def test_a_job_over_its_memory_is_ended_and_said_so(tmp_path: Path) -> None:
    with Up(tmp_path / "home", "1x2") as kant:
        plain = kant.submit(take(300), memory_mib=100, retries=1)
        flees = kant.submit(f"trap '' TERM; setsid sh -c 'setsid {take(300)}' & sleep 60", memory_mib=100, gpus=1)
        good, free = kant.submit(take(20, 2.5), memory_mib=400), kant.submit(take(200, 2.5))
        assert kant.over(plain, flees, good, free) == ["failed", "failed", "finished", "finished"]
        for job, attempts in ((plain, 2), (flees, 1)):
            found = kant.job(job)["job"]
            assert found["reason"] == "it exceeded its memory of 100 MiB" and found["signal"] == signal.SIGKILL
            assert found["attempt"] == attempts
            assert marked(f"KANT_RUN={kant.home}/runs/{job}/{attempts}") == []
        told = json.dumps(kant.client.get(kant.client.job(plain, "history")))
        assert "it exceeded its memory of 100 MiB" in told


@contextmanager
def processes(script: str, count: int) -> Iterator[list[int]]:
    """The first so many processes of a script of Python, which write their ids."""
    job = subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert job.stdout is not None
        yield [int(job.stdout.readline()) for _ in range(count)]
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def test_who_shares_memory_takes_it_once() -> None:
    script = f"import os, time; {HOLD.format(mib=60)} any(os.fork() == 0 for _ in range(3)); "
    with processes(script + "os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)", 4) as pids:
        assert 60 * MIB < memory.taken(pids, 0) < 110 * MIB
        assert memory.taken(pids, 1000 * MIB) > 240 * MIB  # it decides nothing, and so is not looked at more closely


def test_all_that_come_from_a_process_are_found() -> None:
    script = (
        "import os, threading, time\n"
        "def more():\n"
        "    if os.fork() == 0: os.setsid(); os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "threading.Thread(target=more).start(); time.sleep(60)\n"
    )
    with processes(script, 3) as (first, *rest):
        found = memory.below(first)
        assert found is None or sorted(found) == sorted(rest)
        for pid in rest:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(os.uname().machine not in memory.KCMP, reason="kcmp is known for other machines")
def test_who_is_in_the_memory_of_another_takes_none() -> None:
    script = f"import ctypes, os; {HOLD.format(mib=60)} c = ctypes.CDLL(None); os.write(1, b'%d\\n' % os.getpid()); "
    with processes(script + "c.vfork(); os.write(1, b'%d\\n' % os.getpid()); c.pause()", 2) as pids:
        assert len(set(pids)) == 2 and 60 * MIB < memory.taken(pids, 0) < 110 * MIB


def spec(home: Path, script: str, cgroup: Path, mib: int = 100) -> Spec:
    env = {"PATH": os.environ["PATH"]}
    return Spec(("sh", "-c", script), env, str(home), 0o022, 1 << 20, 1.0, None, 0.0, mib, (), str(cgroup))


def run_to_its_end(folder: Path, wish: Spec) -> None:
    """Run it, and wait until its supervisor has gone."""
    server = ForkServer()
    run = begin(folder, wish, server)
    server.take()
    assert eventually(lambda: started(run.claim.pid) is None)
    assert read_claim(folder) is not None
    server.close()


def stand_in(path: Path) -> Path:
    """A folder with the files of a cgroup that Kant writes and reads; nothing comes of it."""
    path.mkdir(parents=True)
    for name in ("memory.max", "memory.swap.max", "memory.oom.group", "memory.events", "cgroup.procs", "cgroup.kill"):
        (path / name).touch()
    return path


def test_a_run_has_a_cgroup_that_the_kernel_may_end(tmp_path: Path) -> None:
    """With a folder in place of a cgroup: what the kernel does, the script does."""
    folder, own = tmp_path / "runs" / "1" / "1", stand_in(tmp_path / "cgroup")
    said = f"printf 'oom 1\\noom_kill 2\\n' > {own}/memory.events; kill -9 $$"
    run_to_its_end(folder, spec(tmp_path, said, own))
    ended = read_exit(folder)
    assert ended is not None and (ended.why, ended.signal) == ("memory", signal.SIGKILL)
    values = {name: (own / name).read_text() for name in ("memory.max", "memory.swap.max", "memory.oom.group")}
    assert values == {"memory.max": str(100 * MIB), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert (own / "cgroup.procs").read_text() == "0" and (own / "cgroup.kill").read_text() == "1"


def test_where_no_cgroup_can_be_made_the_supervisor_looks_and_leaves_none(tmp_path: Path) -> None:
    folder, own = tmp_path / "runs" / "1" / "1", tmp_path / "cgroup"
    run_to_its_end(folder, spec(tmp_path, f"test ! -e {own} && exec {take(300)}", own))
    ended = read_exit(folder)
    assert ended is not None and ended.why == "memory" and not own.exists()


def test_no_cgroup_is_left_of_a_run_whose_supervisor_is_killed(tmp_path: Path) -> None:
    runs, base = tmp_path / "runs", tmp_path / "base"
    folders = [runs / job / "1" for job in ("1", "2_0")]
    lost, lives = (cgroups.of_run(base, folder) for folder in folders)
    other = cgroups.of_run(base, tmp_path / "another" / "runs" / "1" / "1")
    for each in (lost, lives, other):
        each.mkdir(parents=True)
    cgroups.sweep(base, runs, {lives})
    assert [each.exists() for each in (lost, lives, other)] == [False, True, True]
    own = stand_in(tmp_path / "cgroup")
    server = ForkServer()
    run = begin(folders[0], spec(tmp_path, "echo here; sleep 60", own), server)
    server.take()
    assert eventually(lambda: any(folders[0].glob("log.*")))
    os.kill(run.claim.pid, signal.SIGKILL)
    assert eventually(lambda: started(run.claim.pid) is None)
    server.close()
    clear(folders[0])
    assert (own / "cgroup.kill").read_text() == "1"
    assert eventually(lambda: marked(f"KANT_RUN={folders[0]}") == [])


MOUNTS = """23 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw
41 31 0:38 /pod /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw
"""


def test_the_branch_of_our_own_is_found() -> None:
    assert cgroups.branch(MOUNTS, "/pod/a") == Path("/sys/fs/cgroup/unified/a")
    assert cgroups.branch(MOUNTS, "/pod") == Path("/sys/fs/cgroup/unified")
    assert cgroups.branch(MOUNTS, "/other") is None
    assert cgroups.branch(MOUNTS.replace("cgroup2", "cgroup"), "/pod") is None


@pytest.mark.parametrize("crowded", [False, True])
def test_a_branch_is_divided_only_where_nobody_else_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crowded: bool
) -> None:
    """With a folder that answers as the kernel does: a branch with processes of its own divides nothing."""
    inside = {str(os.getpid())} | ({"1"} if crowded else set())
    put = cgroups._put

    def kernel(path: Path, text: str) -> None:
        if path == tmp_path / "cgroup.subtree_control" and inside:
            raise OSError(16, "Device or resource busy")
        if path.name == "cgroup.procs":
            (inside.discard if path.parent.name == cgroups.LEAF else inside.add)(text)
        else:
            put(path, text)

    for name, content in (("controllers", "cpu memory"), ("subtree_control", ""), ("procs", "\n".join(inside))):
        (tmp_path / f"cgroup.{name}").write_text(content)
    monkeypatch.setattr(cgroups, "_put", kernel)
    monkeypatch.setattr(cgroups, "_line_of", lambda pid: [pid])
    assert cgroups.divided(tmp_path) is not crowded
    assert (tmp_path / cgroups.LEAF).exists() is not crowded
    assert inside == ({str(os.getpid()), "1"} if crowded else set())
    (tmp_path / "cgroup.controllers").write_text("cpu")
    assert not cgroups.divided(tmp_path)


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=30))
def test_whole_cores_are_never_shared(count: int, steps: list[tuple[int, bool]]) -> None:
    own, held = tuple(range(3, 3 + count)), list[tuple[tuple[int, ...], int]]()
    for cores, goes in steps:
        if goes and held:
            held.pop(cores % len(held))
        elif 0 < cores <= count - sum(len(each) for each, _ in held):
            given = share(own, cores * 1000, held)
            assert len(given) == cores and not any(set(given) & set(each) for each, _ in held)
            held.append((given, cores * 1000))
    assert share(own, 0, held) == share(own, 1000 * count + 1, held) == ()


def test_parts_of_cores_lie_where_most_is_left() -> None:
    first = share((0, 1, 2), 500, [])
    assert first == (0,) and share((0, 1, 2), 2000, [(first, 500)]) == (1, 2)
    assert share((0, 1), 500, [((0,), 500), ((1,), 250)]) == (1,)


def test_runs_of_this_machine_have_cores_of_their_own_also_after_a_restart(tmp_path: Path) -> None:
    home, script = tmp_path / "home", "import os; print(sorted(os.sched_getaffinity(0)))"
    tell = f"{sys.executable} -S -c '{script}'"
    machine = sorted(os.sched_getaffinity(0))

    def cores(kant: Up, job: str) -> list[int]:
        assert eventually(lambda: "]" in kant.log(job))
        told: list[int] = json.loads(kant.log(job).splitlines()[0])
        return told

    with Up(home, None) as kant:
        long = kant.submit(f"{tell}; sleep 60", cpus=1)
        own = cores(kant, long)
        assert len(own) == 1 and set(own) <= set(machine)
        big = kant.submit(f"while [ ! -e go ]; do sleep 0.05; done; exec {take(300)}", cpus=0, memory_mib=100)
        assert eventually(lambda: (home / "runs" / big / "1" / "claim").exists())
        kant.kill()
    (home / "go").touch()
    assert eventually(lambda: read_exit(home / "runs" / big / "1") is not None)  # also while Kant is away
    with Up(home, None) as kant:
        assert kant.over(big) == ["failed"]
        assert kant.job(big)["job"]["reason"] == "it exceeded its memory of 100 MiB"
        assert kant.phase(long) == "running"
        if len(machine) > 1:
            tells = f"{tell}; echo $OMP_NUM_THREADS; nproc"
            rest = kant.submit(tells, cpus=len(machine) - 1)
            assert kant.over(rest) == ["finished"]
            assert cores(kant, rest) == sorted(set(machine) - set(own))
            assert kant.log(rest).split("]\n")[1].split() == [str(len(machine) - 1)] * 2
            part = kant.submit(tells, cpus=0.5, env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "7"})
            assert kant.over(part) == ["finished"]
            assert kant.log(part).split("]\n")[1].startswith("7\n") and not set(cores(kant, part)) & set(own)
        kant.client.post(kant.client.job(long, "cancel"))
        assert kant.over(long) == ["cancelled"]


@pytest.mark.parametrize(
    ("mib", "text"), [(100, "100 MiB"), (16 << 10, "16 GiB"), (1536, "1.5 GiB"), (1 << 20, "1 TiB")]
)
def test_memory_is_said_as_people_say_it(mib: int, text: str) -> None:
    assert show_memory(mib) == text
