"""A disk that is full ends the record of a leader, not its scheduling, on a real API server."""

from __future__ import annotations

import errno
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, events, install, until
from tests.kube.objects import make_node, make_pod
from tests.kube.running import kant
from tests.patience import until as eventually

from kant.live import journals
from kant.live.journals import Journals
from kant.sim.replay import replay


class Disk:
    """A disk that takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def file(self, path: Path, mode: str) -> FileIO:
        disk = self

        class Limited(FileIO):
            def write(self, data: Any, /) -> int:
                count = min(len(data), disk.room)
                if not count:
                    raise OSError(errno.ENOSPC, "No space left on device")
                disk.room -= count
                return super().write(bytes(data[:count]))

        return Limited(path, mode)


async def test_a_full_disk_ends_the_record_and_not_the_scheduling(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(3_000)
    monkeypatch.setattr(journals, "FileIO", disk.file)
    monkeypatch.setattr(journals, "RETRY", 0.2)
    monkeypatch.setattr(Journals, "_has_room", lambda self: disk.room > 0)
    async with Api(plane) as api:
        await install(api)
        await api.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kant-system"}}])
        await api.create(make_node("n0"))
        async with kant(plane, journal=tmp_path) as driver:
            for number in range(8):
                await api.create(make_pod(f"p{number}"))
                await until(api, lambda pods, number=number: len(bound(pods)) == number + 1)  # type: ignore[misc]
            await eventually(lambda: "kant_journal_failed 1.0" in driver.telemetry.text().decode())
            await eventually(lambda: driver.settings.journals is not None and not driver.settings.journals.path)
            assert await driver.notifier.recorder.drain(30)
            (stopped,) = await events(api, "JournalStopped")
            assert stopped["regarding"]["kind"] == "Lease" and "No space left on device" in stopped["note"]
            disk.room = 1 << 30
            await eventually(lambda: "kant_journal_failed 0.0" in driver.telemetry.text().decode())
            await api.delete("/api/v1/namespaces/default/pods/p0", grace_s=0)
            await api.create(make_pod("late"))
            await until(api, lambda pods: "late" in bound(pods))
            assert await driver.notifier.recorder.drain(30)
            assert len(await events(api, "JournalResumed")) == 1
    first, *_, last = sorted(tmp_path.glob("*.jsonl"))
    assert 0 < first.stat().st_size <= 3_000
    again = replay(last)
    assert again.equal, again.difference
