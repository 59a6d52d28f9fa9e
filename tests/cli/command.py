"""The command line as tests call it: in this process, or as a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kant.cli.app import run

KANT = Path(sysconfig.get_path("scripts")) / "kant"
MACHINE = ("cpu_s", "jobs_per_cpu_s", "peak_rss_mib")
"""What of a summary is about the machine that ran it."""


@dataclass(frozen=True)
class Outcome:
    """What one command left: its exit code and what it said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON object on standard output."""
        assert self.code in (0, 1, 130), self
        assert self.out.endswith("}\n") and self.out.count("\n") == 1, self.out[:200]
        return json.loads(self.out, parse_constant=_no_constant)

    def refusal(self) -> str:
        """The one sentence on standard error."""
        assert self.code == 2, self
        assert self.out == "", self.out[:200]
        assert self.err.startswith("kant: ") and self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        assert "expected" in self.err or "--help" in self.err, self.err
        return self.err

    def is_civil(self) -> None:
        """Exit code 0, 1 or 2, and one line at most on standard error."""
        assert self.code in (0, 1, 2), self
        if self.code == 2:
            self.refusal()
        else:
            assert self.err == "", self


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


PROGRESS = re.compile(r"^\S+: (kernels are compiled|day \d).*\n", re.MULTILINE)


def without_progress(err: str) -> str:
    """Standard error without the lines of runs that take long on a busy machine."""
    return PROGRESS.sub("", err)


def kant(*arguments: str | Path) -> Outcome:
    """Run one command in this process. What escapes it is what a person would see as a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), without_progress(err.getvalue()))


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "80", **(extra or {})}


def process(
    *arguments: str | Path | bytes, cwd: Path | None = None, env: Mapping[str, str] | None = None, **options: Any
) -> Outcome:
    """Run one command as a process."""
    done = subprocess.run(
        [KANT, *arguments],
        cwd=cwd,
        env=environment(env),
        timeout=300,
        check=False,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    return Outcome(done.returncode, (done.stdout or b"").decode(), without_progress((done.stderr or b"").decode()))


def without_machine(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary without what is about the machine that ran it."""
    return {key: value for key, value in summary.items() if key not in MACHINE}


def trace(path: Path, jobs: int = 60, sizes: Sequence[int] = (1, 2, 4, 8, 12, 1, 16), spread: int = 10) -> Path:
    """Write a trace in Kant's format whose jobs contend for a cluster of 4x8, in two queues."""
    rows = ["id,submit_s,runtime_s,gpus,queue"]
    for i in range(jobs):
        gpus, queue = sizes[i * 31 % len(sizes)], ("batch", "research")[i % 2]
        rows.append(f"j{i},{i * spread + i * 7 % 11},{60 + i * 7919 % 900},{gpus},{queue}")
    path.write_text("\n".join(rows) + "\n")
    return path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything under `folder`: the bytes of files, None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
