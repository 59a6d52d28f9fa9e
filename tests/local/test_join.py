"""Several machines without Kubernetes: they join, run jobs, fall silent and come back; no job runs twice at once.

The machines are processes on loopback addresses, and what lies between them is a relay that can be frozen; one test has
a machine in a network namespace of its own, where it may make one.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.local.joined import Joined, Relay, free_port
from tests.local.up import Up, asked, eventually

from kant.local.joined.keys import address, context, make_keys, take_token
from kant.model.errors import InputError
from kant.service.client import ServiceClient

LEASE_S = 1.5
FAULTS = int(os.environ.get("KANT_FAULTS", "5"))

ONCE = """
exec 9>>lock.$KANT_JOB_ID
flock -n 9 || echo "twice $KANT_JOB_ID" >> trail
for place in $(echo "$KANT_DEVICES" | tr ';' ' '); do
  for gpu in $(echo "${place#*:}" | tr ',' ' '); do
    exec 8>>"gpu.${place%%:*}.$gpu"
    flock -n 8 || echo "clash $KANT_JOB_ID $place $gpu" >> trail
  done
done
echo "begin $KANT_JOB_ID $KANT_ATTEMPT" >> trail
sleep $1
echo "end $KANT_JOB_ID $KANT_ATTEMPT" >> trail
"""
"""Locks die with those who hold them: a run that finds one taken is not alone."""


def nodes(kant: Up) -> list[dict[str, object]]:
    found: list[dict[str, object]] = kant.client.get("/v1/top")["nodes"]
    return found


@contextmanager
def joined(tmp_path: Path, *names: str, lease_s: float = 60.0, gpus: int = 4) -> Iterator[tuple[Up, list[Joined]]]:
    """A Kant with a node of two GPUs, and machines that have joined, of four if nobody says otherwise."""
    port = free_port()
    machines: list[Joined] = []
    with Up(tmp_path / "home", "1x2", join_listen=f"127.0.0.1:{port}", lease_s=lease_s) as kant:
        try:
            kant.port = port  # type: ignore[attr-defined]
            for name in names:
                machines.append(Joined(tmp_path / name, kant.home, port, name, gpus))
            assert eventually(lambda: len(nodes(kant)) == 1 + len(names))
            yield kant, machines
        finally:
            for each in machines:
                each.kill(15)


def test_a_job_runs_on_a_machine_that_has_joined(tmp_path: Path) -> None:
    with joined(tmp_path, "gpu2") as (kant, (machine,)):
        job = kant.submit("echo $KANT_DEVICES $CUDA_VISIBLE_DEVICES $KANT_HOME; sleep 0.3; echo more", gpus=4)
        ends = kant.submit("exec sleep 600", gpus=2, name="ends")
        long = kant.submit("echo begins; exec sleep 600", gpus=4)
        assert kant.over(job) == ["finished"]
        assert kant.log(job) == f"gpu2:0,1,2,3 0,1,2,3 {machine.home}\nmore\n"
        assert eventually(lambda: kant.phase(long) == "running" and "begins" in kant.log(long))
        assert kant.job(long)["job"]["nodes"] == {"gpu2": "0,1,2,3"}
        kant.client.post(kant.client.job(long, "cancel"))
        assert kant.over(long) == ["cancelled"]
        there = ServiceClient(machine.home)  # Kant's API is there, too
        there.post(there.job(ends, "cancel"))
        assert kant.over(ends) == ["cancelled"]
        line = [sys.executable, "-m", "kant", "run", "--gpus", "4", "--", "sh", "-c", "tr a-z A-Z; exit 7"]
        spoken = subprocess.run(
            line, input=b"attached\n", capture_output=True, env=os.environ | {"KANT_HOME": str(kant.home)}, check=False
        )
        assert (spoken.stdout, spoken.returncode) == (b"ATTACHED\n", 7), spoken.stderr
        hears = kant.submit("trap 'echo heard; exit 3' USR1; echo waits; while :; do sleep 0.05; done", gpus=4)
        assert eventually(lambda: "waits" in kant.log(hears))
        kant.client.post(kant.client.job(hears, "signal"), {"signal": "USR1"})
        assert kant.over(hears) == ["failed"] and kant.log(hears) == "waits\nheard\n"
        code = kant.submit("exit 7", gpus=4)
        assert kant.over(code) == ["failed"] and kant.job(code)["job"]["code"] == 7
        assert eventually(machine.runs_nothing)


def test_a_machine_gives_its_own_cores_and_each_once(tmp_path: Path) -> None:
    port, cores = free_port(), tuple(sorted(os.sched_getaffinity(0)))[:2]
    with Up(tmp_path / "home", "1x1", join_listen=f"127.0.0.1:{port}") as kant:
        machine = Joined(tmp_path / "gpu2", kant.home, port, "gpu2", 2, cores=cores)
        try:
            assert eventually(lambda: len(nodes(kant)) == 2)
            script = 'grep Cpus_allowed_list /proc/self/status | tr -dc 0-9,-; echo " $OMP_NUM_THREADS"; sleep 0.5'
            here = kant.submit("sleep 600", gpus=1)
            assert eventually(lambda: kant.phase(here) == "running")
            jobs = [kant.submit(script, gpus=1, cpus=1) for _ in cores]
            assert set(kant.over(*jobs)) == {"finished"}
            assert sorted(kant.log(job) for job in jobs) == [f"{core} 1\n" for core in cores]
            kant.client.post(kant.client.job(here, "cancel"))
        finally:
            machine.kill(15)


def test_a_machine_that_shares_no_files_joins_and_says_so(tmp_path: Path) -> None:
    """That machine finds no file with Kant's word, as if its home were another."""
    port, shared = free_port(), tmp_path / "user"
    shared.mkdir()

    def here() -> None:
        os.environ["HOME"] = str(shared)

    def elsewhere() -> None:
        read = Path.read_text

        def other_files(path: Path, encoding: str | None = None) -> str:
            return read(path.with_name("none") if path.parent == shared else path, encoding)

        Path.read_text = other_files  # type: ignore[method-assign, assignment]

    with Up(tmp_path / "home", "1x1", prepare=here, join_listen=f"127.0.0.1:{port}") as kant:
        same = Joined(tmp_path / "same", kant.home, port, "same")
        other = None
        try:
            assert eventually(lambda: len(nodes(kant)) == 2 and not list(shared.iterdir())), "nothing is left of it"
            assert kant.client.get("/v1/health")["complaint"] == ""
            other = Joined(tmp_path / "other", kant.home, port, "other", prepare=elsewhere)
            said = f"machine other does not share {shared} with this machine"
            assert eventually(lambda: kant.client.get("/v1/health")["complaint"] == said)
        finally:
            for each in (same, other):
                if each is not None:
                    each.kill(15)


