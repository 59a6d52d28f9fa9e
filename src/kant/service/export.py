"""Export of a home (`kant export`), and its import into another home.

An export is a folder: `kant.db` (a copy of the store), `profile.toml`, `queues.toml`, the journals, and `export.json`,
which describes the export. It contains the environments of jobs, so only its owner can read it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import Struct

from kant.live.journal_walk import JournalWalk, read_journal
from kant.local.record import JobPhase, JobRecord
from kant.model.errors import InputError
from kant.model.event import QueuesChanged
from kant.model.tenant import QueueConfig
from kant.scheduler.profile import Profile, builtin_profile
from kant.service.daemon import locked
from kant.service.store import JobStore
from kant.service.waits_store import LEARNED
from kant.workload.tenants_text import text_of

HEADER, STORE, PROFILE, QUEUES, JOURNALS = "export.json", "kant.db", "profile.toml", "queues.toml", "journal"
MOVES = (JobPhase.HELD, JobPhase.BLOCKED, JobPhase.WAITING)
STAYS = (JobPhase.RUNNING, JobPhase.STOPPING)
PART = 1000


class ExportHeader(Struct, frozen=True):
    """The description of an export. `source` identifies it. `over` (ended), `waiting` and `running` count its jobs;
    `widest` is the number of GPUs of the largest node (-1: not known).
    """

    source: str
    host: str
    over: int
    waiting: int
    running: int
    queues: int
    widest: int
    is_live: bool
    version: int = 1


class Brought(Struct, frozen=True):
    """The result of an import: how many imported jobs had ended, how many waited, and the new ids of jobs now held."""

    over: int
    waiting: int
    held: list[str]
    ids: dict[str, str]
    """The new ids of waiting jobs, by their old ids. Jobs whose id did not change are left out."""


def export_home(home: Path, folder: Path) -> ExportHeader:
    """Export a home to a new folder. Raises InputError; a partial export is then removed.

    If Kant runs on the home, it continues: the export is a snapshot, and its waiting jobs then exist in both.
    """
    if not (home / STORE).exists():
        raise InputError(f"--home {home}", f"a home of Kant, with the file {STORE}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(str(folder), "a folder that is new or empty")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    try:
        return _export(home, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _export(home: Path, folder: Path) -> ExportHeader:
    is_live = True
    with ExitStack() as stack:
        with suppress(InputError):  # a Kant runs
            stack.enter_context(locked(home))
            is_live = False
        with closing(JobStore(home / STORE)) as store:
            store.copy_to(folder / STORE)
        journals = sorted((home / JOURNALS).glob("*.jsonl"))
        (folder / JOURNALS).mkdir()
        for path in journals:
            with suppress(FileNotFoundError):  # it was pruned meanwhile
                shutil.copyfile(path, folder / JOURNALS / path.name)
    profile, queues, widest = _settings(folder)
    (folder / PROFILE).write_text(profile.text, encoding="utf-8")
    if queues.queues:
        (folder / QUEUES).write_text(text_of(queues), encoding="utf-8")
    counts = {"over": 0, "waiting": 0, "running": 0}
    for record in jobs_of(folder):
        counts["over" if record.is_over else "waiting" if record.phase in MOVES else "running"] += 1
    source = hashlib.sha256((folder / STORE).read_bytes()).hexdigest()[:8]
    header = ExportHeader(
        source, socket.gethostname(), queues=len(queues.queues), widest=widest, is_live=is_live, **counts
    )
    (folder / HEADER).write_bytes(msgspec.json.encode(header))
    return header


def _settings(folder: Path) -> tuple[Profile, QueueConfig, int]:
    """Return the profile, the queues and the GPUs of the largest node, from the latest readable journal."""
    for path in sorted((folder / JOURNALS).glob("*.jsonl"), reverse=True):
        with suppress(InputError):  # its first line is not complete
            walk = read_journal(path)
            return walk.profile(), _queues(walk), max(node.gpus for node in walk.header.cluster.nodes)
    return builtin_profile("kant"), QueueConfig(), -1


def _queues(walk: JournalWalk) -> QueueConfig:
    queues = QueueConfig()
    with suppress(InputError):  # its last line is being written
        for line in walk:
            queues = line.queue_config if isinstance(line, QueuesChanged) else queues
    return queues


def read_export(folder: Path) -> ExportHeader:
    """Return the description of an export. Raises InputError if the folder is no export."""
    try:
        found = msgspec.json.decode((folder / HEADER).read_bytes(), type=ExportHeader)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(str(folder), f"a folder created by `kant export` ({error})") from None
    if found.version != 1:
        raise InputError(str(folder / HEADER), "version 1 (a newer version of Kant wrote it)", found.version)
    return found


def jobs_of(folder: Path) -> Iterator[JobRecord]:
    """Yield all jobs of an export in order of submission. Raises InputError."""
    with closing(JobStore(folder / STORE)) as store:
        yield from _every(store)


def _every(store: JobStore) -> Iterator[JobRecord]:
    after = -1
    while records := store.every(after, PART):
        yield from records
        after = records[-1].seq


def learned_of(folder: Path) -> bytes | None:
    """Return the saved calibration of start forecasts as encoded in the store; None if there is none."""
    with closing(JobStore(folder / STORE)) as store:
        return store.kept(LEARNED)


def import_home(folder: Path, home: Path) -> Brought:
    """Import an export into a home on which no Kant runs. Raises InputError, and then changes nothing.

    Jobs keep their ids if the home has never had jobs; otherwise they get the next free ids. Jobs that were running at
    the export continue where they are and are not imported. A job that depends on such a job is held.
    """
    header = read_export(folder)
    with locked(home), closing(JobStore(home / STORE)) as store:
        key = f"imported {header.source}"
        if store.kept(key) is not None:
            raise InputError(str(folder), "an export that this home has not yet imported")
        later, _ = store.last()
        brought = _merge(folder, store, later, key)
        if later == 0:
            with closing(JobStore(folder / STORE)) as old:
                learned = old.kept(LEARNED)
            if learned is not None:
                store.keep(LEARNED, learned)
            _bring_journals(folder, home)
        (home / STORE).chmod(0o600)
    return brought


def _merge(folder: Path, store: JobStore, later: int, key: str) -> Brought:
    counts, held, ids = {"over": 0, "waiting": 0}, list[str](), dict[str, str]()
    known, staying, part = set[str](), set[str](), list[JobRecord]()
    try:
        with store.whole():
            for old in jobs_of(folder):
                if old.phase in STAYS:
                    staying.add(old.id)
                    continue
                record = renumbered(old, later)
                known.add(old.id)
                if not record.is_over:
                    if staying & set(old.ahead):
                        record.phase = JobPhase.HELD
                        held.append(record.id)
                    if record.id != old.id:
                        ids[old.id] = record.id
                counts["over" if record.is_over else "waiting"] += 1
                part.append(record)
                if len(part) == PART:
                    store.write(part)
                    part = []
            store.write(part)
            store.keep(key, b"1")
    except OSError as error:
        raise InputError(str(store.path), f"a disk that can be written ({error})") from None
    return Brought(counts["over"], counts["waiting"], held, ids)


def renumbered(record: JobRecord, later: int) -> JobRecord:
    """Return the job with its own number and the numbers of its dependencies increased by `later`."""

    def moved(job: str) -> str:
        number, rest = re.fullmatch("([0-9]+)(.*)", job).groups()  # type: ignore[union-attr]
        return f"{int(number) + later}{rest}"

    return replace(
        record,
        seq=record.seq + later,
        id=moved(record.id),
        array=record.array + later if record.array >= 0 else -1,
        after=tuple(map(moved, record.after)),
        after_ok=tuple(map(moved, record.after_ok)),
        after_not_ok=tuple(map(moved, record.after_not_ok)),
        after_started=tuple(map(moved, record.after_started)),
    )


def _bring_journals(folder: Path, home: Path) -> None:
    (home / JOURNALS).mkdir(exist_ok=True, mode=0o700)
    for path in sorted((folder / JOURNALS).glob("*.jsonl")):
        if not (home / JOURNALS / path.name).exists():
            shutil.copyfile(path, home / JOURNALS / path.name)
