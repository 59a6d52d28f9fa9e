"""Replay: the same decisions from the journal alone, under built-in profiles that have every policy."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from tests.cli.command import kant, process, snapshot
from tests.profiles import few

from kant.scheduler.profile import builtin_texts

RUNS = [
    name for name in builtin_texts() if name in {*few(), "srtf", "muri-tiresias", "openb-fgd", "random", "baseline"}
]
PREEMPTIVE = ("srtf", "srsf", "tiresias", "helios-srtf")


@pytest.fixture(scope="module")
def runs(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `small` under each of RUNS, in one folder each."""
    out = tmp_path_factory.mktemp("runs") / "out"
    chosen = [token for name in RUNS for token in ("--profile", name)]
    result = kant(
        "compare", small, "--cluster", "4x8", *chosen, "--seed", "3", "--out", out, "--json", "--jobs", "1"
    ).json()
    assert len(result["runs"]) == len(RUNS)
    return out


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_every_profile_replays(name: str, runs: Path) -> None:
    then = json.loads((runs / name / "summary.json").read_text())
    again = kant("replay", runs / name / "journal.jsonl", "--json")
    assert again.code == 0
    found = again.json()
    assert found["equal"] is True
    assert found["digest"] == found["recorded_digest"] == then["digest"]
    summary = found["run"]
    for key in (
        "jobs",
        "completed",
        "censored",
        "rejected",
        "makespan_s",
        "decisions",
        "preemptions",
        "jct_s",
        "wait_s",
    ):
        assert summary[key] == then[key], key
    for key in ("wait_by_size", "jtted", "by_queue", "rejected_because"):
        assert summary[key] == then[key], key
    for key in ("gar", "gfr"):  # the same steps in other pieces: floats may differ in their last bit
        assert summary[key] == pytest.approx(then[key], rel=1e-9), key
    assert summary["sor"] == pytest.approx(then["sor"], rel=1e-9)
    if name in PREEMPTIVE:
        assert then["preemptions"] > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["sjf", "fair-share"])
def test_a_week_replays_with_the_cycles_that_decided_nothing(name: str, tmp_path: Path) -> None:
    """What such a cycle has found not to fit is known to the next one, which so says another hold than without it."""
    jobs, out = tmp_path / "jobs.csv", tmp_path / "out"
    helios = ("helios-venus", "--gpus", "64", "--load", "0.9", "--days", "5", "--seed", "1")
    assert kant("trace", "generate", *helios, "--out", jobs).code == 0
    assert kant("simulate", jobs, "--cluster", "8x8", "--profile", name, "--out", out).code == 0
    assert kant("replay", out / "journal.jsonl", "--json").json()["equal"] is True
    assert b'"event":"cycled"' in (out / "journal.jsonl").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("other", ["srtf", "muri-srsf", "random", "baseline"])
