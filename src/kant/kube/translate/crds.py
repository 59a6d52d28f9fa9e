"""Kant's own kinds: their API group, and how their objects are decoded (`queues`, `topology_objects`, `reservations`).

The API server rejects most errors by the schemas in `manifests/`. Other errors are reported when the object is read,
and affect only that object. Each kind has a module, which is imported with the kind's first object.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kant.kube.objects.views import Unstructured
from kant.model.errors import InputError

GROUP, VERSION = "scheduling.kant.dev", "v1alpha1"
API = f"/apis/{GROUP}/{VERSION}"
"""The path of Kant's API, which has queues, topologies, reservations and defragmentations, all cluster-scoped."""


def about(found: Unstructured) -> str:
    return f"{found.kind or 'object'} {found.metadata.name}"


def decoded(found: Unstructured, form: type[Any]) -> Any:
    """Return the spec of an object as `form`. Raises InputError if it does not match."""
    try:
        return msgspec.json.decode(found.spec, type=form)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{about(found)}, spec", f"fields of the right types ({error})") from None
