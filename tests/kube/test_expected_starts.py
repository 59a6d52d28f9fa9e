"""Expected starts on a real API server: learned by the leader, told by its Lease, and gone on with after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from tests.cli.command import kant as command
from tests.kube.api import Api
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.live import bound, install, says
from tests.kube.objects import make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.running import KantProcess
from tests.kube.terms import LEASES
from tests.kube.test_kube_page import ask

from kant.insight.calibration import Calibration, CalibrationState, HorizonState, Quarter, horizon
from kant.insight.track_record import FEW_QUARTERS
from kant.kube.lead.calibration_store import (
    ANNOTATION,
    FILE,
    CalibrationNote,
    CalibrationStore,
    SavedCalibration,
    digest,
)
from kant.kube.translate.annotations import RUNTIME
from kant.live.core import Core
from kant.model.node import ClusterSpec, Node
from kant.scheduler.profile import builtin_profile

HOURS = 2 * 3600
PROFILE = builtin_profile("kant")
FAR = horizon(HOURS * 1_000_000)
KNOWN = CalibrationState({FAR: HorizonState({at: Quarter(at, [2000], [4000]) for at in range(FEW_QUARTERS)}, 5, 4, 0)})
"""P50 comes true after twice the time that was forecast, P90 after four times."""


def notes(thing: Any) -> Any:
    return thing["metadata"].get("annotations")


def ahead(row: dict[str, Any], now: int) -> tuple[float, float]:
    """P50 and P90 in spans of HOURS from now."""
    return tuple(round((row["expected_us"][name] - now) / 1e6 / HOURS, 1) for name in ("p50", "p90"))  # type: ignore[return-value]


async def test_the_page_and_the_terminal_say_what_the_leader_has_learned(plane: ControlPlane, tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / FILE
    file.write_bytes(msgspec.json.encode(SavedCalibration(digest(PROFILE), 0, KNOWN)))
    options = ("--listen", f"127.0.0.1:{port}", "--journal", str(tmp_path))
    there = ("--kubeconfig", str(plane.kubeconfig("admin")))

    def terminal(*words: str) -> tuple[Any, tuple[float, float]]:
        found = command("eta", *there, *words, "--json").json()
        (row,) = found["jobs"]
        return row["earlier"], ahead(row, found["time_us"])

    def page() -> tuple[Any, tuple[float, float]]:
        code, found = ask(f"http://127.0.0.1:{port}/v1/eta")
        assert code == 200, found
        (row,) = found["jobs"]
        return row["earlier"], ahead(row, found["time_us"])

    async with Api(plane) as api:
        await install(api)
        await api.namespace(NAMESPACE)
        await api.create(make_node("n0"))
        first = KantProcess(plane, *options, user="admin")
        try:
            await first.says("state built")
            await api.create(make_pod("long", 8, annotations={RUNTIME: f"{HOURS}s"}))
            await api.until(lambda pods: len(bound(pods)) == 1)
            await api.create(make_pod("late", 8))
            await api.until(lambda pods: says(pods, "late", "capacity"))
            known = ({"answers": 5, "kept": 4, "kept_p50": 0, "calibrated": True}, (2.0, 4.0))
            assert await asyncio.to_thread(page) == known
            await api.until(lambda found: any(ANNOTATION in (notes(lease) or {}) for lease in found), LEASES)
            assert await asyncio.to_thread(terminal) == known
            why = await asyncio.to_thread(command, "why", *there, "late", "--json")
            assert why.json()["earlier"] == known[0]
            plans = (None, (1.0, 1.0))
            assert await asyncio.to_thread(terminal, "--kube-profile", "easy") == plans, "that is another plan"
            assert await asyncio.to_thread(terminal, "--kube-system", "elsewhere") == plans
        finally:
            first.stop()
        assert "default/late" in msgspec.json.decode(file.read_bytes(), type=SavedCalibration).memory.open
        second = KantProcess(plane, *options, user="admin")
        try:
            await second.says("state built")
            assert await asyncio.to_thread(page) == known
            await api.delete("/api/v1/namespaces/default/pods/long", grace_s=0)
            await api.until(lambda pods: len(bound(pods)) == 1 and len(pods) == 1)
        finally:
            second.stop()
        quarters = msgspec.json.decode(file.read_bytes(), type=SavedCalibration).memory.horizons[FAR].quarters
        (own,) = [one for one in quarters.values() if one.p50 != [2000]]
        assert len(own.p50) == 1 and own.p50[0] < 1000, "what was asked by the first one"


def core_that_knows(memory: CalibrationState) -> Core:
    core = Core(ClusterSpec("c", (Node("n", 8),)), PROFILE)
    core.settled()
    core.answers.recall(memory)
    return core


def test_the_shelf_is_written_seldom_and_only_for_something_new(tmp_path: Path) -> None:
    store, core = CalibrationStore(tmp_path), core_that_knows(KNOWN)
    for _ in range(100):
        store.put(core)
    assert store.written == 0, "a minute has not passed"
    assert (
        msgspec.json.decode(store.note, type=CalibrationNote).calibration == core.answers.calibration() != Calibration()
    )
    assert len(store.note) < 200
    for _ in range(100):
        store.put(core, last=True)
    kept = store.read()
    assert store.written == 1 and kept is not None and kept.memory == KNOWN
    blank = CalibrationStore(tmp_path / "none")
    blank.put(core_that_knows(CalibrationState()), last=True)
    assert (blank.written, blank.note, blank.read()) == (0, "", None)


def test_a_file_that_is_not_ours_is_let_alone(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"profile":"","zero":0,"memory":{"by_horizon":{"4":[[1],[5],0,0]}}}', "\x00"):
        (tmp_path / FILE).write_text(text)
        assert CalibrationStore(tmp_path).read() is None


def test_what_a_disk_cannot_take_is_not_kept_and_nothing_else_happens(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("no folder")
    store = CalibrationStore(tmp_path / "full")
    store.put(core_that_knows(KNOWN), last=True)
    assert store.written == 0 and store.note
