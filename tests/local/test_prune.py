"""Pruning: what is over for long goes, whatever kills Kant meanwhile, and nothing else."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.local.up import Up, eventually

from kant.live.journals import Journals
from kant.local.record import OVER, JobPhase, JobRecord
from kant.model.submission import Submission
from kant.model.units import DAY
from kant.service import prune
from kant.service.prune import DOUBT, Places, Pruner, in_doubt, remove
from kant.service.roles import Caller, Role
from kant.service.store import JobStore, digest_of

ANN = Caller("ann", Role.OPERATOR)
NOW = 1000 * DAY
JOBS = st.lists(st.tuples(st.sampled_from(list(JobPhase)), st.integers(0, 200), st.integers(0, 3)), max_size=14)


def fill(home: Path, jobs: list[tuple[JobPhase, int, int]]) -> list[JobRecord]:
    """A store with jobs that ended (or last tried) so many days ago, each with one of four submissions."""
    store, records = JobStore(home / "kant.db"), []
    for seq, (phase, days, which) in enumerate(jobs, start=1):
        wish = Submission(command=("echo", str(which)), workdir="/")
        ended = NOW - days * DAY
        records.append(
            JobRecord(
                seq, str(seq), wish, digest_of(msgspec.json.encode(wish)), "ann", 5, phase, started=6, ended=ended
            )
        )
        (home / "runs" / str(seq) / "1").mkdir(parents=True)
        (home / "runs" / str(seq) / "1" / "log.0").write_text("x")
        store.note(ended, ANN, "submit", str(seq))
    store.write(records)
    store.close()
    return records


@settings(max_examples=examples(30), deadline=None)
@given(JOBS, st.sets(st.integers(1, 14)), st.lists(st.integers(0, 20), max_size=4))
def test_what_is_over_for_long_goes_whatever_happens_meanwhile(
    jobs: list[tuple[JobPhase, int, int]], named: set[int], kills: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        records = fill(home, jobs)
        wanted = {str(seq) for seq in named}
        for kill in [*kills, None]:  # None: it is let finish
            store = JobStore(home / "kant.db")
            prune_batch, prune.BATCH = prune.BATCH, 2
            try:
                pruner = Pruner(store, Places(home / "runs"), 90 * DAY, lambda: NOW, lambda: wanted)
                for number, folders in enumerate(itertools.islice(pruner.steps(), kill)):
                    remove(folders[: 1 if number + 1 == kill else None])  # killed halfway through the last step
            finally:
                prune.BATCH = prune_batch
            if kill is not None:
                store._db.close()
        stay = [
            r for r in records
            if r.phase not in OVER or r.ended >= NOW - 90 * DAY or r.id in wanted or r.seq == len(records)
        ]  # fmt: skip
        assert [row["id"] for row in store.page(most=1000)] == [r.id for r in reversed(stay)]
        assert {r.id for r in stay} == {p.name for p in home.glob("runs/*") if (p / "1" / "log.0").exists()}
        assert {p.name for p in home.glob("runs/*")} == {r.id for r in stay}
        assert [store.record(r.id).submission for r in stay] == [r.submission for r in stay]  # type: ignore[union-attr]
        kept = store._db.execute("SELECT count(*) FROM submissions").fetchone()[0]
        assert kept == len({r.digest for r in stay})
        assert store.last()[0] == len(records)
        more = [record for record in records if record not in stay][:1]
        for record in more:  # what was forgotten can be submitted again
            again = JobRecord(99, "99", record.submission, record.digest, "ann", 5, JobPhase.WAITING)
            store.write([again])
            assert store.record("99").submission == record.submission  # type: ignore[union-attr]
        store.close()


def test_the_audit_log_and_journals_are_pruned_but_not_those_in_use(tmp_path: Path) -> None:
    fill(tmp_path, [(JobPhase.FINISHED, days, 0) for days in (200, 100, 50, 1)])
    journals = Journals(tmp_path / "journal")
    journals.open()
    assert journals.path is not None
    old = tmp_path / "journal" / "19700101T000000.000000.jsonl"
    young = tmp_path / "journal" / "19700101T000001.000000.jsonl"
    late = tmp_path / "journal" / "19990101T000000.000000.jsonl"  # written while the clock was wrong
    for path, seconds in ((old, 1), (young, 2**31), (late, 1), (journals.path, 1)):
        path.touch()
        os.utime(path, (seconds, seconds))
    store = JobStore(tmp_path / "kant.db")
    pruner = Pruner(store, Places(tmp_path / "runs", journals), 90 * DAY, lambda: NOW, set)
    for folders in pruner.steps():
        remove(folders)
    assert not old.exists() and young.exists() and late.exists() and journals.path.exists()
    assert [row["what"] for row in store.audited()] == ["4", "3"]
    assert pruner.pruned == 2
    journals.close()
    store.close()


def test_after_a_leap_of_the_clock_nothing_is_pruned_for_a_week() -> None:
    assert in_doubt(NOW, NOW + DAY, 90 * DAY) == 0 == in_doubt(0, NOW, 90 * DAY)
    assert in_doubt(NOW, NOW + 3650 * DAY, 90 * DAY) == NOW + 3650 * DAY + DOUBT


def test_a_kant_prunes_while_it_runs_and_what_lives_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare() -> None:
        prune.EVERY, prune.PAUSE, prune.DAY = 0.2, 0.0, 1
        monkeypatch.setattr("kant.service.daemon.DAY", 1_000_000)  # days of a second
        monkeypatch.setattr("kant.service.daemon.in_doubt", lambda *_: 0)

    with Up(tmp_path / "home", prepare=prepare, keep_days=1) as kant:
        first = kant.submit("true")
        assert kant.over(first) == ["finished"]
        array = kant.submit("test $KANT_ARRAY_INDEX = 1 && sleep 60; true", array=[0, 1])
        group = array.partition("_")[0]
        after = kant.submit("true", after_ok=[f"{group}_0"], hold=True)
        last = kant.submit("true", after=[array])
        there = lambda: {row["id"] for row in kant.client.get("/v1/jobs")["jobs"]}  # noqa: E731
        assert eventually(lambda: first not in there() and not (kant.home / "runs" / first).exists())
        kant.kill()
    with Up(tmp_path / "home", prepare=prepare, keep_days=1) as kant:
        assert eventually(lambda: kant.phase(last) == "finished")
        assert {f"{group}_0", f"{group}_1", after, last} <= there()
        kant.client.post(kant.client.job(group, "cancel"))
        kant.client.post(kant.client.job(after, "cancel"))
        assert eventually(lambda: there() == {last})  # the last one of all stays
        assert kant.submit("true") == str(int(last) + 1)
        assert kant.over(str(int(last) + 1)) == ["finished"]  # its run writes no more
    shutil.rmtree(tmp_path / "home")
