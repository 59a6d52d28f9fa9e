"""A copy of one kind of objects that follows the API server: a list, then watches, forever.

If a watch is read too slowly, the API server ends the stream without notice. So `sink` must be quick: it only records
changes, and other code handles them. After a watch ends, the next one resumes from the last resourceVersion seen, and
repeated changes are dropped. If the server no longer has that version (410), everything is listed again.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts, sections on watches, bookmarks, resource versions.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from kant.kube.connect.client import ApiClient, ApiError, ExpiredError
from kant.kube.connect.decoding import OnMalformed, decoder, who
from kant.kube.objects.views import Status
from kant.model.errors import InputError

T = TypeVar("T")
CHANGES = {"ADDED": "added", "MODIFIED": "modified", "DELETED": "deleted"}
WATCH = 300.0  # seconds of one watch, at random up to twice as many so that watches do not end together
SILENCE = 130.0  # seconds without a byte after which a watch is reopened: two bookmarks have not come
FIRST_WAIT, LONGEST_WAIT = 0.25, 30.0  # seconds between attempts: the first pause, which doubles up to the second
BURST = 256  # changes passed to `sink` before other tasks may run


class Event(msgspec.Struct, Generic[T], gc=False):
    """One line of a watch."""

    type: str
    object: T


@dataclass(eq=False)
class Reflector(Generic[T]):
    """Follows the objects at `path` as `view`.

    `sink(change, object)` is called in order with "added", "modified" or "deleted". `on_replace(objects)` is called
    after each list with all objects: objects missing from it are gone. `on_malformed(metadata, sentence)` is called for
    an object that cannot be decoded, which is then left out; `on_trouble(error)` for every error that causes a wait.
    With `once` nothing is watched. `fields` is a field selector. `later`, if given, imports the objects' type with the
    first object; until then `view` decodes empty lists and bookmarks. Lines for which `skips` is true are left out.
    """

    client: ApiClient
    path: str
    view: type[T]
    sink: Callable[[str, T], None]
    _: KW_ONLY
    on_replace: Callable[[list[T]], None]
    on_malformed: OnMalformed = lambda metadata, sentence: None
    on_trouble: Callable[[ApiError | InputError], None] = lambda error: None
    clock: Callable[[], float] = time.monotonic
    watch: float = WATCH
    silence: float = SILENCE
    limit: int = 500
    once: bool = False
    rng: random.Random = field(default_factory=random.Random)
    keep: Callable[[T], T] | None = None
    skips: Callable[[bytes], bool] | None = None
    fields: str = ""
    later: Callable[[], type[T]] | None = None
    lists: int = 0

    def __post_init__(self) -> None:
        self.synced = asyncio.Event()
        self._version = ""  # the last resourceVersion seen; empty: list again
        self._received_at = self.clock()
        self._wait = FIRST_WAIT

    def stale_for(self) -> float:
        """Return the seconds since the server last sent anything. Even a quiet watch gets a bookmark every minute."""
        return self.clock() - self._received_at

    def has_seen(self, version: str) -> bool:
        """Whether `sink` or `on_replace` has received all changes up to this resourceVersion."""
        return self._version.isdigit() and int(version) <= int(self._version)

    async def run(self) -> None:
        """Follow the objects until cancelled, or until a callback raises. With `once`, list them and return."""
        while True:
            try:
                if not self._version:
                    await self._list()
                if self.once:
                    return
                await self._read()
            except ExpiredError:
                self._version = ""
                await self._pause(None)
            except (ApiError, InputError) as error:
                self.on_trouble(error)
                await self._pause(getattr(error, "retry_after", None))

    async def _pause(self, asked: float | None) -> None:
        """Wait at least `asked` seconds, longer each time, with jitter, so that many clients do not return together."""
        await asyncio.sleep(max(asked or 0.0, self._wait * self.rng.uniform(0.5, 1.0)))
        self._wait = min(self._wait * 2, LONGEST_WAIT)

    async def _list(self) -> None:
        objects: list[T] = []
        version = ""
        pages = self.client.pages(self.path, self.view, self.limit, on_malformed=self.on_malformed, fields=self.fields)
        async for items, version in pages:  # noqa: B007 - each page names the version of the whole
            if items and self.later is not None:
                self._import_view(self.later)
                return await self._list()
            objects += items if self.keep is None else map(self.keep, items)
            self._received_at = self.clock()
        self.on_replace(objects)
        self._version = version
        self.lists += 1
        self.synced.set()

    def _import_view(self, later: Callable[[], type[T]]) -> None:
        self.view, self.later = later(), None

    async def _read(self) -> None:
        """Read one watch to its end, from the last resourceVersion seen."""
        seconds = self.watch * self.rng.uniform(1.0, 2.0)
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(seconds))),
        } | ({"fieldSelector": self.fields} if self.fields else {})
        opened = self.clock()
        rest = b""
        async for chunk in self.client.stream(self.path, params, min(self.silence, seconds + 10.0)):
            self._received_at = self.clock()
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()  # an incomplete line; if the stream ends here, it will be sent again
            for number, line in enumerate(lines, 1):
                if line:
                    self._take(line)
                if number % BURST == 0:
                    await asyncio.sleep(0)
        if self.clock() - opened < 1.0:  # a server or proxy that closes the connection at once
            await self._pause(None)

    def _take(self, line: bytes) -> None:
        if self.skips is not None and self.skips(line):
            return  # its version need not be noted
        try:
            event = decoder(Event[self.view]).decode(line)  # type: ignore[name-defined]
        except msgspec.DecodeError as error:
            self._take_odd(line, error)
            return
        self._wait = FIRST_WAIT if event.type != "ERROR" else self._wait
        change = CHANGES.get(event.type)
        if change is not None and self.later is not None:
            self._import_view(self.later)
            return self._take(line)
        version = event.object.metadata.resource_version
        if change is None:
            if event.type == "BOOKMARK":
                self._version = version or self._version
            elif event.type == "ERROR":  # a Status that could be decoded
                self._take_odd(line, None)
            return
        if self._new(version):
            self.sink(change, event.object)

    def _take_odd(self, line: bytes, error: msgspec.DecodeError | None) -> None:
        """Handle an error from the server, or an object that cannot be decoded as `view`."""
        try:
            event = decoder(Event[msgspec.Raw]).decode(line)
        except msgspec.DecodeError as broken:
            raise ApiError(0, "Malformed", f"{self.path}: a line of the watch cannot be decoded: {broken}") from broken
        if event.type == "ERROR":
            try:
                status = decoder(Status).decode(event.object)
            except msgspec.DecodeError:
                status = Status(0, "Malformed", "an error of the watch that cannot be decoded")
            kind = ExpiredError if status.code == 410 else ApiError
            raise kind(status.code, status.reason or "Unknown", status.message)
        metadata = who(event.object)
        if event.type not in CHANGES or not self._new(metadata.resource_version):
            return
        if event.type == "DELETED":  # gone, even if malformed
            blank: Any = self.view
            self.sink("deleted", blank(metadata=metadata))
        else:
            self.on_malformed(metadata, str(error))

    def _new(self, version: str) -> bool:
        """Whether a change at this version is new; the server sends changes in order."""
        if version.isdigit() and self._version.isdigit() and int(version) <= int(self._version):
            return False
        self._version = version or self._version
        return True
