"""Pods that only ask when they would start: a gate of Kant holds them, their condition gets the answer, none is bound.

Any user who may create pods in a namespace may ask, and sees no other job. The answers are computed one after another,
for each namespace in turn and with pauses, so that no user's questions delay decisions or other users' answers for
long.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from kant.kube.act.gates import asks
from kant.kube.notify.notifier import Notifier
from kant.kube.objects.names import TEST_ONLY, TEST_PODS
from kant.kube.objects.views import Pod
from kant.kube.reconcile.translation import Translation
from kant.live.core import Core
from kant.live.questions import TRIAL, trial_answer
from kant.live.start_forecasts import Forecaster
from kant.model.errors import InputError
from kant.model.job import Job
from kant.model.units import SECOND

MOST_PODS = 10_000
AGAIN = 1.0
"""Seconds between two checks whether the state is complete."""

REST = 0.2
"""Minimum seconds between two answers. If the last answer took longer, the pause is as long as it took."""


class Trials:
    """The pods that ask one leader when they would start. `run` answers them one by one."""

    def __init__(
        self, translation: Translation, notifier: Notifier, forecaster: Forecaster, core: Callable[[], Core | None]
    ) -> None:
        self.translation = translation
        self.notifier = notifier
        self.forecaster = forecaster
        self.core = core
        self._waiting: dict[str, dict[str, None]] = {}  # uids by namespace, in round-robin order
        self._came = asyncio.Event()

    def look(self, pods: Mapping[str, Pod]) -> None:
        """Queue the new or changed pods (by uid) that ask and have not been answered."""
        for uid, pod in pods.items():
            answered = any(one.reason == TEST_ONLY for one in pod.status.conditions)
            if asks(pod) and self.translation.is_ours(pod) and not answered:
                self._waiting.setdefault(pod.metadata.namespace, {})[uid] = None
                self._came.set()

    async def run(self) -> None:
        """Answer questions forever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                core = self.core()
                if core is None or not core.is_settled:
                    await asyncio.sleep(AGAIN)
                    continue
                began = loop.time()
                pod = self.translation.mirror.pods.get(self._next())
                if pod is not None:
                    self.notifier.answers(pod.metadata.uid, await self._answer(core, pod), TEST_ONLY)
                await asyncio.sleep(max(REST, loop.time() - began))

    def _next(self) -> str:
        """Remove and return the uid of the next pod: namespaces take turns."""
        namespace, pods = next(iter(self._waiting.items()))
        del self._waiting[namespace]
        uid = next(iter(pods))
        del pods[uid]
        if pods:
            self._waiting[namespace] = pods
        return uid

    async def _answer(self, core: Core, pod: Pod) -> str:
        try:
            job = self._job(core, pod)
            found = await trial_answer(core, self.forecaster, job)
        except InputError as error:
            return str(error)
        return trial_sentence(found)

    def _job(self, core: Core, pod: Pod) -> Job:
        """Return a job of as many pods like this one as its annotation asks for, submitted now. Raises InputError."""
        notes = pod.metadata.annotations or {}
        text = notes.get(TEST_PODS, "1")
        if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= MOST_PODS:
            raise InputError(f"annotation {TEST_PODS}", f"a number of pods from 1 to {MOST_PODS:,}", text)
        count = int(text)
        bare = replace(pod, spec=replace(pod.spec, scheduling_gates=()))
        job = self.translation.job(core, None, [bare]).job
        (group,) = job.groups
        return replace(job, id=TRIAL, submit=core.now, groups=(replace(group, count=count),))


def trial_sentence(found: dict[str, Any]) -> str:
    """Return an answer of `trial_answer` as text: P50 and P90 of the start, their basis, and what blocks the start."""
    (row,) = found["jobs"]
    early, late = (_when(row["expected_us"], name, found["zero_us"]) for name in ("p50", "p90"))
    rests_on = row["rests_on"]["sentence"] if row["rests_on"] is not None else ""
    place = f"number {row['place']:,} of {row['of']:,} waiting jobs"
    return "; ".join(part for part in (f"P50 {early}, P90 {late}", rests_on, place, row["sentence"]) if part)


def _when(expected: dict[str, Any], name: str, zero: int) -> str:
    if expected[name] is None:
        return "never" if expected["never"] else "not known"
    return datetime.fromtimestamp((expected[name] + zero) / SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
