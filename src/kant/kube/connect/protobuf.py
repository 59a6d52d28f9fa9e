"""Kubernetes' protobuf format, as far as needed to change an object's metadata without changing any other byte.

A JSON patch rewrites the whole object. Free text in the object, such as driver parameters, then loses its spaces; if
that text is immutable, the API server rejects the patch. In protobuf such text is a byte string, which stays as it is.

Source: k8s.io/apimachinery, pkg/runtime/serializer/protobuf (the envelope) and pkg/apis/meta/v1/generated.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

MAGIC = b"k8s\x00"
RAW = 2
"""The number of the envelope's field that contains the object. Field 1 of an object is its metadata."""
METADATA, VERSION, ANNOTATIONS, FINALIZERS = 1, 6, 12, 14
LENGTH = 2
"""The wire type of length-delimited fields."""


def with_metadata(raw: bytes, annotations: Mapping[str, str | None], finalizers: Sequence[str] | None) -> bytes:
    """Return the object with these annotations set (a value None: removed) and these finalizers (None: as before)."""

    def changed(meta: bytes) -> bytes:
        kept = []
        for number, own, value in _fields(meta):
            if number == FINALIZERS and finalizers is not None:
                continue
            if number == ANNOTATIONS and dict(_pairs(value)).get(1, b"").decode() in annotations:
                continue
            kept.append(own)
        for name, text in annotations.items():
            if text is not None:
                kept.append(_field(ANNOTATIONS, _field(1, name.encode()) + _field(2, text.encode())))
        kept += [_field(FINALIZERS, name.encode()) for name in finalizers or ()]
        return b"".join(kept)

    def of_object(body: bytes) -> bytes:
        return b"".join(_field(n, changed(value)) if n == METADATA else own for n, own, value in _fields(body))

    parts = _fields(_opened(raw))
    return MAGIC + b"".join(_field(n, of_object(value)) if n == RAW else own for n, own, value in parts)


def version_of(raw: bytes) -> str:
    """Return the resourceVersion of an encoded object."""
    meta = dict(_pairs(dict(_pairs(_opened(raw)))[RAW]))[METADATA]
    return dict(_pairs(meta)).get(VERSION, b"").decode()


def _opened(raw: bytes) -> bytes:
    if not raw.startswith(MAGIC):
        raise ValueError("expected an object in Kubernetes' protobuf")
    return raw[len(MAGIC) :]


def _pairs(raw: bytes) -> Iterator[tuple[int, bytes]]:
    return ((number, value) for number, _, value in _fields(raw))


def _fields(raw: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield number, bytes and value of each field of a message; the value of numeric fields is b""."""
    at = 0
    while at < len(raw):
        begin = at
        key, at = _number(raw, at)
        value, kind = b"", key & 7
        if kind == LENGTH:
            size, at = _number(raw, at)
            value, at = raw[at : at + size], at + size
        elif kind == 0:
            _, at = _number(raw, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"expected a field of protobuf, got wire type {kind}")
        yield key >> 3, raw[begin:at], value


def _number(raw: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(raw):
            raise ValueError("expected more bytes: this protobuf message is cut off")
        found |= (raw[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not raw[at - 1] & 0x80:
            return found, at


def _field(number: int, value: bytes) -> bytes:
    return _coded(number << 3 | LENGTH) + _coded(len(value)) + value


def _coded(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
