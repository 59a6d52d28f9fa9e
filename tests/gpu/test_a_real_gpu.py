"""Kant on a machine with a real NVIDIA GPU: what it finds, gives to jobs, sees of their use, and takes back.

They run where there is a GPU that nobody else uses, with PyTorch; elsewhere they are skipped. The oracle is nvidia-smi.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.up import TEXT

from kant.local.machine import devices

FOUND = devices()
pytestmark = [pytest.mark.skipif(not FOUND, reason="no NVIDIA GPU"), pytest.mark.long, pytest.mark.service]
IDLE = "20s"
PATIENCE = float(os.environ.get("KANT_PATIENCE_S", "60"))
HOLDS = """
import subprocess, sys, time, torch
x = torch.ones(2 << 30, dtype=torch.uint8, device='cuda')
torch.cuda.synchronize()
print('on it', flush=True)
"""
WORKS = (
    HOLDS
    + """
a = torch.randn(4096, 4096, device='cuda', dtype=torch.bfloat16)
while True:
    for _ in range(50):
        b = a @ a
    torch.cuda.synchronize()
"""
)
SLEEPS = HOLDS + "time.sleep(600)"
GROWS = (
    HOLDS
    + """
kept = []
while True:
    kept.append(bytearray(b'x') * (512 << 20))
    time.sleep(0.05)
"""
)
OVERFLOWS = HOLDS + "kept = [torch.ones(8 << 30, dtype=torch.uint8, device='cuda') for _ in range(100)]"
COUNTS = HOLDS + "[(print(n, flush=True), torch.cuda.synchronize(), time.sleep(0.2)) for n in range(50)]"
TRAINS = (
    HOLDS
    + """
from kant.client.elastic import Elastic
elastic, model = Elastic(), torch.nn.Linear(64, 64).cuda()
tokens, optimizer = elastic.tokens, torch.optim.SGD(model.parameters(), lr=0.1)
print('GPUs', elastic.now.gpus, flush=True)
while not elastic.is_over(tokens):
    if elastic.changed(tokens):
        print('GPUs', elastic.now.gpus, 'tail' * (elastic.now.tail is not None), flush=True)
    for group in optimizer.param_groups:
        group['lr'] = elastic.rate(tokens)
    for _ in range(elastic.now.rounds):
        model(torch.randn(elastic.now.each * elastic.now.gpus, 64, device='cuda')).square().mean().backward()
    optimizer.step(); optimizer.zero_grad(); torch.cuda.synchronize()
    tokens += elastic.now.batch
    time.sleep(0.005)
print('loss', float(model(torch.randn(64, 64, device='cuda')).square().mean().detach()))
"""
)
CONTRACT = (
    "[batch]\nleast = 16\nmost = 64\nper_gpu = 16\n[rate]\namplitude = 0.1\nbatch_power = 0.5\ntoken_power = -0.25\n"
)
FORKS = f"import subprocess, sys\n[subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]) for _ in range(2)]\n{SLEEPS}"
SEES = "import os, torch; print(os.environ['CUDA_VISIBLE_DEVICES'], torch.cuda.device_count())"


def smi(query: str) -> list[str]:
    """The lines of nvidia-smi about what it is asked."""
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def on_the_gpu() -> list[str]:
    """The processes that are on it."""
    return smi("--query-compute-apps=pid,used_memory")


def used_mib() -> int:
    """MiB of its memory in use."""
    return int(smi("--query-gpu=memory.used")[0])


def eventually(true: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What comes true in time."""
    end = time.monotonic() + patience
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