def test_another_profile_on_the_jobs_of_a_journal(other: str, runs: Path) -> None:
    found = kant("replay", runs / "kant" / "journal.jsonl", "--profile", other, "--json").json()
    then = json.loads((runs / other / "summary.json").read_text())
    assert [summary["profile"] for summary in found["runs"]] == ["kant", other]
    assert found["runs"][1]["jobs"] == 60
    # The journal keeps run times as they came out under its own profile's slowdown, and its shapes.
    if other != "muri-srsf":
        assert found["runs"][1]["digest"] == then["digest"]
        assert found["runs"][1]["wait_s"] == then["wait_s"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("then", "other"),
    [("kant", "openb-random"), ("openb-fgd", "muri-srtf"), ("muri-tiresias", "srsf"), ("srtf", "kant")],
)
def test_profiles_of_every_sort_read_each_others_journals(then: str, other: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = kant("replay", runs / then / "journal.jsonl", "--profile", other, "--out", out, "--json")
    outcome.is_civil()
    assert outcome.code == 0
    assert (out / "report.html").is_file()


def test_a_journal_tells_its_digest_to_anyone(journal: Path) -> None:
    import hashlib

    plans = [line for line in journal.read_bytes().splitlines(keepends=True) if b'"event":"planned"' in line]
    digest = hashlib.blake2b(b"".join(plans), digest_size=16).hexdigest()
    assert digest == json.loads((journal.parent / "summary.json").read_text())["digest"]


def lines_of(journal: Path) -> list[bytes]:
    return journal.read_bytes().splitlines(keepends=True)


def test_a_plan_that_was_tampered_with_is_seen(journal: Path, tmp_path: Path) -> None:
    """Another job in one decision: the digests differ, or the event after it no longer fits."""
    lines = lines_of(journal)
    holds = [i for i, line in enumerate(lines) if b'"do":"hold"' in line]
    other = json.loads(lines[holds[0]])
    hold = next(decision for decision in other["decisions"] if decision["do"] == "hold")
    hold["job"] = "j0" if hold["job"] != "j0" else "j1"
    lines[holds[0]] = json.dumps(other, separators=(",", ":")).encode() + b"\n"
    path = tmp_path / "tampered.jsonl"
    path.write_bytes(b"".join(lines))
    outcome = kant("replay", path, "--json")
    assert outcome.code == 1
    found = outcome.json()
    assert found["equal"] is False and found["digest"] != found["recorded_digest"]
    shown = kant("replay", path)
    assert shown.code == 1 and shown.out.startswith("different: ") and "first at" in shown.out


def test_events_that_were_tampered_with_are_seen(journal: Path, tmp_path: Path) -> None:
    lines = lines_of(journal)
    path = tmp_path / "tampered.jsonl"
    started = next(i for i, line in enumerate(lines) if b'"event":"started"' in line)
    finished = next(i for i, line in enumerate(lines) if b'"event":"finished"' in line)
    submitted = next(i for i, line in enumerate(lines) if b'"event":"submitted"' in line)
    variants = {
        "started twice": [*lines[: started + 1], lines[started], *lines[started + 1 :]],
        "never submitted": lines[:submitted] + lines[submitted + 1 :],
        "never started": lines[:started] + lines[started + 1 :],
        "finished twice": [*lines[: finished + 1], lines[finished], *lines[finished + 1 :]],
        "out of order": [lines[0], *reversed(lines[1:])],
        "no header": lines[1:],
        "two headers": [lines[0], *lines],
        "text in between": [*lines[:5], b"hello\n", *lines[5:]],
        "a torn line in between": [*lines[:5], lines[5][:20] + b"\n", *lines[6:]],
        "an empty line in between": [*lines[:5], b"\n", *lines[5:]],
    }
    for name, changed in variants.items():
        path.write_bytes(b"".join(changed))
        outcome = kant("replay", path, "--out", tmp_path / "out")
        assert outcome.code in (1, 2), name
        if outcome.code == 2:
            assert f"{path}:" in outcome.refusal(), name
            assert not (tmp_path / "out").exists(), name


def test_a_finish_that_was_moved_changes_the_digest(journal: Path, tmp_path: Path) -> None:
    """A job that ends where it did not frees GPUs that the recorded plans did not know of."""
    lines = lines_of(journal)
    finished = [i for i, line in enumerate(lines) if b'"event":"finished"' in line]
    del lines[finished[3]]
    path = tmp_path / "moved.jsonl"
    path.write_bytes(b"".join(lines))
    outcome = kant("replay", path)
    assert outcome.code in (1, 2)


def test_a_journal_cut_anywhere_replays(journal: Path, tmp_path: Path) -> None:
    content = journal.read_bytes()
    header = content.index(b"\n") + 1
    path = tmp_path / "cut.jsonl"
    for share in range(1, 20):
        path.write_bytes(content[: header + (len(content) - header) * share // 20])
        found = kant("replay", path, "--json")
        assert found.code == 0, share
        assert found.json()["equal"] is True
    path.write_bytes(content[: header // 2])
    assert f"{path}:1" in kant("replay", path).refusal()
    path.write_bytes(content[:header])
    assert kant("replay", path, "--json").json()["run"]["jobs"] == 0


def test_a_journal_of_another_kind_of_file(journal: Path, small: Path, tmp_path: Path) -> None:
    packed = tmp_path / "journal.jsonl.gz"
    packed.write_bytes(gzip.compress(journal.read_bytes()))
    assert str(packed) in kant("replay", packed).refusal()
    assert str(small) in kant("replay", small).refusal()


def test_replay_writes_results_on_demand(journal: Path, tmp_path: Path) -> None:
    out = tmp_path / "one"
    assert kant("replay", journal, "--out", out).code == 0
    assert {path.name for path in out.iterdir()} == {"summary.json", "jobs.parquet", "series.parquet", "report.html"}
    two = tmp_path / "two"
    assert kant("replay", journal, "--profile", "fifo", "--out", two).code == 0
    assert {path.name for path in two.iterdir()} == {"recorded", "other", "report.html"}


@pytest.mark.long
def test_two_processes_decide_the_same(small: Path, tmp_path: Path) -> None:
    """Whatever the hash seed, the journals are the same byte for byte, and so are the summaries."""
    found = []
    profiles = [token for name in ("kant", "tiresias", "random", "muri-srsf") for token in ("--profile", name)]
    ask = ["compare", small, "--cluster", "4x8", *profiles, "--seed", "5", "--jobs", "1", "--json", "--out"]
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    for name in ("here", "there"):
        out = tmp_path / name
        outcome = kant(*ask, out) if name == "here" else process(*ask, out, env={"PYTHONHASHSEED": other})
        assert outcome.code == 0 and outcome.err == ""
        files = snapshot(out)
        found.append({name: content for name, content in files.items() if name.endswith(("journal.jsonl", ".parquet"))})
        digests = [summary["digest"] for summary in outcome.json()["runs"]]
        assert len(set(digests)) == 4
    assert found[0] == found[1] and len(found[0]) == 12
