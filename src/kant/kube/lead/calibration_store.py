"""What a leader has learned about expected starts: saved with its journals, and published on its Lease.

The file is for a process that restarts on the same disk. A leader without the file starts from a ConfigMap, if there is
one: `kant export` makes it from what Kant has learned on a single machine. The few numbers needed for answers are in an
annotation of the Lease, which is written every few seconds anyway, so that `kubectl kant` answers as the leader does.
They are valid only under the profile under which they were learned.
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
from kant.kube.objects.names import lease_path
from kant.kube.objects.views import PartialMetadata
from kant.live.core import Core
from kant.live.learned import SavedCalibration, digest, learned_version, restore_calibration, saved_calibration
from kant.live.queue_use import SavedUse, note_of, read_note, use_of
from kant.model.errors import InputError
from kant.scheduler.profile import Profile

FILE = "learned.json"
LEARNED = "kant-learned"
"""Name of the ConfigMap."""
KEY = "learned.json.gz"
ANNOTATION = "scheduling.kant.dev/expected-starts"
USED = "scheduling.kant.dev/used-by-queues"
"""The annotation with the resource use of queues, for a leader on another machine (`kant.live.queue_use`)."""
EVERY = 60.0
"""Minimum seconds between two writes of the file."""


class CalibrationNote(Struct):
    """The content of the annotation on the Lease, as JSON. `profile` is the digest of the profile."""

    profile: str
    calibration: Calibration


def note(core: Core) -> str:
    """Return the annotation with what the core has learned, as JSON; "" while it has learned nothing."""
    calibration = core.answers.calibration()
    if not calibration.corrections:
        return ""
    return msgspec.json.encode(CalibrationNote(digest(core.profile), calibration)).decode()


class CalibrationStore:
    """A file beside the journals, and the annotation on the Lease; both are rewritten after something was learned."""

    def __init__(self, folder: Path | None) -> None:
        self.path = folder / FILE if folder is not None else None
        self.note = ""
        self.used = ""
        self.written = 0  # how often the file was written
        self._elsewhere: SavedCalibration | None = None  # from the ConfigMap: what another installation learned
        self._last_use: SavedUse | None = None  # resource use of queues, as the last leader published it
        self._noted: tuple[int, int, int] = (0, 0, 0)
        self._kept: tuple[int, int, int] = (0, 0, 0)
        self._at = time.monotonic()

    def read(self) -> SavedCalibration | None:
        """Return the saved calibration; None if nothing can be read."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=SavedCalibration) if self.path is not None else None
        except (OSError, msgspec.DecodeError):
            return None

    async def look_elsewhere(self, client: ApiClient, namespace: str, shares: bool) -> None:
        """Read what another Kant installation has learned; with `shares`, also what queues have used."""
        self._elsewhere = await learned_elsewhere(client, namespace)
        if shares:
            self._last_use = await use_on_lease(client, namespace)

    def restore(self, core: Core) -> None:
        """Give the first core of this process what was learned, and what queues used, before the process started."""
        restore_calibration(core, self.read() or self._elsewhere, self._last_use)

    def put(self, core: Core, last: bool = False) -> None:
        """Update the annotation. Write the file if the last write is EVERY seconds ago; at once if this is the last."""
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
            self._at = now + 60 * EVERY  # probably the disk is full, which the journal reports: retry in an hour


def learned_object(saved: SavedCalibration, namespace: str) -> dict[str, Any]:
    """Return a ConfigMap with `saved`, for the namespace in which Kant runs."""
    packed = gzip.compress(msgspec.json.encode(saved), mtime=0)
    return config_map({"name": LEARNED, "namespace": namespace}, KEY, packed)


async def learned_elsewhere(client: ApiClient, namespace: str) -> SavedCalibration | None:
    """Return the calibration in the ConfigMap LEARNED; None if that is missing or unusable."""
    try:
        found = await client.get(f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{LEARNED}", ConfigMap)
        return msgspec.json.decode(found.unpacked(KEY), type=SavedCalibration)
    except (ApiError, OSError, EOFError, ValueError, msgspec.MsgspecError):
        return None


async def notes_on_lease(client: ApiClient, namespace: str) -> dict[str, str]:
    """Return the annotations of the Lease; {} if there is no Lease, or it may not be read."""
    try:
        lease = await client.get(lease_path(namespace), PartialMetadata)
    except (ApiError, InputError):
        return {}
    return lease.metadata.annotations or {}


async def use_on_lease(client: ApiClient, namespace: str) -> SavedUse | None:
    """Return the resource use of queues as the last leader published it; None if there is none."""
    return read_note((await notes_on_lease(client, namespace)).get(USED, ""))


async def calibration_of_leader(client: ApiClient, namespace: str, profile: Profile) -> Calibration | None:
    """Return the calibration on the leader's Lease; None if there is none for this profile.

    Also None under a profile that learns run times: only the leader knows the learned times, and plans with them.
    """
    if profile.estimates.learns:
        return None
    try:
        noted = msgspec.json.decode((await notes_on_lease(client, namespace)).get(ANNOTATION, ""), type=CalibrationNote)
    except msgspec.DecodeError:
        return None
    return noted.calibration if noted.profile == digest(profile) else None