class Kant:
    """The command, with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.jobs: list[str] = []

    def __call__(self, *words: str, code: int | None = 0) -> str:
        done = subprocess.run([sys.executable, "-m", "kant", *words], capture_output=True, text=True, check=False)
        assert code in (None, done.returncode), (words, done)
        return done.stdout

    def submit(self, script: str, *words: str) -> str:
        options = words or ("--gpus", "1")
        job = json.loads(self("submit", *options, "--json", "--", sys.executable, "-c", script))["jobs"][0]
        self.jobs.append(str(job))
        return str(job)

    def show(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("show", job, "--json"))
        return found

    def phase(self, job: str) -> str:
        return str(self.show(job)["job"]["phase"])

    def begins(self, job: str) -> None:
        """Wait until a job is on the GPU."""
        assert eventually(lambda: "on it" in self("logs", job, code=None)), (
            self.show(job),
            self("logs", job, code=None),
        )

    def over(self, job: str) -> str:
        assert eventually(lambda: self.phase(job) in ("finished", "failed", "cancelled")), self.show(job)
        return self.phase(job)

    def cancel(self, job: str) -> None:
        self("cancel", job)
        assert self.over(job) == "cancelled"


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kant]:
    assert not on_the_gpu(), "somebody else is on the GPU"
    one = Kant(tmp_path_factory.mktemp("gpu") / "home")
    os.environ["KANT_HOME"] = str(one.home)
    said = one("up", "--detach", "--listen", "none", "--idle-gpus", IDLE, "--power-cap", "5kW")
    print(said)
    watts, memory = (float(smi(f"--query-gpu={what}")[0]) for what in ("enforced.power.limit", "memory.total"))
    assert f", {memory / 1024:,.0f} GiB), " in said and f"each at up to {watts:.0f} W" in said
    one("down")
    refused = one("up", "--detach", "--listen", "none", "--power-cap", f"{watts - 1:.0f}W", code=2)
    assert refused == ""
    one("up", "--detach", "--listen", "none", "--idle-gpus", IDLE, "--power-cap", f"{watts:.0f}W")
    yield one
    one("down")
    print((one.home / "kant.log").read_text()[-3000:])


@pytest.fixture
def empty(kant: Kant) -> Iterator[int]:
    """MiB in use where no job is; it is so again when the jobs of a test are cancelled."""
    before = used_mib()
    yield before
    for job in kant.jobs:
        kant("cancel", job, code=None)
    kant.jobs.clear()
    assert eventually(lambda: not on_the_gpu() and used_mib() <= before + 16), (on_the_gpu(), used_mib(), before)


def test_what_is_found_is_what_the_driver_says(kant: Kant) -> None:
    names = smi("--query-gpu=name")
    assert [device.model for device in FOUND] == names
    assert [device.uuid for device in FOUND] == smi("--query-gpu=uuid")
    found = eventually(lambda: json.loads(kant("top", "--json"))["gpus"])
    assert [gpu["model"] for gpu in found] == names
    print(kant("top"))
    total = [int(text) for text in smi("--query-gpu=memory.total")]
    assert [gpu["memory_mib"] for gpu in found] == pytest.approx(total, abs=1024), "NVML keeps a part for itself"


def test_a_job_sees_its_gpu_and_no_other(kant: Kant, empty: int) -> None:
    with_one, with_none = kant.submit(SEES), kant.submit(SEES, "--cpus", "1")
    assert [kant.over(job) for job in (with_one, with_none)] == ["finished"] * 2
    assert kant("logs", with_one).split() == ["0", "1"]
    assert kant("logs", with_none).split() == ["0"], "an empty list, and no GPU"


def test_who_works_and_who_idles_is_seen(kant: Kant, empty: int) -> None:
    job = kant.submit(WORKS)
    kant.begins(job)
    works = eventually(lambda: (use := kant.show(job)["gpu_use"]) and use["busy"] > 0.9 and use)
    said, oracle = kant("show", job), used_mib()
    print(said, kant("top"), "nvidia-smi:", oracle, smi("--query-gpu=utilization.gpu"))
    assert works["memory_mib"] == pytest.approx(oracle, rel=0.05) and works["memory_mib"] > 2048
    assert [gpu["jobs"] for gpu in json.loads(kant("top", "--json"))["gpus"]] == [[job]]
    kant.cancel(job)
    job = kant.submit(SLEEPS)
    kant.begins(job)
    idles = eventually(
        lambda: (use := kant.show(job)["gpu_use"]) and use["busy"] == 0 and use["memory_mib"] > 2048 and use
    )
    assert idles, kant.show(job)["gpu_use"]
    print(kant("show", job))
    kant.cancel(job)


def test_over_its_memory_it_leaves_nothing_on_the_gpu(kant: Kant, empty: int) -> None:
    job = kant.submit(GROWS, "--gpus", "1", "--memory", "6GiB")
    assert kant.over(job) == "failed"
    print(kant("show", job))
    assert "memory" in kant.show(job)["job"]["reason"]


def test_without_memory_on_its_gpu_it_is_said_so(kant: Kant, empty: int) -> None:
    job = kant.submit(OVERFLOWS)
    assert kant.over(job) == "failed"
    assert kant.show(job)["job"]["reason"] == "exit code 1: its GPU had no memory left, as its output says"


def test_two_share_a_gpu_and_a_third_waits(kant: Kant, empty: int) -> None:
    first, second = (kant.submit(SLEEPS, "--gpus", "0.5") for _ in range(2))
    kant.begins(first)
    kant.begins(second)
    third = kant.submit(SEES, "--gpus", "0.5")
    assert len(on_the_gpu()) == 2 and kant.phase(third) == "waiting"
    both = eventually(lambda: (use := kant.show(first)["gpu_use"]) and use["memory_mib"] > 4096 and use)
    assert both["memory_mib"] == pytest.approx(used_mib(), rel=0.05), "what all on it do"
    kant.cancel(first)
    assert kant.over(third) == "finished"


def test_a_job_on_the_gpu_outlives_kant(kant: Kant, empty: int) -> None:
    job = kant.submit(COUNTS)
    kant.begins(job)
    (kant.home / "kant.log").touch()
    os.kill(int((kant.home / "lock").read_text()), 9)
    assert len(on_the_gpu()) == 1
    kant("up", "--detach", "--listen", "none", "--idle-gpus", IDLE, "--power-cap", "5kW")
    assert kant.over(job) == "finished"
    assert kant("logs", job).split()[-1] == "49" and kant.show(job)["job"]["attempt"] == 1


def test_an_elastic_training_follows_its_contract(kant: Kant, empty: int, tmp_path: Path) -> None:
    """On a machine of one GPU nothing shrinks: a virtual one of four gives its processes the same GPU."""
    (tmp_path / "contract.toml").write_text(CONTRACT)
    (tmp_path / "hurry.toml").write_text(TEXT + "\n[elastic]\ngrow_s = 0\n")
    home, own = str(tmp_path / "home"), Kant(tmp_path / "home")
    os.environ["KANT_HOME"] = home
    try:
        own("up", "--detach", "--listen", "none", "--cluster", "1x4", "--profile", str(tmp_path / "hurry.toml"))
        options = ("--gpus", "4", "--contract", str(tmp_path / "contract.toml"), "--time", "1h")
        job = own.submit(f"import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n{TRAINS}", *options)
        own.begins(job)
        other = own.submit("", "--gpus", "2", "--priority", "1", "--time", "1m")
        assert own.over(other) == "finished"
        assert eventually(
            lambda: own("logs", job).split("GPUs")[1:] and "GPUs 4" in own("logs", job).split("GPUs 2")[-1]
        )
        own("cancel", job)
        assert own.over(job) == "finished"
        print(own("logs", job))
        assert "tail" in own("logs", job) and "loss" in own("logs", job)
        own("down")
    finally:
        os.environ["KANT_HOME"] = str(kant.home)


def test_killed_it_leaves_no_process_on_the_gpu(kant: Kant, empty: int) -> None:
    job = kant.submit(FORKS)
    kant.begins(job)
    assert eventually(lambda: len(on_the_gpu()) == 3), on_the_gpu()
    print("on the GPU:", on_the_gpu())
    kant("cancel", job)
    assert kant.over(job) == "cancelled"
    assert on_the_gpu() == [], "none when the job is over, not only later"


def test_idle_gpus_of_an_interactive_job_are_taken(kant: Kant, empty: int) -> None:
    batch = kant.submit(SLEEPS, "--gpus", "0.5")
    kant.begins(batch)
    said = bytearray()

    def read(fd: int) -> bytes:
        data = os.read(fd, 4096)
        said.extend(data)
        return data

    pty.spawn([sys.executable, "-m", "kant", "run", "--gpus", "0.5", "--", sys.executable, "-c", SLEEPS], read)
    text = said.decode(errors="replace")
    print(text)
    assert "its GPUs have been idle for" in text, "a warning"
    assert "its GPUs were idle for 20s" in text, "why it has ended"
    assert kant.phase(batch) == "running", "it is not interactive"
    kant.cancel(batch)
