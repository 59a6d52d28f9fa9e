"""The compiled kernels decide as the same functions do in plain Python."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from numba import typeof
from tests.core.small_runs import all_outcomes
from tests.kube.processes import Forked

from kant.compiled import compiled, kept, work
from kant.compiled.kept import KeptCode, _described

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def test_every_policy_decides_and_measures_the_same_compiled_and_not() -> None:
    plain = subprocess.run(
        [sys.executable, "-m", "tests.core.small_runs"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    uncompiled = json.loads(plain.stdout)
    compiled = json.loads(json.dumps(all_outcomes()))
    assert compiled.keys() == uncompiled.keys()
    differ = [name for name in compiled if compiled[name] != uncompiled[name]]
    assert not differ, {name: (compiled[name]["digest"], uncompiled[name]["digest"]) for name in differ}


WIDE_GANG = """
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.placement.placer import Placer
from kant.testing import make_cluster, make_job, make_named_policy
state = ClusterState(make_cluster(*[1] * 90))
shape = state.shapes.of(make_job("wide", 1, pods=80))
for name in ("best-fit", "e-binpack", "kant", "spread", "e-spread"):
    placer = Placer(Snapshot(state), make_named_policy("placement", name), 0)
    assert placer.never_fits(shape) is None
    assert len(placer.place(shape)) == 80
"""


def test_the_first_gang_has_room_for_all_its_pieces_however_wide_it_is() -> None:
    """Uncompiled, since compiled code writes beyond the end of a table without a word."""
    subprocess.run(
        [sys.executable, "-c", WIDE_GANG], cwd=ROOT, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, check=True
    )


TWO_KERNELS = """
from kant.compiled import compiled_at_once as compiled, inlined
LIMIT = {limit}
@inlined
def part(x):
    return x {sign} LIMIT
@compiled
def whole(x):
    return part(x) + 1
@compiled
def apart(x):
    return 2 * x
print(whole(5), apart(5))
"""


def importing(folder: Path, name: str, largest: int = resource.RLIM_INFINITY) -> Forked:
    """A process that imports `two` of this folder, which has a cache of its own, and says how many kernels it had
    to compile, and found. It can write files of at most `largest` bytes."""

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        os.environ["KANT_CACHE_DIR"] = str(folder)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(folder))
        work.compiled = work.found = 0
        importlib.import_module("two")
        print(work.compiled, work.found)

    (folder / name).write_bytes(b"")
    return Forked(run, folder / name)


def imported(folder: Path, processes: int = 1) -> list[str]:
    """What so many processes at once have printed, each in two lines."""
    names = [f"log-{number}" for number in range(processes)]
    assert [each.wait() for each in [importing(folder, name) for name in names]] == [0] * processes
    return [line for name in names for line in (folder / name).read_text().splitlines()]


def test_a_full_disk_leaves_no_part_of_a_kernel(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_KERNELS.format(limit=3, sign="+"))
    child = importing(tmp_path, "log", largest=64)
    assert child.wait() == 0 and (tmp_path / "log").read_text() == "9 10\n2 0\n"
    assert list((tmp_path / "kant" / "kernels").iterdir()) == []


def test_code_is_kept_by_all_that_it_depends_on_and_by_nothing_else(tmp_path: Path) -> None:
    def run(limit: int, sign: str, lines_above: int = 0) -> tuple[str, int]:
        (tmp_path / "two.py").write_text("\n" * lines_above + TWO_KERNELS.format(limit=limit, sign=sign))
        return imported(tmp_path)[0], len(list(tmp_path.rglob("*.code")))

    assert run(3, "+") == ("9 10", 4), "two kernels, and the entries by which Python calls them"
    assert run(3, "+", lines_above=2) == ("9 10", 4)
    assert run(3, "-") == ("3 10", 6)
    assert run(4, "-") == ("2 10", 8)
    assert run(3, "+") == ("9 10", 8)
    environment = {**os.environ, "KANT_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", "import two"], cwd=tmp_path, check=True, env=environment)
    assert len(list(tmp_path.rglob("*.code"))) == 8, "a process with other addresses finds them too"
    assert not [file for file in tmp_path.rglob("*.code") if b" at 0x" in file.read_bytes()], "addresses of a process"


def test_code_of_a_tuple_within_a_tuple_depends_on_the_names_of_its_fields() -> None:
    """Else code that does not read a renamed field is found, and brings the old name with it."""
    old, new = (namedtuple("Inner", ["count", name]) for name in ("before", "after"))  # type: ignore[misc]
    outer = namedtuple("Outer", ["inner"])
    assert len({_described(typeof(outer(inner(1, 2.0)))) for inner in (old, new)}) == 2


def test_every_kernel_is_kept() -> None:
    """One with something below it whose changes are not known would be compiled in every process."""
    kept = []
    for file in (ROOT / "src" / "kant").rglob("*.py"):
        if re.search("^@compiled", file.read_text(encoding="utf-8"), re.MULTILINE):
            module = importlib.import_module(".".join(file.relative_to(ROOT / "src").with_suffix("").parts))
            kept += [each._cache for each in vars(module).values() if isinstance(getattr(each, "_cache", 0), KeptCode)]
    assert len(kept) > 100 and [each._stem for each in kept if each._depends_on is None] == []


def test_code_depends_on_the_fields_of_the_tuples_that_it_makes() -> None:
    def depends_on(fields: str) -> bytes | None:
        pair = namedtuple("pair", fields)
        return KeptCode(lambda a, b: pair(a, b))._depends_on

    assert depends_on("x y") == depends_on("x y") != depends_on("y x")


def test_code_depends_on_whether_what_it_calls_is_a_unit() -> None:
    def callee(x: int) -> int:
        return x + 1

    def depends_on(part: Callable[[int], int]) -> bytes | None:
        return KeptCode(lambda x: part(x))._depends_on

    assert depends_on(callee) == depends_on(callee) != depends_on(compiled(callee))


def test_code_depends_on_the_modules_of_what_it_calls() -> None:
    """Whoever loads it imports them by name."""

    def depends_on(module: str) -> bytes | None:
        def callee(x: int) -> int:
            return x + 1

        callee.__module__ = module
        return KeptCode(lambda x: callee(x))._depends_on

    assert depends_on("kant.one") == depends_on("kant.one") != depends_on("kant.other")


CALLED = """
from kant.compiled import compiled_at_once as compiled, inlined
@compiled
def callee(x, known):
    if x > {most}:
        raise ValueError("too much")
    return x + 1 if known else x
