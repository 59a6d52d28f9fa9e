"""The job store: an SQLite file in WAL mode. Every write is a single transaction, which is on disk when it returns."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from kant.local.record import OVER, JobPhase, JobRecord
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.service.roles import Caller
from kant.service.usage import usage_in

APPLICATION = 0x4B414E54  # "KANT"
LIVE = tuple(str(phase) for phase in JobPhase if phase not in OVER)
COLUMNS = (
    "seq", "id", "array", "array_index", "phase", "name", "queue", "user", "priority", "gpus", "submitted", "started",
    "ended", "attempt", "failures", "code", "signal", "reason", "stopping", "place", "waits", "waited", "rss_kib",
    "digest",
)  # fmt: skip
SHOWN = COLUMNS[:18]
_MOVES = (*COLUMNS[4:7], "priority", *COLUMNS[11:])
_UPSERT = (
    f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT (seq) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _MOVES)
)


AUDIT = ("seq", "time", "who", "user", "role", "verb", "what", "refused")
_NOTE = f"INSERT INTO audit ({', '.join(AUDIT[1:])}) VALUES ({', '.join('?' * len(AUDIT[1:]))})"
MOST_NOTES = 10_000
"""Maximum number of audit entries kept in memory until they can be written. If there are more, the oldest are lost."""


class StoreFullError(OSError):
    """The store cannot be written now, for example because the disk is full."""


def migrations() -> list[tuple[int, str]]:
    """Return the numbered migrations, in order."""
    folder = resources.files("kant.service") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name.partition("-")[0]), (folder / name).read_text(encoding="utf-8")) for name in names]


def damaged(path: Path, error: Exception) -> InputError:
    """Return an error which says that the store is damaged, and what to do about it."""
    salvage = f"`sqlite3 {path} .recover` recovers its jobs; to start without them, move the file away"
    return InputError(str(path), f"an intact store ({error}); the file is unchanged: {salvage}")


def digest_of(body: bytes) -> bytes:
    """Return the key under which a submission is stored."""
    return hashlib.blake2b(body, digest_size=16).digest()


class JobStore:
    """All jobs of one machine, ended or not. Raises InputError for a file that is not a valid store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[bytes] = set()
        self._notes: list[tuple[int, str, str, str, str, str, str]] = []
        self._check_pages()
        with self._sound():
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA busy_timeout = 5000")
            self._open()

    def _check_pages(self) -> None:
        """Raise InputError if a page of the file is damaged. The check is read-only, also when it closes the file."""
        if not self.path.exists() or not self.path.stat().st_size:
            return
        with self._sound(), closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            if db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION:
                found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise sqlite3.DatabaseError(" ".join(str(found).split()))

    def _open(self) -> None:
        application, version = self._pragma("application_id"), self._pragma("user_version")
        fresh = version == 0 and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone()
        if not fresh and application != APPLICATION:
            raise InputError(str(self.path), "a store of Kant; this is another database and stays unchanged")
        known = migrations()
        if version > known[-1][0]:
            raise InputError(
                str(self.path), f"a store of version {known[-1][0]} or older; use the newer Kant that wrote it", version
            )
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        for number, text in known:
            if number > version:
                self._db.executescript(
                    f"BEGIN IMMEDIATE; {text}; PRAGMA application_id = {APPLICATION}; "
                    f"PRAGMA user_version = {number}; COMMIT;"
                )

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    @contextmanager
    def _sound(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise InputError(str(self.path), f"a store that can be read and written ({error})") from None
        except (sqlite3.DatabaseError, msgspec.MsgspecError, UnicodeError, TypeError, ValueError) as error:
            raise damaged(self.path, error) from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # --- writing ----------------------------------------------------------------------------------------------

    def write(self, records: list[JobRecord]) -> None:
        """Write the current records. Raises StoreFullError, and writes no record, if the disk has no room for them."""
        rows, bodies = [], {}
        for record in records:
            if record.digest not in self._known:
                bodies[record.digest] = msgspec.json.encode(record.submission)
            rows.append(_row(record))
        notes = self._notes
        with self._transaction():
            self._db.executemany(_NOTE, notes)
            self._db.executemany("INSERT OR IGNORE INTO submissions VALUES (?, ?)", bodies.items())
            self._db.executemany(_UPSERT, rows)
        self._notes = []
        self._known |= bodies.keys()
        if len(self._known) > 10_000:
            self._known.clear()

    def note(self, time: int, who: Caller, verb: str, what: str, refused: str = "") -> None:
        """Record who did what, or why the action was refused. The entry is written to disk with the next change."""
        self._notes.append((time, str(who), who.user, str(who.role), verb, what, refused))
        del self._notes[:-MOST_NOTES]

    def prune(self, names: Sequence[str]) -> None:
        """Delete ended jobs, and submissions that no other job uses. Raises StoreFullError, and then deletes
        nothing."""
        marks = ", ".join("?" * len(names))
        with self._transaction():
            digests = self._db.execute(f"SELECT DISTINCT digest FROM jobs WHERE id IN ({marks})", names).fetchall()
            self._db.execute(f"DELETE FROM jobs WHERE id IN ({marks})", names)
            self._db.executemany(
                "DELETE FROM submissions WHERE digest = ?1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE digest = ?1)",
                digests,
            )
        self._known.difference_update(digest for (digest,) in digests)

    def prune_audit(self, before: int, most: int) -> int:
        """Delete audit entries before a time: at most `most` rows, and never the last. Raises StoreFullError."""
        last = self._db.execute("SELECT max(seq) FROM audit").fetchone()[0] or 0
        rows = self._db.execute("SELECT seq, time FROM audit WHERE seq < ? ORDER BY seq LIMIT ?", (last, most))
        old = list(itertools.takewhile(lambda row: row[1] < before, rows.fetchall()))
        if old:
            with self._transaction():
                self._db.execute("DELETE FROM audit WHERE seq <= ?", (old[-1][0],))
        return len(old)

    def keep(self, key: str, value: bytes) -> None:
        """Store a value under a key. Raises StoreFullError."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Run the block in one transaction: all of its writes are kept, or none. Raises StoreFullError."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreFullError(f"{self.path}: {error}") from None
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._db.in_transaction:
            yield
        else:
            with self.whole():
                yield

    def copy_to(self, path: Path) -> None:
        """Copy the store to a new file, as it is at one moment, even during writes."""
        with self._sound():
            self._db.execute("VACUUM INTO ?", (str(path),))

    # --- reading ----------------------------------------------------------------------------------------------

    def kept(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def last(self) -> tuple[int, int]:
        """Return the last `seq` (number of a job) that was assigned, and the latest time that was stored."""
        with self._sound():
            seq = self._db.execute("SELECT max(seq) FROM jobs").fetchone()[0] or 0
            times = self._db.execute(
                "SELECT max(submitted), max(started), max(ended) FROM (SELECT * FROM jobs ORDER BY seq DESC LIMIT 1000)"
            ).fetchone()
            return seq, max([0, *(time for time in times if time is not None)])

    def live(self) -> list[JobRecord]:
        """Return the jobs that have not ended, in order of submission."""
        with self._sound():
            marks = ", ".join("?" * len(LIVE))
            rows = self._db.execute(
                f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE phase IN ({marks}) ORDER BY seq", LIVE
            )
            return self._with_submissions(rows.fetchall())

    def _with_submissions(self, rows: Sequence[Sequence[Any]]) -> list[JobRecord]:
        submissions = {digest: self._submission(digest) for digest in {row[-1] for row in rows}}
        return [_record(row, submissions[row[-1]]) for row in rows]

    def _submission(self, digest: bytes) -> Submission:
        row = self._db.execute("SELECT body FROM submissions WHERE digest = ?", (digest,)).fetchone()
        return msgspec.json.decode(row[0], type=Submission)

    def record(self, job: str) -> JobRecord | None:
        """Return a job, ended or not; None if it is unknown. Raises InputError if it cannot be read."""
        with self._sound():
            row = self._db.execute(f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE id = ?", (job,)).fetchone()
            return None if row is None else _record(row, self._submission(row[-1]))

    def every(self, after: int, most: int) -> list[JobRecord]:
        """Return at most `most` jobs with a `seq` above `after`, ended or not, in order of submission."""
        with self._sound():
            rows = self._db.execute(
                f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE seq > ? ORDER BY seq LIMIT ?", (after, most)
            )
            return self._with_submissions(rows.fetchall())

    def finished(self, most: int) -> list[JobRecord]:
        """Return the latest finished jobs, at most `most`, in order of submission."""
        with self._sound():
            rows = self._db.execute(
                f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE phase = ? ORDER BY seq DESC LIMIT ?",
                (str(JobPhase.FINISHED), most),
            ).fetchall()
            return self._with_submissions(rows[::-1])

    def phase_of(self, job: str) -> JobPhase | None:
        """Return the phase of any job, ended or not; None if unknown."""
        row = self._db.execute("SELECT phase FROM jobs WHERE id = ?", (job,)).fetchone()
        return None if row is None else JobPhase(row[0])

    def ended_before(self, before: int, at: tuple[int, int], most: int) -> list[tuple[int, int, str]]:
        """Return (ended, seq, id) of at most `most` jobs that ended before a time, sorted, beginning after the (ended,
        seq) `at`. The job with the last `seq` is never included.
        """
        found = self._db.execute(
            f"SELECT ended, seq, id FROM jobs WHERE ended >= 0 AND ended < ? AND (ended, seq) > (?, ?) "
            f"AND phase NOT IN ({', '.join('?' * len(LIVE))}) AND seq < (SELECT max(seq) FROM jobs) "
            "ORDER BY ended, seq LIMIT ?",
            (before, *at, *LIVE, most),
        )
        return found.fetchall()

    def outcomes(self, names: Sequence[str]) -> dict[str, tuple[str, int | None, int | None, str]]:
        """Return the phase, the exit code, the signal and the reason of each of these jobs."""
        found: dict[str, tuple[str, int | None, int | None, str]] = {}
        for at in range(0, len(names), 500):
            part = names[at : at + 500]
            rows = self._db.execute(
                f"SELECT id, phase, code, signal, reason FROM jobs WHERE id IN ({', '.join('?' * len(part))})", part
            )
            found |= {row[0]: (row[1], row[2], row[3], row[4]) for row in rows}
        return found

    def usage(self, by: Sequence[str], since: int, until: int, where: dict[str, str]) -> list[dict[str, Any]]:
        """Return the total usage of jobs that ended in a period, grouped `by` one or more columns such as user, queue
        and day (local time). `where` selects jobs, by column and value. GPU time is that of a job's last run.
        """
        return usage_in(self._db, by, since, until, where)

    def id_of(self, seq: int) -> str | None:
        """Return the id of the job with this number."""
        row = self._db.execute("SELECT id FROM jobs WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else str(row[0])

    def elements(self, array: int) -> list[str]:
        """Return the ids of an array's jobs."""
        return [row[0] for row in self._db.execute("SELECT id FROM jobs WHERE array = ? ORDER BY seq", (array,))]

    def page(
        self,
        *,
        phases: Sequence[str] = (),
        queue: str = "",
        user: str = "",
        name: str = "",
        own: tuple[str, Iterable[str]] | None = None,
        before: int | None = None,
        most: int = 100,
    ) -> list[dict[str, Any]]:
        """Return at most `most` jobs, the latest first, with a `seq` below `before` (None: any).

        In `name`, `*` and `?` are wildcards. `own` is a user and some queues: only jobs of this user or in these queues
        are returned. The cost depends only on the size of the page, since each phase is read by its own index.
        """
        parts, values = [], []
        scopes: list[list[tuple[str, Any]]] = [[]]
        if own is not None:
            scopes = [[("user = ?", own[0])], *([("queue = ?", name), ("user != ?", own[0])] for name in own[1])]
        for phase, scope in itertools.product(phases or ("",), scopes):
            wheres = [
                ("phase = ?", phase), ("queue = ?", queue), ("user = ?", user), ("name GLOB ?", name),
                ("seq < ?", before), *scope,
            ]  # fmt: skip
            used = [(text, value) for text, value in wheres if value is not None and value != ""]
            where = f"WHERE {' AND '.join(text for text, _ in used)} " if used else ""
            index = "INDEXED BY jobs_by_phase " if phase and not (queue or user or scope) else ""
            parts.append(f"SELECT * FROM (SELECT {', '.join(SHOWN)} FROM jobs {index}{where}ORDER BY seq DESC LIMIT ?)")
            values += [value for _, value in used] + [most]
        found = self._db.execute(" UNION ALL ".join(parts) + " ORDER BY seq DESC LIMIT ?", [*values, most])
        return [dict(zip(SHOWN, row, strict=True)) for row in found]

    def audited(
        self, *, user: str = "", refused: bool = False, before: int | None = None, most: int = 100
    ) -> list[dict[str, Any]]:
        """Return audit entries, the latest first; with `refused`, only those of refused orders."""
        parts: list[tuple[str, Any]] = [("seq < ?", before if before is not None else 1 << 62)]
        parts += [("user = ?", user)] if user else []
        parts += [("refused != ?", "")] if refused else []
        where = " AND ".join(text for text, _ in parts)
        found = self._db.execute(
            f"SELECT {', '.join(AUDIT)} FROM audit WHERE {where} ORDER BY seq DESC LIMIT ?",
            [*(value for _, value in parts), most],
        )
        return [dict(zip(AUDIT, row, strict=True)) for row in found]


def _row(record: JobRecord) -> tuple[Any, ...]:
    submission = record.submission
    return (
        record.seq, record.id, record.array, record.index, str(record.phase), submission.name, submission.queue,
        record.user, submission.priority, submission.gpus, record.submitted, record.started, record.ended,
        record.attempt, record.failures, record.code, record.signal, record.reason, record.stopping,
        msgspec.json.encode(record.place),
        msgspec.json.encode((record.after, record.after_ok, record.after_not_ok, record.after_started)),
        msgspec.json.encode(record.waited) if record.waited else b"", record.rss_kib, record.digest,
    )  # fmt: skip


def shown(record: JobRecord) -> dict[str, Any]:
    """Return a record as the API shows it."""
    return dict(zip(SHOWN, _row(record), strict=False))


def _record(row: Sequence[Any], submission: Submission) -> JobRecord:
    values = dict(zip(COLUMNS, row, strict=True))
    waits = msgspec.json.decode(values["waits"], type=tuple[tuple[str, ...], ...])
    after, after_ok, after_not_ok, after_started = (*waits, (), ())[:4]  # older stores have fewer of these
    return JobRecord(
        values["seq"], values["id"], submission, values["digest"],
        values["user"], values["submitted"], JobPhase(values["phase"]), values["array"], values["array_index"], after,
        after_ok, after_not_ok, after_started, values["started"], values["ended"], values["attempt"],
        values["failures"], values["code"], values["signal"], values["reason"], values["stopping"],
        msgspec.json.decode(values["place"]),
        msgspec.json.decode(values["waited"] or b"{}"), values["rss_kib"],
    )  # fmt: skip