def test_a_run_outlives_kant_and_the_agent(tmp_path: Path) -> None:
    """Both are killed within the lease: the run goes on, and its end and its output are found."""
    port = free_port()
    first = Up(tmp_path / "home", "1x2", join_listen=f"127.0.0.1:{port}")
    assert first.answers()
    machine = Joined(tmp_path / "gpu2", first.home, port, "gpu2")
    again = None
    try:
        assert eventually(lambda: len(nodes(first)) == 2)
        job = first.submit("echo begins; until [ -e go ]; do sleep 0.05; done; echo ends; exit 3", gpus=4)
        assert eventually(lambda: "begins" in first.log(job))
        first.kill()
        machine.kill()
        again = Joined(tmp_path / "gpu2", first.home, port, "gpu2")
        with Up(tmp_path / "home", "1x2", join_listen=f"127.0.0.1:{port}") as second:
            assert second.phase(job) == "running"
            (second.home / "go").touch()
            assert second.over(job) == ["failed"]
            assert second.log(job) == "begins\nends\n"
            found = second.job(job)
            assert (found["job"]["code"], found["job"]["attempt"]) == (3, 1)
    finally:
        for each in (machine, again):
            if each is not None:
                each.kill(15)


RANKS = """
scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\\n' ' '; echo
srun --label sh -c 'echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $SLURMD_NODENAME $WORD ${KANT_RUN%%/runs*}'
srun --nodelist=127.0.0.9 -N 1 -n 1 sh -c 'pwd; exit 7'
"""


def test_tasks_of_a_gang_run_on_all_its_machines_and_meet_at_the_first(tmp_path: Path) -> None:
    with joined(tmp_path, "127.0.0.9", gpus=2) as (kant, (machine,)):
        job = kant.submit(RANKS, gpus=4, nodes=2, tasks=4, slurm=True, env={"PATH": os.environ["PATH"], "WORD": "w"})
        assert kant.over(job) == ["failed"] and kant.job(job)["job"]["code"] == 7, kant.log(job)
        lines = kant.log(job).splitlines()
        assert lines[0].split() == ["127.0.0.1", "127.0.0.9"]
        where = [("127.0.0.1", kant.home), ("127.0.0.9", machine.home)]
        assert sorted(lines[1:5]) == [
            f"{rank}: {rank} 4 {rank % 2} 127.0.0.1 {where[rank // 2][0]} w {where[rank // 2][1]}" for rank in range(4)
        ]
        assert lines[5:] == [str(kant.home)]
        gpus = kant.submit("srun sh -c 'echo $CUDA_VISIBLE_DEVICES'", gpus=4, slurm=True)
        assert kant.over(gpus) == ["finished"]
        assert kant.log(gpus).split() == ["0,1", "0,1"]
        wide = kant.submit("srun sleep 600", gpus=4, tasks=2, nodes=1, slurm=True)
        assert eventually(lambda: kant.phase(wide) == "running")
        ServiceClient(machine.home).post(kant.client.job(wide, "cancel"))
        assert kant.over(wide) == ["cancelled"]
        assert eventually(machine.runs_nothing)