@inlined
def between(x):
    return callee(x, True)
@compiled
def caller(x):
    return between(x) + callee(2, False) + callee(7, x > 3)
print(caller(5))
try:
    caller(1000)
except ValueError as error:
    print(error)
"""


def test_a_kernel_is_compiled_once_and_not_into_those_that_call_it(tmp_path: Path) -> None:
    def kept() -> dict[str, list[Path]]:
        files = {name: tmp_path.rglob(f"*{name}-*.code") for name in ("callee", "caller")}
        return {name: [file for file in own if ".entry" not in file.name] for name, own in files.items()}

    two = tmp_path / "two.py"
    two.write_text(CALLED.format(most=99))
    assert imported(tmp_path) == ["16", "too much", "2 0"], "one callee, whatever constants it is called with"
    assert imported(tmp_path) == ["16", "too much", "0 1"], "the callee comes with its caller"
    kept()["callee"][0].unlink()
    assert imported(tmp_path) == ["16", "too much", "2 0"], "a caller is nothing without it"
    kept()["callee"][0].unlink()
    head, _, rest = CALLED.format(most=99).partition("@compiled")
    callee = f"@compiled{rest}".partition("@inlined")[0]
    two.write_text(f"{head}@compiled\ndef other(x):\n    return x\nother(1)\n{callee}callee(1, True)\n")
    assert imported(tmp_path) == ["2 0"]
    two.write_text(CALLED.format(most=99))
    assert imported(tmp_path) == ["16", "too much", "0 1"], "its symbol is the same in each process"
    two.write_text(CALLED.format(most=9))
    assert imported(tmp_path) == ["16", "too much", "2 0"]
    assert [len(files) for files in kept().values()] == [2, 2]
    (caller, *_), (callee, *_) = kept()["caller"], kept()["callee"]
    assert b"too much" in callee.read_bytes() and b"too much" not in caller.read_bytes()


def test_what_kernels_share_is_compiled_once_and_plain_for_python(tmp_path: Path) -> None:
    text = CALLED.format(most=99).replace("inlined\n@compiled", "inlined, shared\n@shared", 1)
    (tmp_path / "two.py").write_text(f"{text}print(type(callee).__name__)\n")
    assert imported(tmp_path) == ["16", "too much", "function", "2 0"]
    assert imported(tmp_path) == ["16", "too much", "function", "0 1"], "it comes with its caller"
    assert {file.name.split("-")[0] for file in tmp_path.rglob("*.code") if b"too much" in file.read_bytes()} == {
        "two.callee"
    }


CALLED_BY_PYTHON = """
import numpy as np
from kant.compiled import compiled_at_once as compiled
@compiled
def row(n):
    return np.full(n, 7)
