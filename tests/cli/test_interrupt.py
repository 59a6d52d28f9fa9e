"""Ctrl-C and SIGTERM: a journal that replays, a partial result that says so, and exit code 130 or 143."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
from tests.cli.command import KANT, Outcome, environment, trace, without_progress
from tests.cli.command import kant as command
from tests.cli.test_contract import check_summary

import kant.sim.run
from kant.experiments.pool import forked
from kant.files import write_parquet

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that takes a preemptive profile many seconds."""
    return trace(tmp_path_factory.mktemp("long") / "long.csv", 12_000, spread=11)


def interrupted(journal: Path, *arguments: str | Path, number: int = signal.SIGINT) -> Outcome:
    """Start a command, send its group SIGINT once the journal grows, as a terminal does, and wait for its end."""
    with subprocess.Popen(
        [KANT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True,
        start_new_session=True,
    ) as child:  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while not (journal.is_file() and journal.stat().st_size > 0):
                assert child.poll() is None, child.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            os.killpg(child.pid, number)
            out, err = child.communicate(timeout=120)
        finally:
            child.kill()
    return Outcome(child.returncode, out, without_progress(err))


def check_partial(folder: Path, jobs: int) -> dict[str, object]:
    """What an interrupted run leaves in its folder."""
    summary = json.loads((folder / "summary.json").read_text())
    check_summary(summary)
    assert summary["interrupted"] is True
    assert summary["jobs"] < jobs
    again = command("replay", folder / "journal.jsonl", "--json")
    assert again.code == 0
    found = again.json()
    assert found["equal"] is True and found["digest"] == summary["digest"]
    assert found["run"]["decisions"] == summary["decisions"]
    assert (folder / "jobs.parquet").is_file() and (folder / "series.parquet").is_file()
    return dict(summary)


def test_simulate_interrupted(long: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = interrupted(
        out / "journal.jsonl", "simulate", long, "--cluster", "4x8", "--profile", "srtf", "--out", out, "--json"
    )
    assert outcome.code == 130 and outcome.err == ""
    summary = check_partial(out, 12_000)
    assert outcome.json() == summary
    assert '"interrupted":true' in (out / "report.html").read_text()


def test_compare_interrupted(long: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    journal = out / "srtf" / "journal.jsonl"

    def interrupt() -> None:
        while not (journal.is_file() and journal.stat().st_size > 0):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    chosen = ("--cluster", "4x8", "--profile", "srtf", "--profile", "kant", "--jobs", "1")
    threading.Thread(target=interrupt, daemon=True).start()
    outcome = command("compare", long, *chosen, "--out", out)
    assert outcome.code == 130 and outcome.err == ""
    check_partial(out / "srtf", 12_000)
    assert not (out / "kant").exists()
    assert "srtf: interrupted at" in outcome.out and "kant: interrupted before it began" in outcome.out
    assert (out / "report.html").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_runs_side_by_side_are_interrupted_together(long: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    outcome = interrupted(
        out / "srtf" / "journal.jsonl",
        "compare", long, "--cluster", "4x8", "--profile", "srtf", "--profile", "tiresias", "--profile", "kant",
        "--out", out, "--jobs", "2", "--json", number=number,
    )  # fmt: skip
    assert outcome.code == 130 and outcome.err == ""
    check_partial(out / "srtf", 12_000)
    found = outcome.json()
    assert found["interrupted"] is True and found["runs"][0]["profile"] == "srtf"
    assert len(found["runs"]) == 2 or not (out / "kant").exists()
    assert (out / "report.html").is_file()


def test_nobody_is_left_when_the_first_process_is_killed(long: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        [KANT, "compare", long, "--cluster", "4x8", "--profile", "srtf", "--profile", "tiresias", "--out", out],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True,
    ) as child:  # fmt: skip
        deadline = time.monotonic() + 120
        while not (out / "tiresias" / "journal.jsonl").is_file() or not (out / "srtf" / "journal.jsonl").is_file():
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.02)
        child.kill()
    while time.monotonic() < deadline:
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    raise AssertionError("a run went on without anybody to hear of it")


def test_compare_interrupted_at_the_end_of_a_run(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that was under way comes out whole; the one that never began is not passed over in silence."""
    simulate = kant.sim.run.simulate

    def then_interrupt(*arguments: object, **named: object) -> object:
        result = simulate(*arguments, **named)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(kant.sim.run, "simulate", then_interrupt)
    chosen = ["--cluster", "4x8", "--profile", "fifo", "--profile", "kant", "--jobs", "1"]
    chosen += ["--out", str(tmp_path / "out")]
    outcome = command("compare", small, *chosen, "--json")
    assert outcome.code == 130
    found = outcome.json()
    assert found["interrupted"] is True
    assert [(run["profile"], run["interrupted"], run["completed"]) for run in found["runs"]] == [("fifo", False, 60)]
    assert "kant: interrupted before it began" in command("compare", small, *chosen).out


def test_a_second_interrupt_is_final(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt_twice(*arguments: object, **named: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second one was ignored")

    monkeypatch.setattr(kant.sim.run, "simulate", interrupt_twice)
    outcome = command("simulate", small, "--cluster", "4x8", "--out", tmp_path / "out", "--json")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "kant: interrupted\n")


def test_an_interrupt_while_reading_leaves_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kant.workload.read

    def interrupt(*arguments: object, **named: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    monkeypatch.setattr(kant.workload.read, "read_workload", interrupt)
    out = tmp_path / "out"
    outcome = command("simulate", small, "--cluster", "4x8", "--out", out)
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "kant: interrupted\n")
    assert not out.exists()


AT_AN_IMPORT = """
import os, signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), number)

number, module = int(sys.argv.pop(1)), sys.argv.pop(1)
sys.meta_path.insert(0, Finder)
from kant.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["kant.cli.app", "kant.model.errors", "cyclopts", "numpy", "kant.sim.run"])
def test_a_signal_while_modules_load_shows_no_traceback(small: Path, module: str, number: signal.Signals) -> None:
    words = [sys.executable, "-c", AT_AN_IMPORT, str(int(number)), module, "simulate", small, "--cluster", "4x8"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    handled = number == signal.SIGINT or not module.startswith(("kant.cli", "kant.model"))
    assert done.returncode == (128 + number if handled else -number), done
    assert (done.stdout, done.stderr) in [("", ""), ("", "kant: interrupted\n")]


WHILE_IT_WRITES = """
import os, sys
from kant.cli import main
import kant.workload.convert

def write(table, out):
    out.write(b"half")
    out.flush()
    os.kill(os.getpid(), number)

number = int(sys.argv.pop(1))
kant.workload.convert._write_csv = write
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_file_is_written_leaves_none(small: Path, tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    words = [sys.executable, "-c", WHILE_IT_WRITES, str(int(number)), "trace", "convert", small, folder / "new.csv"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 128 + number and "Traceback" not in done.stderr, done
    assert list(folder.iterdir()) == []


def test_a_signal_that_is_ignored_stays_so(small: Path, tmp_path: Path) -> None:
    """As nohup and shells do for what they start in the background."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def ignore() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    out = tmp_path / "out"
    words = [KANT, "simulate", small, "--cluster", "4x8", "--out", out, "--json"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment(), preexec_fn=ignore) as child:
        try:
            while child.poll() is None:
                for number in numbers:
                    child.send_signal(number)
                time.sleep(0.02)
        finally:
            child.kill()
    assert child.returncode == 0 and json.loads((out / "summary.json").read_text())["completed"] == 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_in_a_process_of_its_own_leaves_signals_to_the_first(number: signal.Signals) -> None:
    def work(line: Connection) -> None:
        os.kill(os.getpid(), number)
        line.send("goes on")

    line, process = forked(work, [])
    assert line.recv() == "goes on"
    process.join()
    line.close()


class _InterruptedOnce:
    """A table whose first writing hears Ctrl-C, as polars does whatever the process does with the signal."""

    def __init__(self) -> None:
        self.tries = 0

    def write_parquet(self, out: io.BytesIO) -> None:
        self.tries += 1
        out.write(b"half" if self.tries == 1 else b"whole")
        if self.tries == 1:
            raise KeyboardInterrupt


def test_a_table_is_written_again_only_where_ctrl_c_is_ignored() -> None:
    usual = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        write_parquet(cast(Any, _InterruptedOnce()), out := io.BytesIO())
        assert out.getvalue() == b"whole"
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            write_parquet(cast(Any, _InterruptedOnce()), io.BytesIO())
    finally:
        signal.signal(signal.SIGINT, usual)
