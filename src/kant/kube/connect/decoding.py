"""Decoding of objects of the API server: single objects, pages of a list, and what can be read of malformed objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from kant.kube.connect.errors import ApiError
from kant.kube.objects.views import Meta, PartialMetadata, View

T = TypeVar("T")
OnMalformed = Callable[[Meta, str], None]


class ListMeta(View, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListPage(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: ListMeta = ListMeta()
    items: list[T] = []


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(view: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of this view; it is shared, since creating a decoder costs more than using it."""
    found = _DECODERS.get(view)
    if found is None:
        found = _DECODERS[view] = msgspec.json.Decoder(view)
    return found


def decoded(raw: bytes, view: type[T], what: str) -> T:
    """Return the response `raw` to the request `what` as a view. Raises ApiError if it cannot be decoded."""
    try:
        return decoder(view).decode(raw)
    except msgspec.DecodeError as error:
        raise ApiError(0, "Malformed", f"{what}: the answer cannot be decoded: {error}") from error


def page_of(raw: bytes, view: type[T], on_malformed: OnMalformed | None) -> ListPage[T]:
    """Return a page of a list. Objects that cannot be decoded go to `on_malformed`. ApiError if `raw` is no page."""
    try:
        return decoder(ListPage[view]).decode(raw)  # type: ignore[valid-type]
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        raise ApiError(0, "Malformed", f"a page of the list cannot be decoded: {error}") from error
    page = decoder(ListPage[msgspec.Raw]).decode(raw)
    items = []
    for item in page.items:
        try:
            items.append(decoder(view).decode(item))
        except msgspec.DecodeError as error:
            if on_malformed is not None:
                on_malformed(who(item), str(error))
    return ListPage(page.metadata, items)


def who(raw: bytes | msgspec.Raw) -> Meta:
    """Return the metadata of a malformed object, as far as it can be decoded."""
    try:
        return decoder(PartialMetadata).decode(raw).metadata
    except msgspec.DecodeError:
        pass
    try:
        metadata = msgspec.json.decode(raw)["metadata"]
        name, namespace, uid, version = (
            str(metadata.get(key, "")) for key in ("name", "namespace", "uid", "resourceVersion")
        )
        return Meta(name=name, namespace=namespace, uid=uid, resource_version=version)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return Meta()
