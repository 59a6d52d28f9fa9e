"""What keeps a run from being there twice: the lease of its machine, and how the parts of a gang begin and end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from kant.local.joined import agent, wire
from kant.local.joined.agent import MachineLease
from kant.local.joined.machines import Known, Machine, Machines
from kant.local.joined.runs import JoinedRun, OutputCopy, RemotePart
from kant.local.output import read_output
from kant.local.runs import Exit
from kant.local.supervisor import held_until
from kant.model.errors import InputError
from kant.model.node import ClusterSpec, Node

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.floats(0.1, 20.0)),
        st.tuples(st.just("begin"), st.floats(0.1, 20.0)),
        st.tuples(st.just("renew"), st.floats(-5.0, 20.0)),
        st.just(("again", 0.0)),
    ),
    max_size=20,
)


@given(STEPS)
def test_a_lease_that_has_run_out_is_never_prolonged(steps: list[tuple[str, float]]) -> None:
    """The oracle: for each file, the first moment at which a supervisor finds its time passed; it stays so."""
    clock, over = 1000.0, dict[Path, float]()
    with TemporaryDirectory() as folder, patch.object(agent, "since_boot", lambda: int(clock * 1e6)):
        lease = MachineLease(Path(folder))
        for what, seconds in steps:
            if what == "pass":
                clock += seconds
            elif what == "begin":
                lease.begin(clock + seconds)
                assert lease.holds and lease.path not in over
            elif what == "renew":
                held = lease.holds
                assert lease.renew(clock + seconds) is held
            else:
                lease = MachineLease(Path(folder))  # another agent
            for path in Path(folder).iterdir():
                until = held_until(str(path))
                if path in over:
                    assert until == over[path], "somebody has moved on a time that was passed"
                elif until <= clock:
                    over[path] = until


def test_a_file_of_a_lease_that_cannot_be_read_has_run_out(tmp_path: Path) -> None:
    assert held_until(str(tmp_path / "none")) == 0.0
    (tmp_path / "blank").touch()
    assert held_until(str(tmp_path / "blank")) == 0.0
    assert held_until("") == held_until(None) == float("inf")


class Part(RemotePart):
    """A part without a machine."""

    def __init__(self, name: str) -> None:
        self.name, self.stops, self.watched = name, 0, False
        self.begun_here = False
        self._exit = None

    @property
    def has_begun(self) -> bool:
        return self.begun_here

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self.watched = True

    def stop(self) -> None:
        self.stops += 1

    def happen(self, what: str) -> None:
        """It begins or ends, if it can."""
        if what == "begin" and not self.begun_here and self._exit is None:
            self.begun_here = True
            self.on_begun()
        elif what != "begin" and self._exit is None:
            self._exit = {
                "well": Exit(code=0),
                "badly": Exit(code=3),
                "lost": Exit(why="lease", lost="machine x stopped responding"),
                "unborn": Exit(lost="no room", unborn=True),
            }[what]
            self.over(self)


EVENTS = st.tuples(
    st.integers(0, 3), st.sampled_from(["begin", "begin", "begin", "well", "badly", "lost", "unborn", "stop"])
)


@example(1, [(0, "begin"), (1, "well"), (0, "well")])
@example(1, [(0, "begin"), (0, "badly"), (1, "well")])
@given(st.integers(0, 3), st.lists(EVENTS, max_size=25))
def test_a_gang_begins_whole_and_is_over_when_all_of_it_is(count: int, events: list[tuple[int, str]]) -> None:
    first, others = list[Part](), [Part(str(at)) for at in range(count)]

    def begin() -> Part:
        assert not first, "the command begins once"
        assert all(part.begun_here for part in others), "and after all others"
        first.append(Part("first"))
        return first[0]

    ends = list[Exit]()
    run = JoinedRun(begin, others, ["first", *(part.name for part in others)])
    run.over = lambda run: ends.append(run.exit())
    loop = asyncio.new_event_loop()
    try:
        run.watch(loop)
        told: list[Exit] = []  # ends of parts, in order
        stopped = False
        for at, what in events:
            parts = [*first, *others]
            if what == "stop":
                if not ends:
                    run.stop()
                    stopped = True
            elif at < len(parts):
                before = parts[at]._exit
                parts[at].happen(what)
                if before is None and parts[at]._exit is not None:
                    told.append(parts[at]._exit)
            parts = [*first, *others]
            if told or stopped:
                alive = [part for part in parts if part._exit is None and (told or part in first or not first)]
                assert all(part.stops for part in alive), "what is left is told to end"
            over = bool(parts) and all(part._exit is not None for part in parts)
            assert len(ends) == (1 if over and told else 0)
            if ends and first and first[0]._exit is told[0]:
                assert ends == [told[0]]
            if ends and first and first[0]._exit is not told[0] and not stopped:
                assert ends[0].lost, "a part that goes takes the run with it"
    finally:
        loop.close()


@given(
    st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), max_size=12), st.booleans()
)
def test_output_that_is_told_twice_is_kept_once(data: bytes, pieces: list[tuple[int, int]], again: bool) -> None:
    """Pieces come in order, from where the mirror is or before it, as after a lost connection."""
    with TemporaryDirectory() as folder:
        mirror = OutputCopy(Path(folder), 1 << 20)
        for back, size in pieces:
            if again:
                mirror = OutputCopy(Path(folder), 1 << 20)
            at = max(mirror.offset - back, 0)
            mirror.put(at, data[at : at + size])
        assert read_output(Path(folder)).data == data[: mirror.offset]
        mirror.put(len(data) + 10, b"later")  # what lies between is not kept any more
        found = read_output(Path(folder), len(data) + 10)
        assert (found.offset, found.data) == (len(data) + 10, b"later")


@pytest.mark.parametrize("why", ["stop", "lost"])
def test_a_run_alone_that_ends_before_it_begins(why: str) -> None:
    """A run of one part, as on a machine that is not there."""
    part, ends = Part("first"), list[Exit]()
    run = JoinedRun(lambda: part, [], ["first"])
    run.over = lambda run: ends.append(run.exit())
    loop = asyncio.new_event_loop()
    run.watch(loop)
    if why == "stop":
        run.stop()
        assert part.stops == 1 and not ends
    part.happen("lost")
    assert ends == [Exit(why="lease", lost="machine x stopped responding")]
    loop.close()


@given(st.integers(0, 60), st.integers(1, 4))
def test_at_sixteen_machines_it_names_kubernetes_and_more_than_48_are_refused(count: int, here: int) -> None:
    kept = {"first": here, "machines": [{"id": str(at), "node": {"name": f"m{at}", "gpus": 1}} for at in range(count)]}
    machines = Machines(here, msgspec.json.encode(kept), lambda text: None)
    assert ("use Kubernetes" in machines.complaint) is (count >= 16)
    fault = machines._fault(wire.Hello(wire.VERSION, "new", Node("new", 1), ()))
    assert ("use Kubernetes" in fault) is (count >= 48)
    assert [machines.at(row) for row in range(here)] == [None] * here
    place = [[row, 1, 1, 0, 0, 0, 0] for row in range(here + count)]
    parts = machines.parts(place)
    assert [piece for _, part in parts for piece in part] == place and len(parts) == 1 + count
    assert machines.here(place) == parts[0][1] == place[:here]
    with pytest.raises(InputError, match="--cluster: expected"):
        Machines(here + 1, msgspec.json.encode(kept), lambda text: None)


HELLO = wire.Hello(wire.VERSION, "id", Node("gpu2", 4), ())


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (replace(HELLO, version=1), "version: expected 2"),
        (replace(HELLO, node=Node("here", 4)), "--name: expected a name that no node of the cluster has"),
        (replace(HELLO, node=Node("gpu2", 63)), "this machine: expected a valid node"),
        (replace(HELLO, gpu_watts=701), "--gpu-watts: expected at most 700W, the power of each GPU"),
        (replace(HELLO, gpu_watts=700), ""),
        (replace(HELLO, id="another"), "--name: expected a name that no other machine has"),
        (replace(HELLO, node=Node("gpu2", 2)), "this machine: expected the GPUs, cores and memory with which"),
        (HELLO, ""),
    ],
)
def test_who_may_not_join_hears_why(hello: wire.Hello, said: str) -> None:
    machines = Machines(1, None, lambda text: None)
    machines.added_to(ClusterSpec("c", (Node("here", 1),)))
    machines.gpu_watts = 700
    machines.known.append(Machine(Known("id", Node("gpu2", 4)), 0.0, runs={"1/1": Part("1/1")}))
    assert machines._fault(hello).startswith(said) and bool(said) == bool(machines._fault(hello))
