"""What a leader has learned about expected starts: kept beside its journals, and told to others by its Lease.

The file is for the next leader that finds it: a process that starts again on the same disk. A leader that finds none
begins with what a ConfigMap says, if there is one: what a Kant on one machine has learned (`kant export`). The few
numbers of which answers are made go as an annotation on the Lease, which is written every few seconds anyway: so
`kubectl kant` says what the leader would say. They hold only under the profile under which they were learned.
"""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from kant.insight.calibration import Calibration
from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.objects.config_maps import ConfigMap, config_map
from kant.kube.objects.views import PartialMetadata
from kant.live.core import Core
from kant.live.learned import SavedCalibration, digest, learned_version, saved_calibration
from kant.live.queue_use import SavedUse, note_of, read_note, use_of
from kant.model.errors import InputError
from kant.scheduler.profile import Profile

FILE = "learned.json"
LEARNED = "kant-learned"
"""The ConfigMap."""
KEY = "learned.json.gz"
ANNOTATION = "scheduling.kant.dev/expected-starts"
USED = "scheduling.kant.dev/used-by-queues"
"""The annotation with what queues have used, for a leader on another machine (`kant.live.queue_use`)."""
EVERY = 60.0
"""Seconds between two writings of the file at least."""


class CalibrationNote(Struct):
    """What the annotation says."""

    profile: str
    calibration: Calibration


def note(core: Core) -> str:
    """The annotation; "" while nothing is known."""
    calibration = core.answers.calibration()
    return (
        msgspec.json.encode(CalibrationNote(digest(core.profile), calibration)).decode() if calibration.lessons else ""
    )


class CalibrationStore:
    """The file in the folder of the journals, and the annotation; both are made anew when something was learned."""

    def __init__(self, folder: Path | None) -> None:
        self.path = folder / FILE if folder is not None else None
        self.note = ""
        self.used = ""
        self.written = 0  # how often
        self._noted: tuple[int, int, int] = (0, 0, 0)
        self._kept: tuple[int, int, int] = (0, 0, 0)
        self._at = time.monotonic()

    def read(self) -> SavedCalibration | None:
        """What was saved; None where there is nothing that can be read."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=SavedCalibration) if self.path is not None else None
        except (OSError, msgspec.DecodeError):
            return None

    def put(self, core: Core, last: bool = False) -> None:
        """Keep what is new: the file from time to time, or because it is the `last` one."""
        stands = learned_version(core)
        if stands != self._noted:
            self._noted, self.note = stands, note(core)
            self.used = note_of(use_of(core.state, core.zero, core.now))
        now = time.monotonic()
        if self.path is None or stands == self._kept or (not last and now - self._at < EVERY):
            return
        self._kept, self._at = stands, now
        if not any(stands[1:]):
            return
        beside = self.path.with_suffix(".tmp")
        try:
            beside.write_bytes(msgspec.json.encode(saved_calibration(core)))
            beside.replace(self.path)
            self.written += 1
        except OSError:
            self._at = now + 60 * EVERY  # the disk is full: the journal has said so


def learned_object(saved: SavedCalibration, namespace: str) -> dict[str, Any]:
    """The ConfigMap with what was learned elsewhere, for the namespace in which Kant runs."""
    packed = gzip.compress(msgspec.json.encode(saved), mtime=0)
    return config_map({"name": LEARNED, "namespace": namespace}, KEY, packed)


async def learned_elsewhere(client: ApiClient, namespace: str) -> SavedCalibration | None:
    """What the ConfigMap says; None where there is none that can be used."""
    try:
        found = await client.get(f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{LEARNED}", ConfigMap)
        return msgspec.json.decode(found.unpacked(KEY), type=SavedCalibration)
    except (ApiError, OSError, EOFError, ValueError, msgspec.MsgspecError):
        return None


async def notes_on_lease(client: ApiClient, namespace: str) -> dict[str, str]:
    """The annotations of the Lease; none where there is no Lease, or it may not be read."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases/kant"
    try:
        lease = await client.get(path, PartialMetadata)
    except (ApiError, InputError):
        return {}
    return lease.metadata.annotations or {}


async def use_on_lease(client: ApiClient, namespace: str) -> SavedUse | None:
    """What queues have used, as the last leader told it; None where nobody did."""
    return read_note((await notes_on_lease(client, namespace)).get(USED, ""))


async def calibration_of_leader(client: ApiClient, namespace: str, profile: Profile) -> Calibration | None:
    """What the leader's Lease says under this profile; None where nobody says anything that can be used.

    A profile that learns run times learns them in the leader alone: its plans are others than ours.
    """
    if profile.estimates.learns:
        return None
    try:
        noted = msgspec.json.decode((await notes_on_lease(client, namespace)).get(ANNOTATION, ""), type=CalibrationNote)
    except msgspec.DecodeError:
        return None
    return noted.calibration if noted.profile == digest(profile) else None