def submitted(kant: Up, seconds: float, **wish: object) -> str:
    """A job that finds out whether it is alone, and takes so long."""
    job = asked(kant.home, ONCE, **wish)
    job["command"] += ["sh", f"{seconds:.2f}"]
    return str(kant.client.post("/v1/jobs", job)["jobs"][0])


def moved(kant: Up, node: str, fault: Callable[[], object]) -> str:
    """A job that runs on a machine when that fails, and then here, where there is room from that moment on."""
    here = kant.submit("exec sleep 600", gpus=2)
    assert eventually(lambda: kant.phase(here) == "running")
    job = submitted(kant, 600, gpus=2)
    assert eventually(lambda: kant.job(job)["job"]["nodes"] == {node: "0,1"})
    assert eventually(lambda: (kant.home / "trail").exists())
    fault()
    kant.client.post(kant.client.job(here, "cancel"))
    assert eventually(lambda: kant.job(job)["job"]["nodes"] == {"node-00000": "0,1"}), kant.job(job)
    assert f"machine {node} does not respond" in kant.client.get("/v1/health")["complaint"]
    assert eventually(lambda: len((kant.home / "trail").read_text().splitlines()) == 2)
    assert (kant.home / "trail").read_text().splitlines() == [f"begin {job} 1", f"begin {job} 2"], "never twice at once"
    return job


def back(kant: Up, machine: Joined, job: str) -> None:
    """The machine is there again, has nothing of the job, and leaves it alone."""
    assert eventually(lambda: not kant.client.get("/v1/health")["complaint"])
    assert eventually(machine.runs_nothing)
    assert kant.phase(job) == "running"
    kant.client.post(kant.client.job(job, "cancel"))
    assert kant.over(job) == ["cancelled"]


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_the_jobs_of_a_machine_that_falls_silent_run_elsewhere(tmp_path: Path, fault: str) -> None:
    with joined(tmp_path, "gpu2", lease_s=LEASE_S) as (kant, machines):
        job = moved(kant, "gpu2", getattr(machines[0], fault))
        if fault == "freeze":
            machines[0].thaw()
        else:
            machines.append(Joined(machines[0].home, kant.home, machines[0].port, "gpu2"))
        back(kant, machines[-1], job)


def test_a_machine_leaves_in_order_and_may_come_again(tmp_path: Path) -> None:
    """What runs there ends, or is stopped at its time and runs elsewhere; then the machine is gone."""
    with joined(tmp_path, "gpu2", "gpu3", gpus=2) as (kant, machines):
        here = kant.submit("exec sleep 600", gpus=2)
        there = [kant.submit("until [ -e go ]; do sleep 0.05; done", gpus=2) for _ in machines]
        assert eventually(lambda: all(kant.phase(job) == "running" for job in (here, *there)))
        by_node = {next(iter(kant.job(job)["job"]["nodes"])): job for job in there}
        assert kant.client.post("/v1/machines/gpu2/leave", {}) == {"machine": "gpu2", "jobs": [by_node["gpu2"]]}
        kant.client.post("/v1/machines/gpu3/leave", {"within_s": 0})
        assert eventually(machines[1].is_dead), "its job has to make way"
        kant.client.post(kant.client.job(here, "cancel"))
        moved = by_node["gpu3"]
        assert eventually(lambda: kant.job(moved)["job"]["nodes"] == {"node-00000": "0,1"}), kant.job(moved)
        assert not machines[0].is_dead() and kant.phase(by_node["gpu2"]) == "running"
        late = kant.submit("true", gpus=2)
        kant.kill()
        with Up(kant.home, "1x2", join_listen=f"127.0.0.1:{kant.port}") as again:
            assert eventually(lambda: [node["node"] for node in nodes(again)] == ["node-00000", "gpu2"])
            assert again.phase(late) == "waiting", "nothing starts on a machine that leaves"
            (again.home / "go").touch()
            assert set(again.over(*there, late)) == {"finished"}
            assert eventually(machines[0].is_dead)
            assert (machines[0].home / "log").read_text() == "", "it has gone without a complaint"
            assert eventually(lambda: [node["node"] for node in nodes(again)] == ["node-00000"])
            assert again.client.get("/v1/health")["gpus"] == 2
            machines[:] = [Joined(tmp_path / name, kant.home, kant.port, name, 2) for name in ("gpu4", "gpu3")]
            assert eventually(lambda: len(nodes(again)) == 3)
            wide = again.submit("echo $KANT_DEVICES", gpus=6)
            assert again.over(wide) == ["finished"]
            assert sorted(again.log(wide).strip().split(";")) == ["gpu3:0,1", "gpu4:0,1", "node-00000:0,1"]


