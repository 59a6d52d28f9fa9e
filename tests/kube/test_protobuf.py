"""Objects in Kubernetes' protobuf whose metadata is changed keep all else byte by byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.connect.protobuf import MAGIC, version_of, with_metadata


def number(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + number(value >> 7) if value > 0x7F else bytes([value])


def field(at: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return number(at << 3 | 2) + number(len(raw)) + raw


def note(name: str, text: str) -> bytes:
    return field(12, field(1, name) + field(2, text))


TEXTS = st.text(max_size=200)
OTHERS = st.lists(st.one_of(st.builds(field, st.integers(20, 300), TEXTS), st.just(number(9 << 3) + number(300))))


@settings(max_examples=examples(60))
@given(OTHERS, OTHERS, st.dictionaries(st.sampled_from("abc"), TEXTS), st.lists(st.sampled_from("xyz"), unique=True))
def test_metadata_is_changed_and_nothing_else(
    within: list[bytes], beside: list[bytes], notes: dict[str, str], finalizers: list[str]
) -> None:
    def message(notes: dict[str, str], finalizers: list[str]) -> bytes:
        own = [field(6, "12"), *within, *(note(*one) for one in notes.items()), *(field(14, one) for one in finalizers)]
        return MAGIC + field(1, "kind") + field(2, field(1, b"".join(own)) + b"".join(beside)) + field(3, "")

    kept = {name: text for name, text in notes.items() if name not in ("a", "b")}
    raw = message(notes, ["old"])
    assert version_of(raw) == "12"
    assert with_metadata(raw, {"a": "new", "b": None}, finalizers) == message(kept | {"a": "new"}, finalizers)
    assert with_metadata(raw, {}, None) == raw