@compiled
def total(n):
    return row(n).sum()
print(total(2), {also})
"""


def test_only_a_kernel_that_python_calls_has_an_entry(tmp_path: Path) -> None:
    def run(also: str) -> tuple[list[str], list[str]]:
        (tmp_path / "two.py").write_text(CALLED_BY_PYTHON.format(also=also))
        return imported(tmp_path), sorted(file.name.split("-")[0] for file in tmp_path.rglob("*.entry.code"))

    assert run("0") == (["14 0", "2 0"], ["two.total"])
    assert run("row(2)") == (["14 [7 7]", "0 2"], ["two.row", "two.total"]), "the kernel itself is there"
    assert run("row(2)") == (["14 [7 7]", "0 2"], ["two.row", "two.total"]), "each comes with its own constants"
    unboxing = {file.name for file in tmp_path.rglob("*.code") if b"_ZN7cpython" in file.read_bytes()}
    assert unboxing == {file.name for file in tmp_path.rglob("*.entry.code")}


def test_of_processes_that_need_a_kernel_at_once_one_compiles_it(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_KERNELS.format(limit=3, sign="+"))
    said = imported(tmp_path, 3)
    results, counted = said[::2], said[1::2]
    assert set(results) == {"9 10"}
    assert sorted(counted) in (["0 2", "0 2", "2 0"], ["0 2", "1 1", "1 1"])
    assert len(list(tmp_path.rglob("*.code"))) == 4 and not list(tmp_path.rglob("*.turn"))


SATURATED = """
import sys
from benchmarks.traces import saturated
from kant.compiled import compiling_ahead, kept, work
from kant.scheduler.profile import builtin_profile
from kant.sim.eviction_columns import EvictionColumns
from kant.sim.warm import warm_up
warm_up(builtin_profile(sys.argv[1]))
made = work.compiled + work.found
with compiling_ahead():
    saturated(days=3).simulate(sys.argv[1])
needed = work.compiled + work.found
EvictionColumns.pay = lambda *told: False  # as without code for evictions
with compiling_ahead():
    saturated(days=3).simulate(sys.argv[1])
def called(name):
    return {name}.union(*map(called, kept._read(name)[0].values()))
instants = [called(name) for name in kept._units if ".advance-" in name]
print(made, needed, min(map(len, instants)))
"""

MOST_UNITS = {"fifo": 25, "kant": 34, "easy": 55}
"""How many kernels a first run compiles with an empty cache: the loop of the instants, and all that it calls, for a run
without quotas. May only fall. Seven of them are `shared`: before, they were copied into kernels that call them."""


@pytest.mark.parametrize("profile", ["fifo", "kant", "easy"])
def test_kernels_that_are_made_ahead_are_all_that_a_saturated_run_needs(profile: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SATURATED, profile], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ahead, needed, units = map(int, done.stdout.split())
    assert ahead > 5 and ahead == needed
    assert units <= MOST_UNITS[profile]


def test_of_a_kernels_code_the_files_that_were_last_used_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "KEPT", 3)
    (tmp_path / "another.kernel-0.code").touch()
    code = KeptCode(importing)
    for used in (1, 5, 2, 4, 3):
        code._write(tmp_path, f"{code._stem}-{used}.code", b"")
        os.utime(tmp_path / f"{code._stem}-{used}.code", (used, used))
    left = {f"{code._stem}-{used}.code" for used in (3, 4, 5)}
    assert {file.name for file in tmp_path.iterdir()} == {"another.kernel-0.code", *left}


def test_code_that_cannot_be_read_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_KERNELS.format(limit=3, sign="+"))
    found: list[str] = []
    for _ in range(2):
        found += imported(tmp_path)
        for file in tmp_path.rglob("*.code"):
            file.write_bytes(file.read_bytes()[:100])
    assert found == ["9 10", "2 0"] * 2
