"""Our identity for the API server, and our permissions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kant.kube.connect.client import ApiClient


async def own_name(client: ApiClient) -> str:
    """Return the name by which the API server identifies us. Raises ApiError."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = await client.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    return str(msgspec.json.decode(answer)["status"]["userInfo"]["username"])


async def may(client: ApiClient, what: Mapping[str, str]) -> bool:
    """Whether we may do `what`, in the terms of a SelfSubjectAccessReview: group, resource, verb. Raises ApiError."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await client.create(path, review | {"spec": {"resourceAttributes": what}})
    return bool(msgspec.json.decode(answer)["status"].get("allowed"))
