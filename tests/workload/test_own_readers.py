"""Trace readers of other packages: found by entry point, told by their columns, refused in one clear sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks

from kant.model.errors import InputError
from kant.workload import formats
from kant.workload.formats import detect, format_named
from kant.workload.read import read_workload

READER = next(block.text for block in blocks(ROOT / "docs" / "extending.md") if block.rest == "kant_hours.py")
TABLE = "begin_h,hours,cards,team\n0,2,4,vision\n1,5,8,speech\n"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package on the path as an installer leaves it: a module, and the metadata with its entry point."""
    modules = set(sys.modules)

    def put(name: str, value: str, package: str = "kant-hours", text: str = READER) -> None:
        (tmp_path / f"{value.partition(':')[0]}.py").write_text(text)
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[kant.readers]\n{name} = {value}\n")
        formats._offers.cache_clear()
        formats._loaded.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    for name in set(sys.modules) - modules:
        if not name.startswith("kant."):
            del sys.modules[name]
    monkeypatch.undo()
    formats._offers.cache_clear()
    formats._loaded.cache_clear()


def test_a_trace_of_another_package_is_told_by_its_columns(install: Install, tmp_path: Path) -> None:
    install("hours", "kant_hours:FORMAT")
    path = tmp_path / "ours.csv"
    path.write_text(TABLE)
    jobs = read_workload(path)
    assert jobs.gpus.tolist() == [4, 8] and jobs.runtime.tolist() == [2 * 3600 * 10**6, 5 * 3600 * 10**6]
    assert len(read_workload(path, slice="speech")) == 1
    path.write_text(TABLE.replace("5,8", "5,none"))
    with pytest.raises(InputError, match=r"ours.csv, line 3, field cards: expected a whole number from 1 to 10000"):
        read_workload(path, format="hours")


def test_no_package_is_imported_for_a_trace_of_kants_own(install: Install, tmp_path: Path) -> None:
    install("hours", "kant_hours:FORMAT")
    path = tmp_path / "philly.csv"
    path.write_text("submit_s,duration_s,gpus,vc\n0,1,1,a\n")
    assert detect(path).name == "philly" and "kant_hours" not in sys.modules
    with pytest.raises(InputError, match=r"expected one of kant, philly, .*swf, hours, got 'minutes'"):
        format_named("minutes")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("hours", "1 / 0", r"format hours of package kant-hours: expected a Format that can be imported \(ZeroDiv"),
        ("hours", "FORMAT = 3", r'expected a kant.workload.formats.Format with name="hours", got'),
        (
            "days",
            READER,
            r'format days of package kant-hours: expected a kant.workload.formats.Format with name="days"',
        ),
        ("philly", READER, r"format philly: expected one package .* but kant and kant-hours do: uninstall one"),
    ],
)
def test_a_reader_that_cannot_be_used_is_refused(install: Install, name: str, text: str, said: str) -> None:
    install(name, "kant_hours:FORMAT", text=text)
    with pytest.raises(InputError, match=said):
        format_named(name)


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("hours", "kant_hours:FORMAT")
    install("hours", "their_hours:FORMAT", package="their-hours")
    with pytest.raises(InputError, match="but kant-hours and their-hours do: uninstall one"):
        format_named("hours")
