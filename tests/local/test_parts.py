"""The parts of the local driver by themselves: the clock, the list of GPUs, the log, the claim, what is submitted."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE_S

from kant.cli.amounts import parse_array
from kant.local.clock import Offset, SteadyClock, steady_clock
from kant.local.launch import clash
from kant.local.output import read_output
from kant.local.processes import boot_id, started
from kant.local.runs import SupervisedRun, find, read_claim
from kant.local.submission import checked, groups_of, indices
from kant.local.supervisor import Log, Supervisor, claim
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.testing import make_cluster


@given(st.lists(st.integers(0, 10**12), min_size=1), st.integers(0, 2**50))
def test_the_clock_follows_the_time_since_the_boot_alone(ticks: list[int], offset: int) -> None:
    source = iter(itertools.accumulate(ticks))
    clock = SteadyClock(Offset("boot", offset), lambda: next(source))
    times = [clock.micros() for _ in ticks]
    assert times == [offset + tick for tick in itertools.accumulate(ticks)]


def test_the_clock_goes_on_after_a_restart_and_never_back_after_a_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    first = steady_clock(None)
    monkeypatch.setattr("time.time_ns", lambda: 0)  # somebody sets the clock of the machine to 1970
    assert steady_clock(first.offset).offset == first.offset
    latest = first.micros() + 10**9
    assert steady_clock(first.offset, latest, boot="another").micros() > latest


@given(st.lists(st.binary(max_size=300)), st.integers(2, 500), st.integers(-600, 3000), st.integers(1, 400))
def test_what_is_read_of_a_log_is_what_was_written_last(
    tmp_path_factory: pytest.TempPathFactory, writes: list[bytes], cap: int, offset: int, most: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, whole = Log(str(folder), cap), b"".join(writes)
    for data in writes:
        log.write(data)
    found = read_output(folder, offset, most)
    assert found.end == len(whole) == log.offset
    assert found.data == whole[found.offset : found.offset + len(found.data)]
    kept = read_output(folder, 0, 1 << 20)
    assert len(kept.data) <= cap and kept.offset + len(kept.data) == len(whole)
    assert len(kept.data) >= min(len(whole), cap // 2)
    wanted = max(len(whole) + offset, 0) if offset < 0 else min(offset, len(whole))
    assert found.offset == max(wanted, kept.offset)
    assert len(found.data) == min(most, len(whole) - found.offset)


def test_a_full_disk_loses_output_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real, full = os.write, [False]

    def write(file: int, data: bytes) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr("kant.local.supervisor.os.write", write)
    log = Log(str(tmp_path), 1000)
    log.write(b"a" * 10)
    full[0] = True
    log.write(b"b" * 7)
    log.write(b"c" * 5)
    full[0] = False
    log.write(b"d" * 3)
    note = b"\n[kant: 12 bytes of output are lost: the disk was full]\n"
    assert read_output(tmp_path).data == b"a" * 10 + note + b"d" * 3


def test_only_the_first_has_the_claim(tmp_path: Path) -> None:
    assert claim(str(tmp_path), "{}") and not claim(str(tmp_path), "{}")
    other = tmp_path / "other"
    assert find(other) is None and not claim(str(other), "{}")  # nobody will ever begin it
    kept = read_claim(other)
    assert kept is not None and kept.pid == 0
    assert find(other) is None


def test_another_process_of_the_same_number_is_not_taken_for_a_run(tmp_path: Path) -> None:
    import os

    start = started(os.getpid())
    assert start is not None
    for name, ticks, boot in (("mine", start, boot_id()), ("later", start - 1, boot_id()), ("boot", start, "another")):
        folder = tmp_path / name
        folder.mkdir()
        assert claim(str(folder), f'{{"pid": {os.getpid()}, "start": {ticks}, "boot": "{boot}"}}')
        found = find(folder)
        assert isinstance(found, SupervisedRun) == (name == "mine"), name
        if not isinstance(found, SupervisedRun) and found is not None:
            assert found.lost == {"later": "its supervisor was killed", "boot": "the machine was restarted"}[name]


@given(st.integers(0, 200), st.integers(1, 16))
def test_a_gang_has_as_many_gpus_as_were_asked_for(gpus: int, widest: int) -> None:
    groups = groups_of(Submission(command=("true",), workdir="/", gpus=gpus), make_cluster(widest, widest).nodes)
    assert sum(group.count * group.demand.gpus for group in groups) == gpus
    assert all(group.demand.gpus <= widest for group in groups)
    assert sum(group.demand.cpu for group in groups) == (0 if gpus else 1000)


def test_a_submission_that_makes_no_sense_is_refused() -> None:
    good = Submission(command=("true",), workdir="/", gpus=0.5)
    assert checked(good, ()) is good
    for bad in (
        Submission(command=("true",), workdir="/", gpus=1.5),
        Submission(command=("true",), workdir="/", gpus=0.0001),
        Submission(command=("",), workdir="/"),
        Submission(command=("tr\0ue",), workdir="/"),
        Submission(command=("true",), workdir="here"),
        Submission(command=("true",), workdir="/", env={"": "x"}),
        Submission(command=("true",), workdir="/", array=(1, 1)),
    ):
        with pytest.raises(InputError):
            checked(bad, ())


@given(st.integers(0, 2**62 - 1))
def test_devices_are_named_by_their_bits(mask: int) -> None:
    assert sum(1 << int(name) for name in indices(mask).split(",") if name) == mask


def test_a_place_clashes_only_where_something_is_shared() -> None:
    def piece(node: int, mask: int, cpu: int = 0, memory: int = 0) -> list[list[int]]:
        return [[node, 1, mask, 1000, cpu, memory, 1]]

    assert clash(piece(0, 0b11), piece(0, 0b10))
    assert not clash(piece(0, 0b11), piece(1, 0b11)) and not clash(piece(0, 0b01), piece(0, 0b10))
    assert clash(piece(0, 0, cpu=1), piece(0, 1, cpu=5)) and not clash(piece(0, 0, cpu=1), piece(0, 1, memory=5))


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20)), min_size=1, max_size=5))
def test_an_array_is_read_as_it_is_written(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{low}-{low + more}" if more else str(low) for low, more in ranges)
    assert parse_array(text) == [index for low, more in ranges for index in range(low, low + more + 1)]


@pytest.mark.parametrize("slow", ["os.setsid", "os.dup2", "os.umask"])
def test_a_run_that_is_stopped_in_the_instant_of_its_start_is_told(
    slow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has a group of its own, before it has let go of the supervisor's handlers, and after."""
    spec = {
        "command": ["sleep", "600"], "env": dict(os.environ), "umask": 18, "workdir": "/", "account": None,
        "grace_s": 3600.0, "log_bytes": 1 << 20, "memory_mib": 0, "cgroup": "",
    }  # fmt: skip
    original, own = getattr(os, slow.removeprefix("os.")), os.getpid()

    def late(*arguments: object) -> object:
        if os.getpid() != own:
            time.sleep(0.2)
        return original(*arguments)

    monkeypatch.setattr(f"kant.local.supervisor.{slow}", late)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        supervisor = Supervisor(str(tmp_path), spec)
        supervisor._start()
        supervisor._stop("stopped")
        deadline = time.monotonic() + PATIENCE_S
        while (found := os.waitpid(supervisor.child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found[0] == supervisor.child and os.WTERMSIG(found[1]) == signal.SIGTERM
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGTERM, before)
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor.child, signal.SIGKILL)
