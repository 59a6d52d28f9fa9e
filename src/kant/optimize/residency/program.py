"""A program of steps that use buffers, and a check of plans that does not depend on how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from kant.model.errors import InputError

Size = Annotated[int, Meta(ge=1, le=1 << 40)]
Ticks = Annotated[int, Meta(ge=0, le=1 << 30)]

DROP, KEEP, COPY = 0, 1, 2
ACTIONS = ("drop", "keep", "copy")


class Tier(Struct, frozen=True, forbid_unknown_fields=True):
    """A slow memory, such as the host's or NVMe. `bandwidth` is in units of size per tick."""

    name: str
    bandwidth: Size


class Buffer(Struct, frozen=True, forbid_unknown_fields=True):
    """The weights of a model, a cache, a tensor: its size, and its home tier."""

    name: str
    size: Size
    tier: str


class ProgramStep(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step: `compute` ticks of work on the buffers that it `uses`. It creates the buffers that it `makes`."""

    compute: Ticks
    uses: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()


class Program(Struct, frozen=True, forbid_unknown_fields=True):
    """Consecutive steps on a GPU whose fast memory holds `capacity` units.

    A step reads from slow tiers while it computes, so it takes as long as the longer of the two: its computation, or
    all its reads. Raises InputError if names are inconsistent.
    """

    capacity: Size
    tiers: Annotated[tuple[Tier, ...], Meta(min_length=1, max_length=64)]
    buffers: Annotated[tuple[Buffer, ...], Meta(min_length=1, max_length=10_000)]
    steps: Annotated[tuple[ProgramStep, ...], Meta(min_length=1, max_length=10_000)]

    def __post_init__(self) -> None:
        tiers, known = {tier.name for tier in self.tiers}, set[str]()
        if len(tiers) < len(self.tiers):
            raise InputError("tiers", "each name once")
        for buffer in self.buffers:
            if buffer.name in known:
                raise InputError(f"buffer {buffer.name}", "a name that no other buffer has")
            if buffer.tier not in tiers:
                raise InputError(f"buffer {buffer.name}, tier", f"one of {', '.join(sorted(tiers))}", buffer.tier)
            known.add(buffer.name)
        there: set[str] = set()
        made = {name for step in self.steps for name in step.makes}
        for n, step in enumerate(self.steps):
            for field, names in (("uses", step.uses), ("makes", step.makes)):
                for name in names:
                    if name not in known:
                        raise InputError(f"step {n}, {field}", "names of buffers", name)
            if len({*step.uses, *step.makes}) < len(step.uses) + len(step.makes):
                raise InputError(f"step {n}", "each buffer once")
            for name in step.uses:
                if name in made and name not in there:
                    raise InputError(f"step {n}, uses", "only buffers that an earlier step makes", name)
            for name in step.makes:
                if name in there:
                    raise InputError(f"step {n}, makes", "each buffer once", name)
                there.add(name)


class BufferUse(NamedTuple):
    """A use: a step uses or makes a buffer. `before` is the index of the buffer's previous use; -1: none."""

    step: int
    buffer: int
    size: int
    ticks: int
    before: int
    made: bool


def uses_of(program: Program) -> list[BufferUse]:
    """The uses in the order of the program. `ticks` is the time to read or copy the buffer."""
    number = {buffer.name: n for n, buffer in enumerate(program.buffers)}
    speed = {tier.name: tier.bandwidth for tier in program.tiers}
    last: dict[int, int] = {}
    found: list[BufferUse] = []
    for step, each in enumerate(program.steps):
        for made, names in ((False, each.uses), (True, each.makes)):
            for name in names:
                b = number[name]
                buffer = program.buffers[b]
                ticks = -(-buffer.size // speed[buffer.tier])
                found.append(BufferUse(step, b, buffer.size, ticks, last.get(b, -1), made))
                last[b] = len(found) - 1
    return found


class BufferAction(NamedTuple):
    """The action at a use (DROP, KEEP or COPY), and the step from which a copy occupies memory (-1: no copy)."""

    action: int
    start: int = -1


def duration(program: Program, choices: Sequence[BufferAction]) -> int:
    """How many ticks the program takes: the sum over its steps of the longer of computation and reads."""
    reads = [0] * len(program.steps)
    for use, choice in zip(uses_of(program), choices, strict=True):
        reads[use.step] += use.ticks if choice.action == DROP else 0
    return sum(max(step.compute, read) for step, read in zip(program.steps, reads, strict=True))
