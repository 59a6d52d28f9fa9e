"""The record of a Kant that was started again: it is the one of a Kant that was never away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.test_live_record import Viewer
from tests.examples import examples

from kant.cluster import columns as c
from kant.cluster.journal import Header, Journal
from kant.cluster.state import ClusterState
from kant.live.record.lasting_record import LastingRecord
from kant.model.errors import InputError
from kant.model.event import DevicesChanged, Event, JobStarted, JobSubmitted, NodeChanged
from kant.model.job import Job
from kant.model.status import JobStatus, NodeStatus
from kant.model.units import SECOND
from kant.service.past import Reader, whole
from kant.testing import Harness, make_cluster, make_job, make_profile

ZERO = 1_700_000_000 * SECOND
CLUSTER = make_cluster(8, 8, 4)


class Folder:
    """Journals as the driver has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.path: Path | None = None
        self.flushed: Callable[[], object] = lambda: None

    def open(self) -> Callable[[bytes], object]:
        self.path = self.folder / f"{self.count:04}.jsonl"
        self.count += 1
        file = self.path.open("wb", buffering=0)
        return file.write

    def flush(self) -> None:
        self.flushed()


class Restarted:
    """Follows a harness as a Kant does that is started again and again: state, journal and record begin anew."""

    def __init__(self, harness: Harness, folder: Folder, outlives: bool) -> None:
        self.harness, self.folder, self.outlives = harness, folder, outlives
        self.jobs: dict[str, Job] = {}
        self.record: LastingRecord | None = None
        self.both: Callable[[Event], Any] = self.happened
        self.start(0)

    def start(self, now: int, back: int = 0, without: str = "") -> None:
        """As `Driver.build` does it: everybody who lives, as of the times at which they came and last started.

        The zero of the clock lies `back` before the first of them. The run of the job `without` ended meanwhile.
        """
        state = self.harness.state
        live = [(int(state.jobs[row, c.J_SUBMIT]), row, job.id) for row, job in state.live.items() if job.id != without]
        self.zero = min([now, *(came for came, _, _ in live)]) // SECOND * SECOND - back  # both sample the same seconds
        self.state = ClusterState(CLUSTER)
        self.journal = Journal(self.folder.open())
        profile = self.harness.profile
        header = Header("1", "w", "kant", 0, CLUSTER, zero=ZERO + self.zero, begins=now - self.zero)
        self.journal.write(header)
        if self.record is None or not self.outlives:
            self.record = LastingRecord(self.state, "r", zero=ZERO + self.zero, profile=profile.name)
        else:
            self.record.begin_rebuild(self.state, ZERO + self.zero, profile.name)
        moments: list[tuple[int, bool, Event]] = []
        for came, row, job in live:
            moments.append((came, False, JobSubmitted(came, self.jobs[job])))
            if row in state.running:
                began = int(state.jobs[row, c.J_STARTED])
                moments.append((began, True, JobStarted(began, job, state.running[row])))
        for node, spec in enumerate(CLUSTER.nodes):
            if state.table[node, c.STATUS] != NodeStatus.IN_SERVICE:
                self._take(NodeChanged(self.zero, spec.name, int(state.table[node, c.STATUS])))
            if node in state.health.lost:
                self._take(DevicesChanged(self.zero, spec.name, state.health.lost[node]))
        for _, _, event in sorted(moments, key=lambda each: each[:2]):
            self._take(event)
        self.record.finish_rebuild(now - self.zero)

    def happened(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            self.jobs[event.job.id] = event.job
        self._take(event)

    def _take(self, event: Event) -> None:
        changed: dict[str, Any] = {"time": event.time - self.zero}
        if isinstance(event, JobSubmitted):
            changed["job"] = msgspec.structs.replace(event.job, submit=event.job.submit - self.zero)
        moved = msgspec.structs.replace(event, **changed)
        self.state.apply(moved)
        self.journal.write(moved)
        assert self.record is not None
        self.record.happened(moved)

    def decided(self, plan: Any) -> None:
        assert self.record is not None
        moved = msgspec.structs.replace(plan, time=plan.time - self.zero)
        self.journal.plan(moved)
        self.record.decided(moved)


def read(reader: Reader) -> None:
    """All of it at once."""
    for work in reader.steps():
        if work is not None:
            work()


def plain(record: LastingRecord, now: int) -> dict[str, Any]:
    """What a record says at `now`, on a clock from ZERO, without what may differ: numbers of rows, repetitions."""
    said = record.since("", now - (record.zero - ZERO) - record.ahead)
    assert said["complete"] and said["time_us"] + said["zero_us"] == now + ZERO
    by = said["zero_us"] - ZERO
    moment = lambda time: time + by if time >= 0 else -1  # noqa: E731
    jobs = {}
    for job, name, queue, submit, start, end, wait, since, *rest in zip(
        *(said["jobs"][key] for key in (
            "id", "name", "queue", "submit", "start", "end", "wait", "since", "status", "preemptions", "milli",
            "fewest_nodes", "fewest_leaves",
        )), strict=True,
    ):  # fmt: skip
        waits = wait + (now - since - by if rest[0] == JobStatus.PENDING else 0)
        queued = since + by if rest[0] == JobStatus.PENDING else 0
        told = [(each["time_us"] + by, each["what"], each["sentence"]) for each in record.history(job) or ()]
        jobs[job] = (
            name,
            said["queues"][queue],
            moment(submit),
            moment(start),
            moment(end),
            waits,
            queued,
            *rest,
            told,
        )
    held = (said["intervals"][key] for key in ("job", "node", "mask_low", "mask_high", "milli", "start", "end"))
    pieces = sorted(
        (said["jobs"]["id"][said["jobs"]["row"].index(job)], node, low, high, milli, moment(start), moment(end))
        for job, node, low, high, milli, start, end in zip(*held, strict=True)
    )
    stands: dict[int, tuple[int, ...]] = {}
    nodes = []
    for node, status, since, *lost in zip(*said["nodes"].values(), strict=True):
        if stands.get(node, (0, 0, 0)) != (status, *lost):
            stands[node] = (status, *lost)
            nodes.append((since + by, node, status, *lost))
    series = {(time + by) // SECOND: tuple(rest) for time, *rest in zip(*said["series"].values(), strict=True)}
    steps: list[tuple[int, ...]] = []
    for second, values in sorted(series.items()):
        if not steps or steps[-1][1:] != values:
            steps.append((second, *values))
    return {"jobs": jobs, "intervals": pieces, "nodes": sorted(nodes), "series": steps}


KINDS = (
    "submit", "submit", "submit", "submit", "finish", "evict", "evict", "fail", "cancel", "again", "node", "lose",
    "restart", "restart",
)  # fmt: skip
OPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 999), st.sampled_from((1, SECOND, 5 * SECOND))),
    min_size=30,
    max_size=80,
)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=OPS, outlives=st.booleans(), seed=st.integers(0, 99))
def test_after_restarts_the_record_is_that_of_a_kant_that_was_never_away(
    ops: list[tuple[str, int, int]], outlives: bool, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Read back from the journals, or taken along by the one process in which the state is built anew."""
    harness = Harness(CLUSTER, make_profile("fifo", "best-effort", "first-fit"), seed=seed, check=False)
    unbroken = LastingRecord(harness.state, "u", zero=ZERO)
    folder = Folder(tmp_path_factory.mktemp("journal"))
    other = Restarted(harness, folder, outlives)
    take = harness.happen

    def happen(event: Event) -> None:
        take(event)
        unbroken.happened(event)
        other.happened(event)

    harness.happen = happen  # type: ignore[method-assign]
    harness.before_carrying_out = lambda plan: (unbroken.decided(plan), other.decided(plan))
    held: list[str] = []
    count = 0
    for what, pick, later in ops:
        harness.now += later
        state = harness.state
        waiting, running = ([state.ids[row] for row in rows] for rows in (state.pending, state.running))
        if what == "submit":
            job = make_job(
                f"j{count}", gpus=(2, 5, 8)[pick % 3], queue=f"q{pick % 4}", user=f"u{pick}", submit=harness.now
            )
            count += 1
            harness.submit(job)
        elif (
            what == "again" and held
        ):  # a job that was held: a Kant that is started anew calls it as it was first called
            job = held.pop()
            harness.now += 1
            base, _, number = job.partition("~")
            harness.submit(make_job(f"{base}~{int(number or 1) + 1}", submit=harness.now))
        elif what == "cancel" and waiting:
            held.append(waiting[pick % len(waiting)])
            harness.cancel(held[-1])
        elif what == "node":
            getattr(harness, ("fail", "cordon", "drain", "bring_back")[pick % 4])(CLUSTER.nodes[pick % 3].name)
        elif what == "lose":
            harness.lose(CLUSTER.nodes[pick % 3].name, *range(pick % 3))
        elif what == "restart":
            other.start(harness.now, pick % 4 * 100 * SECOND)
            harness.now += 1
        elif running and what in ("finish", "evict", "fail"):
            {"finish": harness.finish, "evict": harness.evict, "fail": harness.fail_job}[what](
                running[pick % len(running)]
            )
        harness.now += 1
        harness.cycle()
    now = harness.now + 10 * SECOND
    if not outlives:
        reader = Reader(folder)  # type: ignore[arg-type]
        read(reader)
        assert (reader.record is None) == (folder.count == 1)
        if reader.record is not None and other.record is not None:
            other.record.adopt(reader.record)
    assert other.record is not None
    assert not other.record.left
    found, expected = plain(other.record, now), plain(unbroken, now)
    for key in expected:
        assert found[key] == expected[key], key


def lives(folder: Folder, outlives: bool = False) -> tuple[Harness, Restarted, Callable[[str], None]]:
    """A harness whose events a Kant with these journals takes in, and a way to let a job of 8 GPUs come and start."""
    harness = Harness(CLUSTER, make_profile("fifo", "best-effort", "first-fit"), check=False)
    other = Restarted(harness, folder, outlives)
    take = harness.happen
    other.both = lambda event: (take(event), other.happened(event))
    harness.happen = other.both  # type: ignore[method-assign]

    def begin(job: str) -> None:
        harness.now += SECOND
        harness.submit(make_job(job, gpus=4, submit=harness.now))
        harness.cycle()

    return harness, other, begin


def again(harness: Harness, other: Restarted) -> None:
    harness.now += SECOND
    other.start(harness.now)
    harness.now += SECOND


def known(folder: Folder, **options: Any) -> list[str]:
    """The jobs of the past, as it can be read."""
    reader = Reader(folder, **options)  # type: ignore[arg-type]
    read(reader)
    return [] if reader.record is None else reader.record.ids


@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=OPS, most=st.sampled_from((1, 3)), looks=st.integers(1, 5))
def test_a_record_that_forgets_knows_those_who_live(
    ops: list[tuple[str, int, int]], most: int, looks: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bounded as much as can be, through changes of its state: what is held is held, and who asks misses nothing."""
    harness, other, begin = lives(Folder(tmp_path_factory.mktemp("journal")), outlives=True)
    record = other.record
    assert record is not None
    record.most = most, most, most
    viewer = Viewer()
    for number, (what, pick, later) in enumerate(ops):
        harness.now += later
        running = [harness.state.ids[row] for row in harness.state.running]
        if what == "submit":
            begin(f"j{number}")
        elif what == "restart":
            other.start(harness.now, pick % 4 * 100 * SECOND, running[pick % len(running)] if running else "")
            for job in record.left:
                harness.happen = harness.state.apply  # type: ignore[method-assign]
                harness.finish(job)
                harness.happen = other.both
            for job in list(record.left):
                record.resolve_missing(job, JobStatus.FINISHED, ZERO + harness.now)
            harness.now += 1
        elif running and what in ("finish", "evict"):
            getattr(harness, what)(running[pick % len(running)])
        harness.now += 1
        harness.cycle()
        state, held = harness.state, Counter[Any]()
        for row, allocation in state.running.items():
            held.update((state.ids[row], *piece) for piece in allocation[:, [0, 2, 3]].tolist())
        pieces = record.pieces.table[: record.pieces.used].tolist()
        assert Counter((record.ids[j], n, m, g) for j, n, m, g, _, end in pieces if end < 0) == held
        if number % looks == 0:
            now, fresh = harness.now - other.zero, Viewer()
            viewer.ask(record, now)
            fresh.ask(record, now)
            assert viewer.known == fresh.known


def test_what_cannot_be_read_is_less_past(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Folder(tmp_path)
    harness, other, begin = lives(folder)
    begin("a")
    begin("b")
    harness.finish("a")
    again(harness, other)
    begin("c")
    harness.finish("c")
    again(harness, other)
    begin("d")
    first, second, present = sorted(tmp_path.glob("*.jsonl"))
    assert known(folder) == ["a", "b", "c", "d"]
    assert known(folder, most_bytes=second.stat().st_size) == ["b", "c", "d"]
    assert known(folder, most_bytes=1) == []
    whole_first, lines = first.read_bytes(), second.read_bytes().splitlines(keepends=True)
    torn = b"".join(lines)[:-5]
    second.write_bytes(torn)  # the machine went down while it was written
    assert known(folder) == ["a", "b", "c", "d"]
    assert not caplog.records
    for broken in (b"".join(lines[:3]) + b"{}\n" + lines[3], b"".join([*lines[:3], *lines[2:]]), b"", b"nothing\n"):
        second.write_bytes(broken)
        caplog.clear()
        found = known(folder)
        assert [job for job in found if job != "c"] == ["a", "b", "d"]
        assert len(caplog.records) == (broken != b"")
    second.unlink()
    assert known(folder) == ["a", "b", "d"]
    first.write_bytes(whole_first[:50])
    assert known(folder) == []
    present.write_bytes(b"nothing\n")
    first.write_bytes(whole_first)
    with pytest.raises(InputError, match="a line of a Kant journal"):
        known(folder)


def test_a_run_that_no_journal_tells_the_end_of_ends_before_the_next_on_its_gpus(tmp_path: Path) -> None:
    """The journal in between is lost: `a` was stopped there, waits again, and `b` runs where it ran."""
    folder = Folder(tmp_path)
    harness, other, begin = lives(folder)
    begin("a")
    for node in CLUSTER.nodes[1:]:
        harness.cordon(node.name)
    again(harness, other)
    lost = folder.path
    harness.now += 60 * SECOND
    harness.evict("a")
    harness.submit(make_job("b", gpus=8, priority=9, submit=harness.now))
    harness.happen(JobStarted(harness.now, "b", np.array([[0, 1, 255, 1000, 0, 0, 1, 0, 0]], dtype=np.int64)))
    began = harness.now
    again(harness, other)
    assert lost is not None
    lost.unlink()
    reader = Reader(folder)  # type: ignore[arg-type]
    read(reader)
    assert reader.record is not None
    pieces = [(job, end) for job, _, *_, end in plain(reader.record, harness.now)["intervals"]]
    assert pieces == [("a", began), ("b", -1)]


def test_a_job_that_ended_while_no_kant_was_there(tmp_path: Path) -> None:
    """It is left until somebody says what became of it, through further starts too; or it comes again."""
    folder = Folder(tmp_path)
    harness, other, begin = lives(folder)
    for job in ("ends", "returns", "stays"):
        begin(job)
    began = [harness.now - 2 * SECOND, harness.now - SECOND, harness.now]
    harness.now += 9 * SECOND
    other.start(harness.now, without="ends")
    harness.now += SECOND
    harness.happen = harness.state.apply  # type: ignore[method-assign]
    harness.finish("ends")
    other.start(harness.now, 7 * SECOND, without="returns")
    harness.now += SECOND
    submit = harness.now - other.zero
    other.happened(JobSubmitted(harness.now, make_job("returns", gpus=4, submit=harness.now)))
    reader = Reader(folder)  # type: ignore[arg-type]
    read(reader)
    record = reader.record
    assert record is not None and list(record.left) == ["ends"] and submit > 0
    record.resolve_missing("ends", JobStatus.REJECTED, ZERO + began[0] + 4 * SECOND)
    found = plain(record, harness.now)
    assert not record.left
    assert [(job, start, end) for job, *_, start, end in found["intervals"]] == [
        ("ends", began[0], began[0] + 4 * SECOND), ("returns", began[1], harness.now), ("stays", began[2], -1)
    ]  # fmt: skip
    starts = {job: (row[2], row[3], row[4], row[7]) for job, row in found["jobs"].items()}
    assert starts == {
        "ends": (began[0], began[0], began[0] + 4 * SECOND, JobStatus.REJECTED),
        "returns": (began[1], began[1], -1, JobStatus.PENDING),
        "stays": (began[2], began[2], -1, JobStatus.RUNNING),
    }


def test_the_lines_of_a_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntw")
    more = [b"o\nthr", b"ee\n", b"fo", b""]
    with path.open("rb") as file, path.open("ab", buffering=0) as writer:
        assert list(whole(file, lambda: writer.write(more.pop(0)))) == [b"one\n", b"two\n", b"three\n"]
