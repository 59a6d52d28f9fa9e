"""The joined machines as Kant knows them: which are connected, what runs there, and which have fallen silent.

A machine continues its runs as long as it has a lease, which each of its pings extends. An expired lease cannot be
extended: the machine's supervisors kill their runs, even without the agent or the network. Half a lease later Kant
considers the runs dead, and their jobs wait again. So a run is dead before its job can run elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname

import msgspec
from msgspec import Struct

from kant.cluster import columns as c
from kant.cluster.node_table import check_node
from kant.live.core import Core
from kant.live.logs import log_event
from kant.local.joined import wire
from kant.local.joined.keys import context
from kant.local.joined.runs import RemotePart
from kant.local.power import POWER, beside, powered
from kant.local.runs import Exit
from kant.model.errors import InputError, StateError
from kant.model.event import NodeChanged, NodeDescribed, NodesJoined, NodesLeft
from kant.model.node import ClusterSpec, Node
from kant.model.placement import NODE
from kant.model.status import NodeStatus
from kant.model.units import GPU

log = logging.getLogger("kant.local")
LEASE_S = 60.0
AFTER = 1.5
"""A machine counts as silent after this many lease times without a message. The extra half leaves time to kill runs,
and allows for clock skew.
"""
QUIET = 0.5
"""A machine gets no new runs after this many lease times without a message."""
DIAL_S = 5.0
EVERYWHERE = ("0.0.0.0", "::")
MANY, MOST = 16, 48
"""The number of machines from which on Kubernetes is recommended, and the maximum number that may join."""


class Known(Struct, frozen=True):
    """The stored record of a machine. The machine keeps its row in the cluster across restarts."""

    id: str
    node: Node
    visible: tuple[str, ...] = ()
    runtime: str = ""
    until: int | None = None
    """When the machine's runs are stopped because it is to leave (microseconds since the Unix epoch); -1: it is to
    leave once they have ended; None: it stays.
    """
    has_left: bool = False


class _Kept(Struct, frozen=True):
    first: int
    machines: list[Known]


@dataclass(slots=True, eq=False)
class Machine:
    """A joined machine. `received` is the (monotonic) time of its last message, `line` its connection or None, `runs`
    its runs by name. `is_lost`: it has fallen silent, and its runs are considered dead."""

    known: Known
    received: float
    line: asyncio.StreamWriter | None = None
    is_lost: bool = False
    is_shared: bool | None = None
    nonce: Path = Path()  # the file by which the agent checks that it sees Kant's shared folder
    runs: dict[str, RemotePart] = field(default_factory=dict)
    dials: dict[int, asyncio.Future[wire.Streams]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.known.node.name

    @property
    def is_gone(self) -> bool:
        """Whether the machine has left as requested. Its row in the cluster is kept for its return."""
        return self.known.has_left

    def tell(self, message: wire.Message) -> None:
        """Send a message if the machine is connected. When it reconnects, the state is sent again in any case."""
        if self.line is not None:
            wire.say(self.line, message)

    def take(self, part: RemotePart) -> None:
        """Assign a run to the machine."""
        self.runs[part.name] = part
        if self.is_lost:
            part.ended(self.gone)
        elif not part.has_begun:
            self.tell(part.order)

    @property
    def gone(self) -> Exit:
        """The `Exit` of a run on a machine that has fallen silent."""
        return Exit(why="lease", lost=f"machine {self.name} stopped responding")

    async def dial(self, run: str) -> wire.Streams:
        """Open a connection to the supervisor of a run. Raises OSError or TimeoutError."""
        if self.line is None:
            raise ConnectionError(f"machine {self.name} is not connected")
        number = secrets.randbits(62) + 1
        self.dials[number] = answer = asyncio.get_running_loop().create_future()
        try:
            self.tell(wire.Dial(run, number))
            return await asyncio.wait_for(answer, DIAL_S)
        finally:
            del self.dials[number]


class Machines:
    """All joined machines. `known` has them in the order of joining. Their nodes follow the `first` local nodes.

    `keep` stores `known`. `changed` is called when `LocalDriver` has to act.
    """

    def __init__(self, first: int, kept: bytes | None, keep: Callable[[bytes], None], lease_s: float = LEASE_S) -> None:
        self.first = first
        self.lease_s = lease_s
        self.keep = keep
        self.changed: Callable[[], None] = lambda: None
        self.shared = Path.home()
        found = msgspec.json.decode(kept, type=_Kept) if kept else _Kept(first, [])
        if found.first != first:
            raise InputError("--cluster", f"{found.first} nodes as before, since machines have joined", first)
        now = time.monotonic()  # the previous process may have extended a lease just now
        self.known = [Machine(one, now) for one in found.machines]
        self.names: set[str] = set()  # names of the nodes that are present
        self.has_caps = False  # whether any machine has a power cap
        self.gpu_watts = 0  # the watts that the cap of all machines counts for each GPU; 0: there is no cap
        self._is_kept = True  # whether the order of `known` is stored
        self.host = gethostname()  # how others reach this machine

    def added_to(self, cluster: ClusterSpec) -> ClusterSpec:
        """Return the cluster of the local nodes and the joined machines."""
        own = cluster.nodes[: self.first]
        self.names = {node.name for node in own}
        nodes = [*own, *(each.known.node for each in self.known)]
        self.has_caps = any(powered(node) >= 0 for node in nodes)
        for each in self.known:
            each.known = msgspec.structs.replace(each.known, node=beside(each.known.node, nodes))
        here = (Node(each.name, 0, cpu=0, memory=0) if each.is_gone else each.known.node for each in self.known)
        return msgspec.structs.replace(cluster, nodes=(*(beside(node, nodes) for node in own), *here))

    @property
    def present(self) -> list[Machine]:
        """The machines that have joined and not left."""
        return [each for each in self.known if not each.is_gone]

    def find(self, name: str) -> Machine:
        """Return the machine of this name. Raises InputError."""
        found = next((each for each in self.present if each.name == name), None)
        if found is None:
            there = ", ".join(each.name for each in self.present) or "none"
            raise InputError("machine", f"the name of a joined machine ({there})", name)
        return found

    def leave(self, machine: Machine, until: int | None) -> None:
        """Let a machine leave once nothing runs on it, or stay: `until` as in `Known`. Raises OSError."""
        self._change(machine, msgspec.structs.replace(machine.known, until=until))
        self.changed()

    def at(self, node: int) -> Machine | None:
        """Return the joined machine of a node (index in the cluster); None for a local node."""
        return self.known[node - self.first] if 0 <= node - self.first < len(self.known) else None

    def parts(self, place: list[list[int]]) -> list[tuple[Machine | None, list[list[int]]]]:
        """Split an allocation by machine, in the order of its rows; None stands for all nodes of this machine."""
        found: dict[int, tuple[Machine | None, list[list[int]]]] = {}
        for piece in place:
            machine = self.at(piece[NODE])
            found.setdefault(-1 if machine is None else piece[NODE], (machine, []))[1].append(piece)
        return list(found.values())

    def here(self, place: list[list[int]]) -> list[list[int]]:
        """Return the part of a place on this machine."""
        return [piece for piece in place if self.at(piece[NODE]) is None]

    @property
    def complaint(self) -> str:
        """Return which machines have fallen silent, are leaving or lack shared files; "" if there are none."""
        found = []
        for each in self.present:
            if each.is_lost:
                found.append(f"machine {each.name} does not respond: no job starts there until it does")
            elif each.known.until is not None:
                found.append(f"machine {each.name} is leaving: no job starts there")
            elif each.is_shared is False:
                found.append(f"machine {each.name} does not share {self.shared} with this machine")
        if len(self.present) >= MANY:
            found.append(f"{len(self.present)} machines have joined: for so many, use Kubernetes (docs/kubernetes.md)")
        return "; ".join(found)

    def look(self) -> None:
        """Mark machines that have been silent for too long as lost, and end their runs."""
        limit = time.monotonic() - AFTER * self.lease_s
        for machine in self.present:
            if not machine.is_lost and machine.received < limit:
                log_event(log, "a machine has fallen silent", logging.WARNING, machine=machine.name)
                machine.is_lost = True
                self._hang_up(machine)
                for part in list(machine.runs.values()):
                    part.ended(machine.gone)
                self.changed()

    def settle(self, core: Core) -> bool:
        """Update the core's nodes: which machines exist, and which accept runs. Return True if a machine is new, has
        left or has changed."""
        self.look()
        state, is_new = core.state, False
        for machine in list(self.known):
            node, until = machine.known.node, machine.known.until
            row = state.node_index.get(node.name, -1)
            if until is not None and not machine.runs and (row < 0 or not state.jobs_on(row)):
                self._let_go(machine)
            if machine.is_gone:
                if row >= 0:
                    core.happen(NodesLeft(core.now, (node.name,)))
                    is_new = True
                continue
            if row < 0:
                core.happen(NodesJoined(core.now, (node,)))
                row = state.node_index[node.name]
                self._move(machine, row - self.first)
                is_new = True
            if state.nodes[row] != node:
                core.happen(NodeDescribed(core.now, node))
                is_new = True
            status, by = NodeStatus.IN_SERVICE if self.takes_more(machine) else NodeStatus.CORDONED, -1
            if until is not None:
                status, by = NodeStatus.DRAINING, until - core.zero if until >= 0 else -1
                if until >= 0 and by <= core.now:  # the time to leave has come: repeat no event about it
                    by = before if 0 <= (before := state.health.drains.get(row, -1)) <= core.now else core.now
            if machine.is_lost and not state.jobs_on(row):  # its runs were removed from it
                status, by = NodeStatus.FAILED, -1
            if state.table[row, c.STATUS] != status or state.health.drains.get(row, -1) != by:
                core.happen(NodeChanged(core.now, node.name, int(status), by))
        return is_new

    def _let_go(self, machine: Machine) -> None:
        """Let a machine leave on which nothing runs any more; a later call retries if this cannot be stored now."""
        with suppress(OSError):
            self._change(machine, msgspec.structs.replace(machine.known, until=None, has_left=True))
            log_event(log, "a machine has left", machine=machine.name)
            machine.tell(wire.Left())
            self._hang_up(machine)

    def _move(self, machine: Machine, at: int) -> None:
        """Give a new machine the row that the core has given its node: the row of an equal machine that has left."""
        if self.known[at] is not machine:
            self.known.remove(machine)
            self.known[at] = machine
            self._is_kept = False
        if not self._is_kept:
            with suppress(OSError):
                self._keep([each.known for each in self.known])
                self._is_kept = True

    def takes_more(self, machine: Machine) -> bool:
        """Return whether runs may begin on the machine."""
        return (
            self._is_kept and machine.line is not None and machine.received >= time.monotonic() - QUIET * self.lease_s
        )

    def _hang_up(self, machine: Machine) -> None:
        if machine.line is not None:
            machine.line.close()
            machine.line = None
        self.changed()

    # --- the listener -----------------------------------------------------------------------------------------

    async def serve(self, host: str, port: int, folder: Path, api: Path) -> asyncio.Server:
        """Accept machines at an address. `folder` has the certificates, `api` is Kant's socket. Raises InputError."""

        async def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                first = await asyncio.wait_for(wire.receive(reader), DIAL_S)
                if isinstance(first, wire.Hello):
                    await self._session(first, reader, writer)
                elif isinstance(first, wire.Line) and first.number:
                    waiting = [each.dials.get(first.number) for each in self.known]
                    for answer in waiting:
                        if answer is not None and not answer.done():
                            answer.set_result((reader, writer))
                            return
                elif isinstance(first, wire.Line):
                    await wire.join((reader, writer), await asyncio.open_unix_connection(api))
            except (OSError, TimeoutError):
                pass
            writer.close()

        if host not in EVERYWHERE:
            self.host = host
        try:
            return await asyncio.start_server(come, host, port, ssl=context(folder, is_leader=True))
        except OSError as error:
            raise InputError("--join-listen", f"a free address ({error.strerror})", f"{host}:{port}") from None

    def _fault(self, hello: wire.Hello) -> str:
        """Return why a machine may not join; "" if it may."""
        name, node = hello.node.name, hello.node
        if hello.version != wire.VERSION:
            return f"version: expected {wire.VERSION}, got {hello.version}; install the same Kant on all machines"
        if name in self.names:
            return f"--name: expected a name that no node of the cluster has, got {name!r}"
        try:
            check_node(node)
        except StateError as error:
            return f"this machine: expected a valid node ({error})"
        if powered(node) >= 0 and not self.has_caps:
            return "--power-cap: expected none, since `kant up` runs without --power-cap"
        if 0 < self.gpu_watts < hello.gpu_watts:
            most = f"at most {self.gpu_watts}W, the power of each GPU under the power cap of all machines"
            return f"--gpu-watts: expected {most}, got {hello.gpu_watts}W"
        known = next((each for each in self.known if each.name == name), None)
        if (known is None or known.is_gone) and len(self.present) >= MOST:
            return f"Kant: expected at most {MOST} machines to join; for more, use Kubernetes"
        if known is None:
            return ""
        if known.known.id != hello.id and (known.runs or self.takes_more(known)):
            return f"--name: expected a name that no other machine has, or the --home of its last join, got {name!r}"
        if node != known.known.node and known.runs:
            return "this machine: expected the GPUs, cores and memory with which it joined, while jobs run on it"
        return ""

    def _machine(self, hello: wire.Hello) -> Machine:
        """Return the machine of a hello message; a new machine is stored before anything can run on it. Raises
        OSError.
        """
        found = next((each for each in self.known if each.name == hello.node.name), None)
        until = None if found is None else found.known.until
        new = Known(hello.id, hello.node, hello.visible, hello.runtime, until)
        if found is None:
            found = Machine(new, time.monotonic())
            self._keep([*(each.known for each in self.known), new])
            self.known.append(found)
            log_event(log, "a machine has joined", machine=new.node.name, gpus=new.node.gpus, model=new.node.model)
        elif found.known != new:
            self._change(found, new)
        return found

    def _change(self, machine: Machine, new: Known) -> None:
        """Store the record of a machine. Raises OSError, and then nothing has changed."""
        self._keep([new if each is machine else each.known for each in self.known])
        machine.known = new

    def _keep(self, known: list[Known]) -> None:
        self.keep(msgspec.json.encode(_Kept(self.first, known)))

    async def _session(self, hello: wire.Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a machine until it closes."""
        if self.has_caps and powered(hello.node) < 0:
            whole = ((POWER, hello.node.gpus * GPU),)
            hello = msgspec.structs.replace(hello, node=msgspec.structs.replace(hello.node, amounts=whole))
        fault = self._fault(hello)
        left = hello.again and not fault and all(each.name != hello.node.name for each in self.present)
        if fault or left:
            wire.say(writer, wire.Left() if left else wire.Refused(fault))
            with suppress(OSError):
                await writer.drain()
            return
        machine = self._machine(hello)
        if machine.line is not None:
            machine.line.close()  # a dead connection that has not been detected
        machine.line, machine.received, machine.is_lost = writer, time.monotonic(), False
        machine.nonce = nonce = self.shared / f".kant-join-{secrets.token_hex(8)}"
        text = secrets.token_hex(16)
        with suppress(OSError):
            nonce.write_text(text, encoding="ascii")
        kept = {}
        for name, part in list(machine.runs.items()):
            if name in hello.runs:
                part.begun()
                kept[name] = part.log.offset
            elif part.has_begun:  # the agent has another home now: runs of its old home end with their lease
                lost = Exit(why="lease", lost=f"machine {machine.name} no longer has its run")
                asyncio.get_running_loop().call_later(AFTER * self.lease_s, part.ended, lost)
        wire.say(writer, wire.Welcome(self.lease_s, kept, str(nonce), text))
        for part in list(machine.runs.values()):
            if not part.has_begun:
                wire.say(writer, part.order)
            elif part.name in kept:
                wire.say(writer, wire.Limit(part.name, part.order.spec.limit_s))
            if part.is_stopped:
                wire.say(writer, wire.Stop(part.name))
        self.changed()
        try:
            while machine.line is writer:
                self._receive(machine, await wire.receive(reader))
                await writer.drain()
        except OSError:
            pass
        finally:
            nonce.unlink(missing_ok=True)
            if machine.line is writer:
                self._hang_up(machine)

    def _receive(self, machine: Machine, message: wire.Message) -> None:
        """Process a message of a machine. Messages about runs that it no longer owns are ignored. Raises OSError if the
        disk is full: the machine then sends the message again over the next connection."""
        if machine.is_lost:  # its lease has expired and cannot be extended
            raise ConnectionError
        match message:
            case wire.Ping(number):
                machine.received = time.monotonic()
                machine.tell(wire.Pong(number))
            case wire.Shared(is_shared):
                machine.is_shared = is_shared
                machine.nonce.unlink(missing_ok=True)
                if not is_shared:
                    log_event(log, self.complaint, logging.WARNING)
            case wire.Begun(run) if run in machine.runs:
                machine.runs[run].begun()
            case wire.Written(run, offset, data) if run in machine.runs:
                machine.runs[run].log.put(offset, data)
            case wire.Ended(run, exit):
                if run in machine.runs:
                    machine.runs[run].ended(exit)
                machine.tell(wire.Forget(run))
            case _:
                pass
