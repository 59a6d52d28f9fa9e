"""`kant check`: checks files, and whether a policy follows the rules for policies."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from kant.cli.inputs import Seed, load_profile, whole
from kant.cli.show import console
from kant.model.errors import InputError
from kant.workload.cluster_file import read_cluster

check_app = App(name="check", help="Check a file, or whether a policy follows the rules.", help_format="plaintext")

Kind = Literal["workload", "cluster", "profile", "journal"]


@check_app.default
def check(
    file: Annotated[Path, Parameter(help="A workload, cluster file, profile or journal.")],
    /,
    *,
    kind: Annotated[Kind | None, Parameter(help="The expected format. Default: detected from the content.")] = None,
) -> None:
    """Read a file and say what it is, or the first error in it."""
    if not file.is_file():
        raise InputError(str(file), "a regular file" if file.exists() else "a file that exists")
    kind = kind or guess(file)
    console.print(f"{file}: {SAYS[kind](file)}", soft_wrap=True)


@check_app.command(name="policy")
def check_policies(
    *names: Annotated[str, Parameter(help="KIND.NAME, such as order.fifo. Default: those of other packages.")],
    rounds: Annotated[int, Parameter(help="Random cases for each rule.", converter=whole)] = 12,
    seed: Seed = 0,
) -> int:
    """Run policies on random clusters and jobs, and report any rule that a policy breaks."""
    from kant.api.conformance import broken_rule, policies_named

    if rounds < 1:
        raise InputError("--rounds", "at least 1", rounds)
    chosen = policies_named(names)
    if not chosen:
        console.print("no package offers a policy (docs/policies.md)")
    failed = 0
    for policy in chosen:
        broken = broken_rule(policy, rounds, seed)
        failed += bool(broken)
        found = broken or "follows the rules of its kind"
        console.print(f"{policy.kind}.{policy.name} of package {policy.package}: {found}", soft_wrap=True, markup=False)
    return 1 if failed else 0


def guess(file: Path) -> Kind:
    """Guess the kind of a file, by its name and its first line."""
    with file.open("rb") as plain:
        start = plain.read(4096)
    if start[:2] == b"\x1f\x8b":
        try:
            with gzip.open(file) as packed:
                start = packed.read(4096)
        except (OSError, EOFError, zlib.error):
            return "workload"
    first = start.split(b"\n", 1)[0].strip()
    if b'"event":"journal"' in first:
        return "journal"
    if first.startswith((b"sn,", b"ip,")):
        return "cluster"
    if file.suffix == ".toml":
        return "cluster" if b"[[nodes]]" in file.read_bytes() else "profile"
    return "workload"


def _workload(file: Path) -> str:
    from kant.workload.formats import detect

    trace = detect(file).parse(file)
    if not len(trace.jobs):
        raise InputError(str(file), "a trace with at least one job", "none")
    notes = "".join(f"; {note}" for note in trace.jobs.notes)
    if trace.apart:  # each workload has its own clock, so one run cannot combine them
        return f"{len(trace.names)} workloads of {len(trace.jobs):,} jobs: {', '.join(sorted(trace.names))}{notes}"
    return f"a workload of {len(trace.jobs):,} jobs{notes}"


def _cluster(file: Path) -> str:
    cluster = read_cluster(str(file))
    return f"a cluster of {len(cluster.nodes):,} nodes with {cluster.gpus:,} GPUs"


def _profile(file: Path) -> str:
    return f"the profile {load_profile(str(file)).name}"


def _journal(file: Path) -> str:
    from kant.live.journal_walk import read_journal

    walk = read_journal(file)
    for _ in walk:
        pass
    return f"a journal of {walk.number - 1:,} lines on {len(walk.header.cluster.nodes):,} nodes"


SAYS = {"workload": _workload, "cluster": _cluster, "profile": _profile, "journal": _journal}
