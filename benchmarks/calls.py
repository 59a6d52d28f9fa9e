"""How many Python functions a simulated job calls, by room: `python -m benchmarks.calls [NAME …] [--by file|function]`.

Unlike times, calls are exact: the count of one trace does not change from run to run, however busy the machine is.
tests/core/test_calls.py holds the counts below the figures in tests/core/calls.toml.

A call is one of a Python function, or one step of a generator, anywhere below `simulate`: in Kant, or in a library
that Kant calls. Comprehensions are not counted, as Python 3.12 and later make no call of them. Compiled kernels and
functions written in C are not counted either.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from cProfile import Profile
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import CodeType

import kant
from benchmarks import traces
from benchmarks.traces import Trace
from kant.compiled import compiling_ahead

TRACES: dict[str, Callable[[], Trace]] = {
    "idle-fifo": traces.idle,
    "saturated-kant": traces.saturated,
    "saturated-kant-queues": traces.saturated_queues,
    "saturated-easy": lambda: traces.saturated(5, "easy"),
    "saturated-conservative": lambda: traces.saturated(5, "conservative"),
    "what-if": traces.asked,
}
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
HOME = Path(kant.__file__).parent
WAYS = ("room", "file", "function")


@dataclass(frozen=True, slots=True)
class Calls:
    """What one run called. `by_function` has (file, function) with the file as a path within Kant, or the library."""

    name: str
    jobs: int
    digest: str
    by_function: Counter[tuple[str, str]]

    @property
    def total(self) -> int:
        return self.by_function.total()

    @property
    def cycles(self) -> int:
        """How often the scheduler was asked for a plan."""
        return self.by_function["scheduler/cycle.py", "run_cycle"]

    def figures(self) -> dict[str, float]:
        """What may only fall: calls and cycles of one job, rounded up."""
        return {"calls": _of_one(self.total, self.jobs), "cycles": _of_one(self.cycles, self.jobs)}

    def grouped(self, way: str) -> Counter[str]:
        """Calls by room, by file or by function of Kant; each library is one line."""
        found: Counter[str] = Counter()
        for (file, function), count in self.by_function.items():
            name = {"room": file.split("/")[0], "file": file, "function": f"{file}:{function}"}[way]
            found[name if file.endswith(".py") else file] += count
        return found


def count(trace: Trace, most: float = inf) -> Calls:
    """Run `trace` twice and count the calls of the second run: the first compiles and fills caches.

    With more than `most` calls a job another run is counted: a process beside may have stored kernels since the first.
    """
    with compiling_ahead():
        trace.simulate()
    calls = _counted(trace)
    return calls if calls.total <= most * calls.jobs else _counted(trace)


def _counted(trace: Trace) -> Calls:
    profile = Profile(builtins=False)
    collects = gc.isenabled()
    gc.disable()  # others may have the collector call them
    before = sys.getprofile()
    try:
        result = profile.runcall(trace.simulate)
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    by_function: Counter[tuple[str, str]] = Counter()
    for entry in profile.getstats():
        if isinstance(entry.code, CodeType) and entry.code.co_name not in COMPREHENSIONS:
            by_function[_file(entry.code), entry.code.co_name] += entry.callcount
    return Calls(trace.name, len(trace.workload), result.summary["digest"], by_function)


def _of_one(total: int, jobs: int) -> float:
    """A count of one job, rounded up to a tenth."""
    return -(-total * 10 // jobs) / 10


def _file(code: CodeType) -> str:
    """The path within Kant of the code's file, or the name of the library that it belongs to."""
    path = Path(code.co_filename)
    if path.is_relative_to(HOME):
        return str(path.relative_to(HOME))
    parts = path.parts
    if "site-packages" in parts:
        return f"({parts[parts.index('site-packages') + 1]})"
    return "(Python)"


def main() -> int:
    words = sys.argv[1:]
    way = "room"
    if "--by" in words:
        at = words.index("--by")
        way = words[at + 1] if at + 1 < len(words) else ""
        del words[at : at + 2]
    if way not in WAYS:
        print(f"benchmarks.calls: expected one of {', '.join(WAYS)} after --by", file=sys.stderr)
        return 2
    if unknown := [name for name in words if name not in TRACES]:
        print(f"benchmarks.calls: expected names among {', '.join(TRACES)}, got {unknown[0]}", file=sys.stderr)
        return 2
    for name in words or TRACES:
        show(count(TRACES[name]()), way)
    return 0


def show(calls: Calls, way: str) -> None:
    figures = calls.figures()
    print(f"{calls.name}: {figures['calls']} calls and {figures['cycles']} cycles a job ({calls.jobs} jobs)")
    print(f"  digest {calls.digest}")
    for name, times in calls.grouped(way).most_common():
        if times >= calls.jobs // 20:
            print(f"{times / calls.jobs:9.1f}  {name}")


if __name__ == "__main__":
    sys.exit(main())
