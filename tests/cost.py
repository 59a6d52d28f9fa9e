"""`pytest --cost`: CPU seconds of the run by folder, file and test, with those of all processes that tests start.

It says too which files waited longest, and when the workers ended: none should go on alone for long.
`--cost-in-brief`, as `make test` has it, says in three lines what all of it took, and the share of the dearest.

What tests share, as a browser or a control plane, counts for the one that is using it. So do kernels that a test is the
first to need: how many the workers compiled is said too, as the next run finds them and takes so much less.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest


def used(pid: str = "self") -> float:
    """CPU seconds so far of a process and its descendants: those that live, and those that were waited for."""
    seconds = 0.0
    with contextlib.suppress(OSError):
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        seconds = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        for thread in Path(f"/proc/{pid}/task").iterdir():
            seconds += sum(map(used, (thread / "children").read_text().split()))
    return seconds


def compiled() -> int:
    """How many kernels this process has compiled so far."""
    module = sys.modules.get("kant.compiled.work")
    return module.work.compiled if module else 0


class Cost:
    """Each report brings what was spent since the last one, from a worker of pytest-xdist too."""

    def __init__(self, *, brief: bool = False) -> None:
        self.brief = brief
        self.total: dict[int, Counter[str]] = {10: Counter(), 30: Counter(), 40: Counter()}
        self.waited, self.ends, self.began = Counter[str](), dict[str, float](), time.time()
        self.kernels = Counter[str]()

    def pytest_collection_finish(self) -> None:
        self.before, self.before_compiled = used(), compiled()
        self.spent = {"imports and collection": self.before}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when != "teardown":  # to look at all processes takes time, too
            return report
        now = used()
        self.spent[item.nodeid.partition("@")[0]] = max(0.0, now - self.before)  # less where a family has lost members
        report.cpu_s, self.spent, self.before = self.spent, {}, now
        report.kernels, self.before_compiled = compiled() - self.before_compiled, compiled()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for test, seconds in getattr(report, "cpu_s", {}).items():
            file = test.partition("::")[0]
            for total, name in zip(self.total.values(), (str(Path(file).parent), file, test), strict=True):
                total[name] += seconds
        if kernels := getattr(report, "kernels", 0):
            self.kernels[report.nodeid.partition("@")[0]] += kernels
        file = report.nodeid.partition("::")[0]
        self.waited[file] += report.duration - getattr(report, "cpu_s", {}).get(report.nodeid.partition("@")[0], 0.0)
        if node := getattr(report, "node", None):
            self.ends[node.gateway.id] = report.stop - self.began

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders, files, _ = self.total.values()
        new = f"{self.kernels.total()} kernels compiled"
        if self.brief:
            for what, total in (("folders", folders), ("files", files)):
                dearest = [f"{name.removeprefix('tests/')} {n / total.total():.0%}" for name, n in total.most_common(6)]
                terminalreporter.write_line(f"The dearest {what}: {', '.join(dearest)}")
            terminalreporter.write_line(f"{folders.total():.0f} CPU seconds, {new} (pytest --cost says more)")
            return
        terminalreporter.section(f"{folders.total():.0f} CPU seconds, {folders['.']:.0f} of them before the first test")
        for most, total in self.total.items():
            for name, seconds in total.most_common(most):
                terminalreporter.write_line(f"{seconds:8.2f}  {name}")
        terminalreporter.section(f"{new}: the next run finds them, unless they are of a test's own")
        for name, number in self.kernels.most_common(20):
            terminalreporter.write_line(f"{number:8}  {name}")
        terminalreporter.section("seconds that files waited, for others or for a core")
        for name, seconds in self.waited.most_common(30):
            terminalreporter.write_line(f"{seconds:8.2f}  {name}")
        ends = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sorted(self.ends.items()))
        terminalreporter.write_line(f"The workers ended after: {ends}")
