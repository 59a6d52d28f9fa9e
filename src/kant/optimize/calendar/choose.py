"""The place of a reservation on a cluster: contiguous GPUs that are free for the reservation's whole window. If there
are none, the bookings in the way.

A line is the GPUs of one domain of the fabric, node after node, of one GPU model and one node size. If a reservation
fits beside all bookings, it goes to the line where it leaves the fewest free GPUs, at the lowest position, and nothing
moves. Otherwise the calendar of each line is solved, and its reservations that have not begun may move; the line with
the fewest moves wins. Running jobs, nodes out of service and reservations of other lines keep their GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kant.model.errors import InputError
from kant.model.job import LEVELS
from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER
from kant.optimize.calendar.booking import LineBooking
from kant.optimize.calendar.solve import solve

LIMIT = 0.3
"""The limit of the search on one line, in deterministic seconds."""
MOST_LINES = 32
"""The maximum number of lines searched for a plan in which other reservations move. The emptiest lines come first."""
CLUSTER = "cluster"

Held = Mapping[int, int]
"""GPUs as bits, by node index."""


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """`gpus` contiguous GPUs from `start` to before `end` (microseconds), in one domain of the level `within`.

    If `within` is "", they are in one node if one is large enough, otherwise anywhere on a line of the cluster. `model`
    "" means any single model. `whole`: the reservation gets all GPUs of its nodes, which may be more than `gpus`.
    """

    name: str
    gpus: int
    start: int
    end: int
    within: str = ""
    model: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """GPUs that `who` holds over a time window. If there is a `request`, the GPUs may be moved along their line."""

    who: str
    start: int
    end: int
    held: Held
    request: PlaceRequest | None = None


@dataclass(frozen=True, slots=True)
class PlaceChoice:
    """The place of a reservation, or the bookings in the way.

    `held`: its GPUs; empty if there is no place. `moved` has the new places of other reservations. `collide` names
    bookings of one line that do not all fit beside the reservation; if `minimal`, they fit once any one of them is left
    out. `later` is the first later start at which it fits without moves; -1: there is none.
    """

    held: Held
    moved: Mapping[str, Held]
    collide: tuple[str, ...] = ()
    minimal: bool = False
    line: str = ""
    later: int = -1


@dataclass(frozen=True, slots=True)
class GpuLine:
    """The GPUs of some nodes, node after node; each node has `width` GPUs."""

    name: str
    nodes: tuple[int, ...]
    width: int

    @property
    def gpus(self) -> int:
        """The number of GPUs on the line."""
        return len(self.nodes) * self.width

    def size(self, request: PlaceRequest) -> int:
        """The number of GPUs that a reservation holds on this line."""
        return -(-request.gpus // self.width) * self.width if request.whole else request.gpus

    def held(self, first: int, gpus: int) -> Held:
        """`gpus` GPUs of the line from its position `first` on, as bits by node index."""
        found: dict[int, int] = {}
        for place in range(first, first + gpus):
            node = self.nodes[place // self.width]
            found[node] = found.get(node, 0) | 1 << place % self.width
        return found

    def places(self, held: Held) -> Iterator[int]:
        """The positions on the line of the GPUs in `held`, in order."""
        for at, node in enumerate(self.nodes):
            bits = held.get(node, 0)
            yield from (at * self.width + device for device in range(self.width) if bits >> device & 1)


def choose(spec: ClusterSpec, request: PlaceRequest, taken: Sequence[Taken], now: int) -> PlaceChoice:
    """Choose the place of a reservation. Raises InputError if the empty cluster could not hold it."""
    lines = lines_of(spec, request)
    found = _beside(lines, request, taken)
    if found is not None:
        return PlaceChoice(found[0].held(found[1], found[0].size(request)), {}, line=found[0].name)
    return _moving(spec, lines, request, taken, now)


def lines_of(spec: ClusterSpec, request: PlaceRequest) -> list[GpuLine]:
    """The lines that are long enough for the request, in cluster order. Raises InputError if there is none."""
    level = level_of(spec, request)
    if request.within not in ("", CLUSTER, *LEVELS):
        raise InputError("within", f"one of {', '.join((*LEVELS, CLUSTER))}", request.within)
    if request.gpus < 1:
        raise InputError("gpus", "at least 1", request.gpus)
    order = sorted(range(len(spec.nodes)), key=lambda index: _path(spec, index))
    usable = [i for i in order if spec.nodes[i].gpus and not spec.nodes[i].mig]
    if request.model and not any(spec.nodes[i].model == request.model for i in usable):
        raise InputError("model", f"one of {', '.join(sorted({spec.nodes[i].model for i in usable}))}", request.model)
    found = []
    domains: dict[tuple[str, ...], dict[tuple[str, int], list[int]]] = {}
    for index in usable:
        node = spec.nodes[index]
        if request.model in ("", node.model):
            domains.setdefault(_domain(spec, index, level), {}).setdefault((node.model, node.gpus), []).append(index)
    for domain, kinds in domains.items():
        for (_, width), nodes in kinds.items():
            name = spec.nodes[nodes[0]].name if level == "node" else " ".join((level, *filter(None, domain[-1:])))
            found.append(GpuLine(name, tuple(nodes), width))
    fits = [line for line in found if line.gpus >= line.size(request)]
    if not fits:
        most = max((line.gpus for line in found), default=0)
        where = f"one {level} has" if level != CLUSTER else "the cluster has of one model"
        raise InputError("gpus", f"at most {most:,}, as many as {where}", request.gpus)
    return fits


def level_of(spec: ClusterSpec, request: PlaceRequest) -> str:
    """The level of the lines: "node" if one node has enough GPUs (a node is in one domain of every level)."""
    widest = max((node.gpus for node in spec.nodes if not node.mig and request.model in ("", node.model)), default=0)
    if request.gpus <= widest or request.within == "node":
        return "node"
    return request.within or CLUSTER


def _names(node: Node) -> tuple[str, str, str, str]:
    return node.superspine, node.spine, node.leaf, node.hbd or f"node {node.name}"


def _domain(spec: ClusterSpec, index: int, level: str) -> tuple[str, ...]:
    if level == CLUSTER:
        return ()
    if level == "node":
        return (spec.nodes[index].name,)
    names = _names(spec.nodes[index])
    return names[: len(names) - LEVELS.index(level) + 1]


def _path(spec: ClusterSpec, index: int) -> tuple[tuple[str, ...], int]:
    """The sort key of a node. Nodes of one domain are adjacent; domains are sorted by name, nodes as in the cluster."""
    return _names(spec.nodes[index])[:3], index


# --- without moves -----------------------------------------------------------------------------------------------


def _beside(lines: Sequence[GpuLine], request: PlaceRequest, taken: Iterable[Taken]) -> tuple[GpuLine, int] | None:
    """The line and position where the request fits without moves: of such lines the fullest, and then the first."""
    busy: dict[int, int] = {}
    for each in taken:
        if each.start < request.end and request.start < each.end:
            for node, bits in each.held.items():
                busy[node] = busy.get(node, 0) | bits
    best: tuple[int, int, GpuLine, int] | None = None
    for number, line in enumerate(lines):
        blocked = set(line.places(busy))
        first = _first_free(line, blocked, line.size(request), alignment(line, request))
        rank = line.gpus - len(blocked)
        if first is not None and (best is None or rank < best[0]):
            best = rank, number, line, first
    return None if best is None else best[2:]


def _first_free(line: GpuLine, blocked: set[int], gpus: int, step: int) -> int | None:
    """The lowest position, a multiple of `step`, from which `gpus` GPUs are free."""
    first = 0
    while first + gpus <= line.gpus:
        hit = next((place for place in range(first + gpus - 1, first - 1, -1) if place in blocked), None)
        if hit is None:
            return first
        first = -(-(hit + 1) // step) * step
    return None


def alignment(line: GpuLine, request: PlaceRequest) -> int:
    """The alignment of a reservation: the GPUs of a node if it takes whole nodes or several nodes, otherwise 1."""
    return line.width if request.whole or request.gpus > line.width else 1


def _later(lines: Sequence[GpuLine], request: PlaceRequest, taken: Sequence[Taken]) -> int:
    """The first later start at which the request fits without moves; -1 for none."""
    length = request.end - request.start
    for start in sorted({each.end for each in taken if request.start < each.end < FOREVER}):
        if _beside(lines, replace(request, start=start, end=start + length), taken) is not None:
            return start
    return -1


# --- with moves of others ----------------------------------------------------------------------------------------


def _moving(
    spec: ClusterSpec, lines: Sequence[GpuLine], request: PlaceRequest, taken: Sequence[Taken], now: int
) -> PlaceChoice:
    """The place with the fewest moves of others; or the bookings in the way, on the line with the fewest of them."""
    best: PlaceChoice | None = None
    worst: PlaceChoice | None = None
    later = _later(lines, request, taken)
    free = {each.who: lines_of(spec, each.request) for each in taken if each.request is not None and each.start > now}
    ranked = sorted(lines, key=lambda line: sum(_load(line, each, request) for each in taken))
    for line in ranked[:MOST_LINES]:
        rows, who, offsets = _calendar(line, request, taken, free, now)
        answer = solve(rows, line.gpus, limit=LIMIT)
        if answer.status == "fits":
            places = {
                who[i]: line.held(answer.offsets[i], row.gpus)
                for i, row in enumerate(rows)
                if row.offset is None and answer.offsets[i] != offsets[i]
            }
            held = places.pop(request.name)
            if best is None or len(places) < len(best.moved):
                best = PlaceChoice(held, places, line=line.name)
        elif best is None:
            names = tuple(dict.fromkeys(who[i] for i in answer.collide if who[i] != request.name))
            if worst is None or (len(worst.collide) == 0 or 0 < len(names) < len(worst.collide)):
                worst = PlaceChoice({}, {}, names, answer.minimal, line.name, later)
    found = best or worst
    assert found is not None, "some line is long enough"
    return found


def _load(line: GpuLine, each: Taken, request: PlaceRequest) -> int:
    meets = each.start < request.end and request.start < each.end
    return sum(each.held[node].bit_count() for node in line.nodes if node in each.held) if meets else 0


def _calendar(
    line: GpuLine, request: PlaceRequest, taken: Sequence[Taken], free: Mapping[str, list[GpuLine]], now: int
) -> tuple[list[LineBooking], list[str], list[int]]:
    """The calendar of a line: its bookings, the owner of each, and its present position (-1: the new reservation).

    `free` lists, for each reservation that may move, the lines on which it may be.
    """
    rows = [LineBooking(request.name, request.start, request.end, line.size(request), alignment(line, request))]
    who, offsets = [request.name], [-1]
    covered: dict[int, list[tuple[int, int]]] = {}
    nodes = set(line.nodes)
    for each in sorted(taken, key=lambda one: (one.request is not None, one.start, one.who)):
        if each.end <= now or nodes.isdisjoint(each.held):
            continue
        own = each.request
        if own is not None and line in free.get(each.who, ()) and nodes >= each.held.keys():
            rows.append(LineBooking(each.who, each.start, each.end, line.size(own), alignment(line, own)))
            who.append(each.who)
            offsets.append(next(line.places(each.held)))
            continue
        pinned = [
            (place, span)
            for place in line.places(each.held)
            for span in _uncovered(covered.setdefault(place, []), max(each.start, now), each.end)
        ]
        pinned.sort(key=lambda one: (one[1], one[0]))
        for (run, _), group in groupby(enumerate(pinned), key=lambda one: ((one[1][1]), one[1][0] - one[0])):
            first, *rest = [place for _, (place, _) in group]
            rows.append(LineBooking(each.who, run[0], run[1], 1 + len(rest), offset=first))
            who.append(each.who)
            offsets.append(first)
    return rows, who, offsets


def _uncovered(spans: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [start, end) that no span in `spans` covers, and add these parts to `spans`."""
    left = [(start, end)]
    for low, high in spans:
        left = [(a, b) for x, y in left for a, b in ((x, min(y, low)), (max(x, high), y)) if a < b]
    spans += left
    return left
