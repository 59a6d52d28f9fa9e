"""Who the client is to the API server, and what it may do."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kant.kube.connect.client import ApiClient


async def own_name(client: ApiClient) -> str:
    """Return the name by which the API server knows the user of this client. Raises ApiError."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = await client.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    return str(msgspec.json.decode(answer)["status"]["userInfo"]["username"])


async def may(client: ApiClient, what: Mapping[str, str]) -> bool:
    """Whether the client may do `what`: group, resource and verb of a SelfSubjectAccessReview. Raises ApiError."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await client.create(path, review | {"spec": {"resourceAttributes": what}})
    return bool(msgspec.json.decode(answer)["status"].get("allowed"))