def test_a_machine_that_has_lost_its_folder_has_its_jobs_again_when_they_are_dead(tmp_path: Path) -> None:
    """Nobody there knows of the run that lives on: until its lease is over it is not begun anew."""
    with joined(tmp_path, "gpu2", lease_s=LEASE_S) as (kant, machines):
        job = submitted(kant, 600, gpus=4)
        assert eventually(lambda: (kant.home / "trail").exists())
        machines[0].kill()
        shutil.rmtree(machines[0].home / "runs")
        for path in machines[0].home.glob("lease.*"):
            path.unlink()
        early = Joined(machines[0].home, kant.home, machines[0].port, "gpu2")
        assert eventually(early.is_dead), "it is another machine, as long as the run may live"
        assert "--name: expected a name that no other machine has" in (early.home / "log").read_text()
        assert eventually(lambda: kant.phase(job) == "waiting")
        machines.append(Joined(machines[0].home, kant.home, machines[0].port, "gpu2"))
        assert eventually(lambda: len((kant.home / "trail").read_text().splitlines()) > 1)
        assert (kant.home / "trail").read_text().splitlines() == [f"begin {job} 1", f"begin {job} 2"]
        kant.client.post(kant.client.job(job, "cancel"))
        assert kant.over(job) == ["cancelled"]


class Lab:
    """A Kant and two machines behind relays, of which everything can fail."""

    def __init__(self, base: Path, rng: random.Random) -> None:
        self.home, self.rng, self.port = base / "home", rng, free_port()
        self.base = base
        self.kant = self.up()
        self.relays = [Relay(self.port, base / "relay.log") for _ in range(2)]
        self.machines = [self.machine(at) for at in range(2)]

    def up(self) -> Up:
        kant = Up(self.home, "1x2", join_listen=f"127.0.0.1:{self.port}", lease_s=LEASE_S)
        assert kant.answers(), (self.home / "kant.log").read_text()[-3000:]
        return kant

    def machine(self, at: int) -> Joined:
        return Joined(self.base / f"gpu{at}", self.home, self.relays[at].port, f"gpu{at}", gpus=2)

    def fault(self) -> None:
        """Something fails, for shorter than a lease or for longer."""
        at, lasts = self.rng.randrange(2), self.rng.choice((0.2, 0.9 * LEASE_S, 2.5 * LEASE_S))
        match self.rng.choice(("cut", "cut", "frozen", "agent", "kant")):
            case "cut":
                self.relays[at].freeze()
                time.sleep(lasts)
                self.relays[at].thaw()
            case "frozen":
                self.machines[at].freeze()
                time.sleep(lasts)
                self.machines[at].thaw()
            case "agent":
                self.machines[at].kill()
                time.sleep(lasts)
                self.machines[at] = self.machine(at)
            case _:
                self.kant.kill()
                time.sleep(lasts)
                self.kant = self.up()

    def close(self) -> None:
        for each in (*self.machines, *self.relays):
            each.kill(15)
        self.kant.stop()


@pytest.mark.parametrize("seed", [1])
def test_no_job_runs_twice_and_none_is_lost_whatever_fails(tmp_path: Path, seed: int) -> None:
    """`KANT_FAULTS=100` has so many faults."""
    rng = random.Random(seed)
    lab, jobs = Lab(tmp_path, rng), list[str]()
    try:
        assert eventually(lambda: len(nodes(lab.kant)) == 3)
        for _ in range(FAULTS):
            jobs += [
                submitted(lab.kant, rng.choice((0.2, 1.0, 2.0)), gpus=rng.choice((1, 2, 2, 4, 6))) for _ in range(3)
            ]
            time.sleep(rng.uniform(0.0, 0.5))
            lab.fault()
        assert lab.kant.over(*jobs, patience=120) == ["finished"] * len(jobs)
        trail = Counter(" ".join(line.split()[:2]) for line in (lab.home / "trail").open())
        assert not [line for line in trail if line.startswith(("twice", "clash"))], trail
        assert all(trail[f"end {job}"] for job in jobs), trail  # one that ended unheard has run again after it
    finally:
        lab.close()


