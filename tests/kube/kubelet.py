"""What real clusters do with pods and a bare API server does not: run, finish and end them, and make new ones."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import aiohttp
from tests.kube.api import AT_ONCE, STRATEGIC, Api, RefusedError, collection
from tests.kube.objects import GANG, RUN_SECONDS, Object

OVERTAKEN = (404, 409, 422)
"""Refusals that mean that the pod is gone, or another by now."""


class Follower:
    """A task that follows pods, and tasks of its own for what it does about them. Errors come out at the end."""

    query: dict[str, str]

    def __init__(self, api: Api) -> None:
        self.api = api
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []

    async def __aenter__(self) -> Any:
        self.listed = asyncio.Event()
        self._main = asyncio.create_task(self._follow())
        await first_of(self.listed, self._main)
        return self

    async def __aexit__(self, *_: object) -> None:
        ending = [self._main, *self._tasks]
        for task in ending:
            task.cancel()
        results = await asyncio.gather(*ending, return_exceptions=True)
        failures = [*self._errors, *(r for r in results if isinstance(r, Exception))]
        if failures:
            raise failures[0]

    async def _follow(self) -> None:
        async for kind, thing in self.api.follow("pods", **self.query):
            if kind == "LISTED":
                self.see_list(thing["items"])
                self.listed.set()
            else:
                self.see(kind, thing)

    def see_list(self, pods: list[Object]) -> None:
        for pod in pods:
            self.see("ADDED", pod)

    def see(self, kind: str, pod: Object) -> None:
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    async def ask(self, request: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """One request, again until the server answers. False where the pod is gone, or another by now."""
        async with self._gate:
            while True:
                try:
                    await request()
                    return True
                except RefusedError as refused:
                    if refused.code in OVERTAKEN:
                        return False
                    if refused.code < 500 and refused.code != 429:
                        raise
                except aiohttp.ClientError:
                    pass  # an outage
                await asyncio.sleep(0.2)


class FakeKubelet(Follower):
    """The kubelets of all nodes: bound pods run after `start_s`, for the time that RUN_SECONDS says; a pod that is
    deleted gracefully goes `stop_s` later, or when `stops` is set. Nodes in `silent` do nothing any more, as if their
    machine were off."""

    def __init__(
        self, api: Api, *, start_s: float = 0.0, stop_s: float = 0.05, stops: asyncio.Event | None = None
    ) -> None:
        super().__init__(api)
        self.stops = stops
        self.query = {"fieldSelector": "spec.nodeName!="}
        self.start_s, self.stop_s = start_s, stop_s
        self.silent: set[str] = set()
        self._begun: set[tuple[str, str]] = set()

    def see(self, kind: str, pod: Object) -> None:
        meta, phase = pod["metadata"], pod["status"].get("phase", "Pending")
        if kind == "DELETED":
            self._begun -= {(meta["uid"], "stop"), (meta["uid"], "start"), (meta["uid"], "finish")}
        elif pod["spec"]["nodeName"] in self.silent:
            return
        elif meta.get("deletionTimestamp"):
            self._once(pod, "stop")
        elif phase == "Pending":
            self._once(pod, "start")
        elif phase == "Running" and RUN_SECONDS in meta.get("annotations", {}):
            self._once(pod, "finish")

    def _once(self, pod: Object, what: str) -> None:
        mark = pod["metadata"]["uid"], what
        if mark not in self._begun:
            self._begun.add(mark)
            self.spawn(self._carry_out(pod, what, mark))

    async def _carry_out(self, pod: Object, what: str, mark: tuple[str, str]) -> None:
        meta, node = pod["metadata"], pod["spec"]["nodeName"]
        path = f"{collection('pods', meta['namespace'])}/{meta['name']}"
        run_s = float(meta.get("annotations", {}).get(RUN_SECONDS, 0))
        if what == "stop" and self.stops is not None:
            await self.stops.wait()
        else:
            await asyncio.sleep({"start": self.start_s, "stop": self.stop_s, "finish": run_s}[what])
        if node in self.silent:
            self._begun.discard(mark)
        elif what == "stop":
            await self.ask(lambda: self.api.delete(path, grace_s=0, uid=meta["uid"]))
        else:
            change = _status(meta["uid"], what == "start")
            await self.ask(lambda: self.api.patch(f"{path}/status", change, kind=STRATEGIC))


def _status(uid: str, runs: bool) -> Object:
    conditions = [{"type": name, "status": str(runs)} for name in ("Initialized", "Ready", "ContainersReady")]
    status = {"phase": "Running" if runs else "Succeeded", "conditions": conditions}
    return {"metadata": {"uid": uid}, "status": status}


class ReplicaController(Follower):
    """Creates pods and, as a Job's controller would, creates each anew when it was deleted or has failed.

    With `new_names` a new pod is NAME-1, NAME-2, …, else it has the name of the old one.
    """

    def __init__(self, api: Api, *, new_names: bool = False, delay_s: float = 0.0) -> None:
        super().__init__(api)
        self.query = {"labelSelector": GANG}
        self.new_names, self.delay_s = new_names, delay_s
        self.recreated = 0
        self._wanted: dict[tuple[str, str], tuple[Object, int]] = {}  # template and generation, by the pod's name

    async def run(self, things: Iterable[Object]) -> None:
        """Create pods of gangs, with what comes before them, and keep them alive from now on."""
        given = list(things)
        for thing in given:
            if thing["kind"] == "Pod":
                assert GANG in thing["metadata"]["labels"], "expected pods of make_gang"
                self._wanted[_name(thing)] = thing, 0
        await self.api.create_all(given)

    def forget(self, gang: str) -> None:
        """Create no pod of a gang any more."""
        self._wanted = {n: w for n, w in self._wanted.items() if w[0]["metadata"]["labels"][GANG] != gang}

    def see_list(self, pods: list[Object]) -> None:
        """After a gap: what should be there and is not was deleted in between."""
        if self.listed.is_set():
            there = {_name(pod) for pod in pods}
            for name in [name for name in self._wanted if name not in there]:
                self._replace(name)
        super().see_list(pods)

    def see(self, kind: str, pod: Object) -> None:
        name = _name(pod)
        if name not in self._wanted:
            return
        if pod["status"].get("phase") == "Succeeded":
            del self._wanted[name]
        elif kind == "DELETED":
            self._replace(name)
        elif pod["status"].get("phase") == "Failed":
            self.spawn(self._remove(name, pod["metadata"]["uid"]))

    def _replace(self, name: tuple[str, str]) -> None:
        template, made = self._wanted.pop(name)
        pod = copy.deepcopy(template)
        if self.new_names:
            pod["metadata"]["name"] = f"{template['metadata']['name']}-{made + 1}"
        self._wanted[_name(pod)] = template, made + 1
        self.spawn(self._create(pod))

    async def _create(self, pod: Object) -> None:
        await asyncio.sleep(self.delay_s)
        self.recreated += await self.ask(lambda: self.api.create(pod))

    async def _remove(self, name: tuple[str, str], uid: str) -> None:
        path = f"{collection('pods', name[0])}/{name[1]}"
        await self.ask(lambda: self.api.delete(path, grace_s=0, uid=uid))


async def first_of(event: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    """Wait for an event that tasks will set; raises what a task failed of before that."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    for task in tasks:
        if task.done():
            task.result()


def _name(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]
