"""The journal of a run can be read back, replayed and digested by anyone; what is broken is refused by line."""

from __future__ import annotations

import hashlib
import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.small_runs import gangs, mixed, pods, uniform
from tests.profiles import few

from kant import __version__
from kant.cluster.journal import Cycled, Footer, Header, Journal, read_lines
from kant.cluster.state import ClusterState
from kant.metrics.result import RunResult
from kant.model.decision import Hold, Plan
from kant.model.errors import InputError
from kant.model.event import JobFinished, TypicalPodsGiven
from kant.model.node import ClusterSpec
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile, parse_profile
from kant.sim.run import RunHooks, simulate

HEADER = Header("1", "w", "p", 0, ClusterSpec("c", ()))


def journal_of(name: str) -> tuple[list[bytes], RunResult]:
    """The lines of one small run, and its result."""
    lines: list[bytes] = []
    profile = builtin_profile(name)
    static = profile.simulation.get("static")
    result = simulate(
        pods() if static else gangs(),
        mixed() if static else uniform(),
        profile,
        seed=5,
        hooks=RunHooks(journal=lines.append),
    )
    return b"".join(lines).splitlines(keepends=True), result


@pytest.mark.parametrize("name", few())
def test_a_journal_is_read_back_as_it_was_written_and_its_digest_is_that_of_its_plan_lines(name: str) -> None:
    lines, result = journal_of(name)
    header, *rest = list(read_lines(iter(lines), "run.jsonl"))
    assert isinstance(header, Header)
    assert (header.version, header.seed, header.cluster) == (__version__, 5, result.cluster)
    assert parse_profile(header.profile, "journal") == builtin_profile(name)

    plans = [line for line in lines if json.loads(line)["event"] == "planned"]
    assert hashlib.blake2b(b"".join(plans), digest_size=16).hexdigest() == result.summary["digest"]
    assert sum(len(json.loads(line)["decisions"]) for line in plans) == result.summary["decisions"]

    again: list[bytes] = []
    journal = Journal(again.append)
    journal.write(header)
    for record in rest:
        if isinstance(record, Plan):
            journal.plan(record)
        elif not isinstance(record, Header):
            journal.write(record)
    assert again == lines
    assert (journal.digest, journal.decisions) == (result.summary["digest"], result.summary["decisions"])


@pytest.mark.parametrize("name", few())
def test_a_scheduler_that_follows_a_journal_decides_what_the_journal_says(name: str) -> None:
    """At each plan the events before it are all that a scheduler knows; what it holds it may say at other times."""
    lines, _ = journal_of(name)
    records = read_lines(iter(lines), "run.jsonl")
    header = next(records)
    assert isinstance(header, Header)
    profile, plans = parse_profile(header.profile, "journal"), 0
    state = ClusterState(header.cluster, workloads=profile.matches)
    scheduler = Scheduler(state, profile, header.seed)
    for record in records:
        if isinstance(record, Plan):
            own = scheduler.cycle(record.time)
            assert without_holds(own) == without_holds(record)
            plans += 1
        elif isinstance(record, Cycled):
            assert not without_holds(scheduler.cycle(record.time))
        else:
            assert not isinstance(record, Header)
            if isinstance(record, Footer):
                break
            state.apply(record)
    state.check()
    assert plans > 10


def without_holds(plan: Plan) -> list[object]:
    decisions = [decision for decision in plan.decisions if not isinstance(decision, Hold)]
    return [msgspec.to_builtins(decision, enc_hook=lambda array: array.tolist()) for decision in decisions]


def test_a_last_line_without_its_end_is_left_out_wherever_it_was_cut() -> None:
    lines, _ = journal_of("fifo")
    whole = list(read_lines(iter(lines[:6]), "f"))
    for cut in range(len(lines[6])):
        assert len(list(read_lines(iter([*lines[:6], lines[6][:cut]] if cut else lines[:6]), "f"))) == len(whole)