@pytest.fixture
def network() -> Iterator[tuple[str, str]]:
    """A network namespace and this end of the cable to it; the other has 10.213.77.2."""
    name, here = f"kant{os.getpid()}", f"kt{os.getpid()}"
    commands = (
        f"netns add {name}", f"link add {here} type veth peer name inside netns {name}",
        f"addr add 10.213.77.1/30 dev {here}", f"link set {here} up", f"-n {name} addr add 10.213.77.2/30 dev inside",
        f"-n {name} link set inside up", f"-n {name} link set lo up",
    )  # fmt: skip
    try:
        for command in commands:
            ip(command)
    except (OSError, subprocess.CalledProcessError):
        with suppress(OSError, subprocess.CalledProcessError):
            ip(f"netns del {name}")
        pytest.skip("no network namespaces may be made here")
    yield name, here
    ip(f"netns del {name}")


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


def test_a_machine_whose_cable_is_pulled_kills_its_runs_before_others_have_them(
    tmp_path: Path, network: tuple[str, str]
) -> None:
    name, cable = network

    def enter() -> None:
        with Path(f"/run/netns/{name}").open() as file:
            assert ctypes.CDLL(None).setns(file.fileno(), 0x40000000) == 0

    port, home = free_port(), tmp_path / "home"
    with Up(home, "1x2", join_listen=f"10.213.77.1:{port}", lease_s=LEASE_S) as kant:
        machine = Joined(tmp_path / "gpu2", home, port, "10.213.77.2", 2, "10.213.77.1", enter)
        try:
            assert eventually(lambda: len(nodes(kant)) == 2), (tmp_path / "gpu2" / "log").read_text()
            job = moved(kant, "10.213.77.2", lambda: ip(f"link set {cable} down"))
            ip(f"link set {cable} up")
            back(kant, machine, job)
        finally:
            machine.kill(15)


@given(st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True), st.integers(0, 65535))
def test_an_address_is_a_host_and_a_port(host: str, port: int) -> None:
    assert address(f"{host}:{port}", "ADDRESS") == (host, port)
    assert address(host, "ADDRESS") == (host, 5269)
    assert address(f"[::1]:{port}", "ADDRESS") == ("::1", port)


@pytest.mark.parametrize("text", ["", ":1", "a:b", "a:65536", "a:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="ADDRESS: expected an address such as"):
        address(text, "ADDRESS")


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Let both sides of a connection come to terms, in memory. Raises ssl.SSLError."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(one, other, server_side=True), client.wrap_bio(other, one)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    ends[0].write(b"x")
    assert ends[1].read() == b"x"


def test_each_side_takes_the_certificate_of_the_other_and_no_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_keys(tmp_path / name)
        take_token((tmp_path / name / "token").read_text(), tmp_path / f"{name}-machine")
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / name).iterdir()} == {0o600}
    servers = {name: context(tmp_path / name, is_leader=True) for name in "ab"}
    clients = {name: context(tmp_path / f"{name}-machine", is_leader=False) for name in "ab"}
    shake(servers["a"], clients["a"])
    with pytest.raises(ssl.SSLError):
        shake(servers["a"], clients["b"])
    clients["b"].load_verify_locations(tmp_path / "a" / "leader.pem")  # it takes Kant, and Kant does not take it
    with pytest.raises(ssl.SSLError):
        shake(servers["a"], clients["b"])
    nobody = ssl.create_default_context(cafile=str(tmp_path / "a" / "leader.pem"))
    nobody.check_hostname = False
    with pytest.raises(ssl.SSLError):
        shake(servers["a"], nobody)


def test_a_machine_with_the_token_of_another_kant_gives_up_and_says_why(tmp_path: Path) -> None:
    with joined(tmp_path) as (kant, _):
        make_keys(tmp_path / "other" / "join")
        stranger = Joined(tmp_path / "gpu2", tmp_path / "other", kant.port, "gpu2")
        assert eventually(stranger.is_dead)
        assert "--token-file: expected the output of `kant token join` there" in (stranger.home / "log").read_text()
        assert len(nodes(kant)) == 1


@pytest.mark.parametrize("text", ["", "kant_0123456789abcdef", "kant_join_a.b"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="the token: expected the output of `kant token join`"):
        take_token(text, tmp_path / "keys")
