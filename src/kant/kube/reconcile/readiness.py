"""Readiness: what the claims, provisioned nodes and reservation of pods must satisfy before the pods become a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.refusals import MalformedError, NotYetError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.dynamic_resources import DynamicResources
from kant.kube.reconcile.node_filters import NodeFilters
from kant.kube.translate.provisioning import PROVISIONING, consumed_by
from kant.kube.translate.volumes import check_claims
from kant.live.core import Core
from kant.model.job import Job

if TYPE_CHECKING:
    from kant.kube.translate.reservations import BookedGpus


def check_claims_of(pods: Iterable[Pod], devices: DynamicResources, filters: NodeFilters) -> None:
    """Raise NotYetError if volumes or devices of these pods cannot be used yet, InputError if they never can."""
    for pod in pods:
        devices.check(pod)
        if pod.spec.volumes:
            check_claims(pod, filters.mirror.storage)
            if taken := filters.claim_taken(pod):
                raise NotYetError(taken)


def check_provisioning(pods: Iterable[Pod], mirror: Mirror) -> None:
    """Raise NotYetError if a ProvisioningRequest that these pods consume has not been provided."""
    for space, name in dict.fromkeys((pod.metadata.namespace, consumed_by(pod)) for pod in pods):
        if name:
            from kant.kube.translate.provided_nodes import why_not_provided  # few clusters have these

            if why := why_not_provided(name, mirror.named(PROVISIONING, space, name)):
                raise NotYetError(why)


def check_reservation(job: Job, booked: Iterable[BookedGpus], core: Core) -> None:
    """Raise NotYetError if the job's reservation has no nodes now, MalformedError if it excludes the job's queue."""
    known = next((one for one in booked if one.name == job.reservation and one.end > core.now), None)
    if known is None:
        raise NotYetError(f"its reservation {job.reservation} does not exist, or is over")
    if known.queues and job.queue not in known.queues:
        raise MalformedError(f"reservation {known.name} is only for jobs of {', '.join(known.queues)}")
    if known.name not in core.state.bookings:
        raise NotYetError(f"its reservation {known.name} has no GPUs yet")