@pytest.mark.parametrize(
    "broken",
    [
        b"\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"not json\n",
        b"\xff\xfe\n",
        b'{"event":"unheard-of","time":1}\n',
        b'{"event":"finished","time":1}\n',
        b'{"event":"finished","time":"soon","job":"a"}\n',
        b'{"event":"started","time":1,"job":"a","allocation":[[1,2,3]]}\n',
        b'{"event":"started","time":1,"job":"a","allocation":[[0,1,1,1000,0,0,1],[0]]}\n',
        b'{"event":"started","time":1,"job":"a","allocation":[["a",1,1,1000,0,0,1]]}\n',
        b'{"event":"started","time":1,"job":"a","allocation":[[99999999999999999999,1,1,1000,0,0,1]]}\n',
        b'{"event":"started","time":1,"job":"a","allocation":[[1e40,1,1,1000,0,0,1]]}\n',
        b'{"event":"started","time":1,"job":"a","allocation":[[0.5,1,1,1000,0,0,1]]}\n',
        b'{"event":"started","time":1,"job":"a","allocation":[[0,1,1,1000,0]]}\n',
        b'{"event":"planned","time":1,"decisions":[{"do":"start","job":"a","allocation":[[0,1,1,1000,0]]}]}\n',
    ],
)
def test_a_line_that_is_not_of_a_journal_is_refused_by_file_and_line(broken: bytes) -> None:
    good = json.dumps(msgspec.to_builtins(HEADER)).encode() + b"\n"
    with pytest.raises(InputError, match=r"^run\.jsonl:2: expected "):
        list(read_lines(iter([good, broken]), "run.jsonl"))


def test_the_header_comes_first_and_once() -> None:
    good = json.dumps(msgspec.to_builtins(HEADER)).encode() + b"\n"
    event = b'{"event":"finished","time":1,"job":"a"}\n'
    with pytest.raises(InputError, match=r"^f:1: expected the header"):
        list(read_lines(iter([event]), "f"))
    with pytest.raises(InputError, match=r"^f:3: expected the header"):
        list(read_lines(iter([good, event, good]), "f"))


def test_a_fabric_that_carries_nothing_is_refused() -> None:
    header = msgspec.to_builtins(HEADER)
    header["cluster"]["fabric"] = {"node": {"bandwidth": 0.0, "latency": 1.0}}
    with pytest.raises(InputError, match=r"^f:1: .*bandwidth"):
        list(read_lines(iter([json.dumps(header).encode() + b"\n"]), "f"))


def test_a_mix_without_typical_pods_is_read_back() -> None:
    lines: list[bytes] = []
    journal = Journal(lines.append)
    journal.write(HEADER)
    journal.write(TypicalPodsGiven(0, np.zeros((0, 5), dtype=np.int64)))
    _, mix = read_lines(iter(lines), "f")
    assert isinstance(mix, TypicalPodsGiven) and mix.rows.shape == (0, 5)


def test_a_cycle_that_decides_nothing_leaves_a_line_where_it_had_something_to_look_at_and_something_follows() -> None:
    lines: list[bytes] = []
    journal = Journal(lines.append)
    journal.write(HEADER)
    digest = journal.digest
    for plan in (
        Plan(1, []),
        Plan(2, []),
        Plan(3, [], review_at=5),
        Plan(4, [], review_at=5),
        Plan(5, []),
        Plan(6, []),
    ):
        journal.plan(plan)
    journal.write(JobFinished(7, "a"))
    journal.plan(Plan(7, [], mending=True))
    journal.plan(Plan(7, []))
    journal.write(JobFinished(8, "b"))
    journal.plan(Plan(9, []))
    journal.write(Footer(8))
    assert [line.time for line in read_lines(iter(lines), "f") if isinstance(line, Cycled)] == [1, 5, 7]
    assert journal.digest == digest and journal.decisions == 0


LINES = journal_of("srtf")[0][:40]


@given(st.integers(1, 39), st.data())
def test_a_line_with_other_bytes_in_it_is_read_or_refused_by_line_and_nothing_else(
    row: int, data: st.DataObject
) -> None:
    line = bytearray(LINES[row])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(line) - 2))
        line[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3) | st.sampled_from((b"9" * 20, b"-", b"[", b"null", b'"', b"1e999"))
        ).replace(b"\n", b"")
    if not bytes(line).endswith(b"\n"):
        line += b"\n"
    try:
        list(read_lines(iter([*LINES[:row], bytes(line), *LINES[row + 1 :]]), "f"))
    except InputError as error:
        assert str(error).startswith(f"f:{row + 1}: expected ")
