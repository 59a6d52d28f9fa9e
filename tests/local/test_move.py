"""`kant export` and `kant import`: all that a Kant knows goes to another machine."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.examples import examples
from tests.local.up import Up, asked, eventually

from kant.insight.calibration import CalibrationState, HorizonState, horizon
from kant.insight.past_jobs import PastJobs
from kant.live.learned import SavedCalibration, digest
from kant.local.record import JobPhase, JobRecord
from kant.model.errors import InputError
from kant.model.job import Demand, Job, PodGroup
from kant.model.submission import Submission
from kant.model.tenant import Budget, Queue, QueueConfig, Quota
from kant.model.units import HOUR
from kant.scheduler.profile import builtin_profile
from kant.service.export import export_home, import_home, jobs_of, read_export, renumbered
from kant.service.store import JobStore, digest_of
from kant.service.waits_store import LEARNED, read_learned
from kant.workload.tenants_file import parse_tenants
from kant.workload.tenants_text import text_of

QUEUES = QueueConfig(
    (
        Queue("all"),
        Queue(
            "vision",
            "all",
            weight=3,
            min_run=90_000_000,
            node_wait=60_000_000,
            user_queues=True,
            max_time=HOUR,
            budget=Budget(5000, 4000, 3000, 2000),
            quotas=(Quota(nominal=4000),),
        ),
    )
)


def made_home(home: Path, records: list[JobRecord]) -> Path:
    home.mkdir()
    store = JobStore(home / "kant.db")
    store.write(records)
    store.close()
    return home


def a_record(seq: int, phase: JobPhase, **other: object) -> JobRecord:
    wish = Submission(command=("true",), workdir="/", name=f"j{seq % 3}", gpus=seq % 2)
    digest = digest_of(msgspec.json.encode(wish))
    record = JobRecord(seq, str(seq), wish, digest, "ann", 10**15 + seq * 10**6, phase)
    if record.is_over:
        record.started, record.ended, record.attempt = record.submitted + 1, record.submitted + 10**6, 1
    return replace(record, **other)  # type: ignore[arg-type]


@pytest.mark.long
def test_jobs_queues_history_and_journals_go_to_another_machine(tmp_path: Path) -> None:
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "export"
    with Up(old, "1x4", queue_config=QUEUES) as kant:
        short = [kant.submit("exit 0", queue="all", cpus=0) for _ in range(2)]
        kant.over(*short)
        runs = kant.submit("sleep 60", gpus=4, queue="vision", grace_s=0.1)
        assert eventually(lambda: kant.phase(runs) == "running")
        waits = kant.submit("echo $SAID", gpus=2, queue="vision", env={"SAID": "hello", "PATH": "/bin:/usr/bin"})
        wish = asked(old, "true", gpus=1, queue="all", array=(0, 1), after=(waits,))
        kant.client.post("/v1/jobs", wish)
        late = kant.submit("true", gpus=0, queue="all", after=(runs,))
        live = verb("export", str(tmp_path / "live"), "--home", str(old))
        assert live.code == 0 and "Kant still runs here" in live.out
        before = verb("history", "--home", str(old), "--by", "job,user,queue", "--json").json()["rows"]
    found = verb("export", str(folder), "--home", str(old), "--json").json()
    assert (found["over"], found["waiting"], found["running"], found["is_live"]) == (2, 4, 1, False)
    assert parse_tenants("queues", (folder / "queues.toml").read_text()) == QUEUES
    assert folder.stat().st_mode & 0o777 == 0o700, "environments have secrets"

    taken = verb("import", str(folder), "--home", str(new))
    assert f"job {late} is held" in taken.out and "kant up --queues" in taken.out
    refused = verb("import", str(folder), "--home", str(new)).refusal()
    assert "has not yet imported" in refused
    with Up(new, "1x4", queue_config=QUEUES) as kant:
        assert kant.over(waits, f"{int(waits) + 1}_0", f"{int(waits) + 1}_1") == ["finished"] * 3
        assert kant.log(waits) == "hello\n" and kant.phase(late) == "held"
        after = verb("history", "--home", str(new), "--by", "job,user,queue", "--json").json()["rows"]
        assert [row for row in after if row["job"] in short] == before
        assert runs not in {row["job"] for row in after}
        health = kant.client.get("/v1/health")
        names = sorted(path.name for path in (folder / "journal").iterdir())
        assert names and names == sorted(path.name for path in (new / "journal").iterdir())[: len(names)]
        assert Path(health["journal"]).name > names[-1]
        with pytest.raises(InputError, match="a home that no other Kant uses"):
            import_home(tmp_path / "live", new)
    with Up(old, "1x4", queue_config=QUEUES) as kant:  # what ran ran on
        kant.client.post(kant.client.job(runs, "cancel"))
        kant.over(runs)


@given(st.lists(st.sampled_from(JobPhase), min_size=1, max_size=8), st.integers(0, 3))
@settings(max_examples=examples(15))
def test_whoever_has_jobs_gives_new_numbers_and_nothing_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, phases: list[JobPhase], own: int
) -> None:
    folder = tmp_path_factory.mktemp("move")
    first = [a_record(seq, phase) for seq, phase in enumerate(phases, start=1)]
    first[-1] = replace(first[-1], after=("1",)) if len(first) > 1 else first[-1]
    there = [a_record(seq, JobPhase.FAILED) for seq in range(1, own + 1)]
    old = made_home(folder / "old", first)
    new = made_home(folder / "new", there)
    header = export_home(old, folder / "export")
    assert list(map(asdict, jobs_of(folder / "export"))) == list(map(asdict, first))
    brought = import_home(folder / "export", new)
    store = JobStore(new / "kant.db")
    got = store.every(-1, 100)
    store.close()
    stays = {JobPhase.RUNNING, JobPhase.STOPPING}
    expected = there + [renumbered(each, own) for each in first if each.phase not in stays]
    for each in expected:
        if each.id in brought.held:
            each.phase = JobPhase.HELD
            assert first[0].phase in stays
    assert list(map(asdict, got)) == list(map(asdict, expected))
    assert header.over == brought.over and header.waiting == brought.waiting
    assert header.running == sum(phase in stays for phase in phases)
    assert brought.ids == {
        each.id: str(each.seq + own) for each in first if own and each.phase not in stays and not each.is_over
    }


def test_what_was_learned_goes_along(tmp_path: Path) -> None:
    profile = builtin_profile("kant")
    learned = HorizonState({}, 5, 4, 0)
    saved = SavedCalibration(digest(profile), 7, CalibrationState({horizon(HOUR): learned}))
    old = made_home(tmp_path / "old", [a_record(1, JobPhase.FINISHED)])
    store = JobStore(old / "kant.db")
    store.keep(LEARNED, msgspec.json.encode(saved))
    store.close()
    export_home(old, tmp_path / "export")
    import_home(tmp_path / "export", tmp_path / "new")
    with Up(tmp_path / "new", "1x4", profile=profile) as kant:
        kant.submit("sleep 60", gpus=4, time_s=3600.0, grace_s=0.1)
        kant.submit("true", gpus=4)
        assert eventually(lambda: (kant.client.get("/v1/eta")["jobs"] or [{}])[0].get("earlier") is not None)
        (row,) = kant.client.get("/v1/eta")["jobs"]
        assert row["earlier"] == {"answers": 5, "kept": 4, "kept_p50": 0, "calibrated": False}
    store = JobStore(tmp_path / "new" / "kant.db")
    kept = read_learned(store)
    store.close()
    assert kept is not None and kept.memory.horizons[horizon(HOUR)].held >= 4


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(("", "u", "v")), st.integers(0, 9), st.integers(1, 9)),
        max_size=40,
    )
)
def test_run_times_that_are_recalled_say_what_was_known(seen: list[tuple[str, str, int, int]]) -> None:
    first, second = PastJobs(), PastJobs()
    jobs = [
        Job("1", 0, (PodGroup(1, Demand(gpus)),), queue=queue, user=user, name="n", estimate=ran * HOUR * 2)
        for queue, user, gpus, ran in seen
    ]
    for job, (_, _, _, ran) in zip(jobs, seen, strict=True):
        first.remember(job, ran * HOUR)
    for run in first.runs():
        second.recall(run)
    assert first.runs() == second.runs() and len(first.runs()) == len(seen)
    for job in jobs:
        assert [first.whole(job, at) for at in (500, 900)] == [second.whole(job, at) for at in (500, 900)]


def test_what_is_no_export_is_refused_and_what_is_there_stays(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a home of Kant"):
        export_home(tmp_path / "none", tmp_path / "export")
    home = made_home(tmp_path / "home", [a_record(1, JobPhase.FAILED)])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(InputError, match="new or empty"):
        export_home(home, tmp_path / "full")
    with pytest.raises(InputError, match="created by `kant export`"):
        import_home(tmp_path / "full", home)
    folder = tmp_path / "export"
    export_home(home, folder)
    header = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps(header | {"version": 2}))
    with pytest.raises(InputError, match="a newer version of Kant"):
        read_export(folder)
    (folder / "export.json").write_text(json.dumps(header))
    with (folder / "kant.db").open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096)
    before = sqlite3.connect(home / "kant.db").execute("SELECT count(*) FROM jobs").fetchone()
    with pytest.raises(InputError):
        import_home(folder, home)
    assert sqlite3.connect(home / "kant.db").execute("SELECT count(*) FROM jobs").fetchone() == before


NAMES = st.text("ab-z9", min_size=1, max_size=5).filter(lambda name: name[0] != "-" != name[-1])
AMOUNTS = st.integers(0, 1 << 52)
LIMITS = st.just(-1) | AMOUNTS


@st.composite
def queue_configs(draw: st.DrawFn) -> QueueConfig:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    kinds = st.tuples(st.sampled_from(("gpu", "cpu", "memory")), st.sampled_from(("", "H100")))
    queues = []
    for at, name in enumerate(names):
        quotas = tuple(
            Quota(resource, model, draw(AMOUNTS), draw(LIMITS), draw(LIMITS), draw(LIMITS))  # type: ignore[arg-type]
            for resource, model in draw(st.lists(kinds, unique=True, max_size=3))
        )
        queues.append(
            Queue(
                name, draw(st.sampled_from(["", *names[:at]])), draw(st.integers(1, 9)), draw(st.booleans()),
                draw(st.sampled_from(("open", "hold", "stop", "drain"))), draw(st.integers(0, 10**7)) * 1000, quotas,
                draw(st.sampled_from(("listed", "cheapest"))), draw(st.integers(0, 10**7)) * 1000,
            )
        )  # fmt: skip
    return QueueConfig(tuple(queues), draw(st.sampled_from(((), (("H100", 4200),)))))


@given(queue_configs())
def test_a_file_of_queues_that_is_written_reads_as_they_are(config: QueueConfig) -> None:
    assert parse_tenants("queues", text_of(config)) == config
