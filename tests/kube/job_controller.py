"""What the Job controller and the garbage collector do, as far as tests need it: indexed Jobs and their pods."""

from __future__ import annotations

import asyncio
import copy
import secrets
from datetime import UTC, datetime
from typing import Any

from tests.kube.api import Api, RefusedError, collection
from tests.kube.objects import Object

from kant.kube.translate.groups import INDEX
from kant.kube.user.job_objects import OF_JOB

JOBS = "/apis/batch/v1/jobs"
OVERTAKEN = (404, 409)


class JobController:
    """Looks ten times a second: makes the pods of each Job, makes failed and deleted ones anew, counts, and ends it.

    A Job that is suspended or deleted loses its pods; one that is deleted in the foreground goes when they have gone.
    """

    def __init__(self, api: Api) -> None:
        self.api = api

    async def __aenter__(self) -> JobController:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        failed = self._task.done()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if failed:
            self._task.result()

    async def _run(self) -> None:
        while True:
            for job in await self.api.list(JOBS):
                try:
                    await self._look(job)
                except RefusedError as refused:
                    if refused.code not in OVERTAKEN:
                        raise
            await asyncio.sleep(0.1)

    async def _look(self, job: Object) -> None:
        meta, spec, status = job["metadata"], job["spec"], job.get("status", {})
        path = f"{collection(JOBS, meta['namespace'])}/{meta['name']}"
        listed = await self.api.list("pods", meta["namespace"], labelSelector=f"{OF_JOB}={meta['name']}")
        pods = [pod for pod in listed if pod["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]]
        if meta.get("deletionTimestamp"):
            await self._remove(pods)
            if not pods:
                await self._collect(meta)
                await self.api.patch(path, {"metadata": {"finalizers": None}})
            return
        if any(one["type"] in ("Complete", "Failed") for one in status.get("conditions", [])):
            return
        if spec.get("suspend"):
            await self._remove(pods)
            return
        done = {_index(pod) for pod in pods if pod["status"].get("phase") == "Succeeded"}
        bad = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
        live = {_index(pod) for pod in pods if pod["status"].get("phase") in ("Pending", "Running")}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        news: Object = {"startTime": status.get("startTime", now), "succeeded": len(done), "failed": len(bad)}
        if len(done) == spec["completions"]:
            ends = [_condition(kind, now) for kind in ("SuccessCriteriaMet", "Complete")]
            indexes = ",".join(str(index) for index in sorted(done))
            news |= {"completionTime": now, "completedIndexes": _ranges(indexes), "conditions": ends}
            news |= {"active": 0, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
        elif len(bad) > spec.get("backoffLimit", 1 << 30):
            ends = [_condition(kind, now, "BackoffLimitExceeded") for kind in ("FailureTarget", "Failed")]
            await self._remove([pod for pod in pods if _index(pod) in live])
            news |= {"conditions": ends, "active": 0, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
        else:
            for index in range(spec["completions"]):
                if index not in done | live:
                    await self.api.create(_pod(job, index))
            news |= {"active": spec["completions"] - len(done)}
        if any(status.get(key) != value for key, value in news.items()):
            await self.api.patch(f"{path}/status", {"status": news})

    async def _collect(self, owner: Object) -> None:
        """The Services of a Job go with it."""
        for service in await self.api.list("services", owner["namespace"]):
            meta = service["metadata"]
            if any(one["uid"] == owner["uid"] for one in meta.get("ownerReferences", [])):
                await self.api.delete(f"{collection('services', meta['namespace'])}/{meta['name']}")

    async def _remove(self, pods: list[Object]) -> None:
        for pod in pods:
            meta = pod["metadata"]
            if not meta.get("deletionTimestamp"):
                grace = 0 if not pod["spec"].get("nodeName") else 1
                await self.api.delete(f"{collection('pods', meta['namespace'])}/{meta['name']}", grace_s=grace)


def _pod(job: Object, index: int) -> Object:
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    own: dict[str, Any] = template.get("metadata", {})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-{index}-{secrets.token_hex(3)}",
            "namespace": meta["namespace"],
            "labels": own.get("labels", {}) | {INDEX: str(index)},
            "annotations": own.get("annotations", {}) | {INDEX: str(index)},
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def _ranges(indexes: str) -> str:
    """As the API wants it: 0-2 for 0,1,2."""
    numbers = [int(each) for each in indexes.split(",")]
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 2 else indexes


def _condition(kind: str, now: str, reason: str = "CompletionsReached") -> Object:
    return {"type": kind, "status": "True", "reason": reason, "message": reason, "lastTransitionTime": now}
