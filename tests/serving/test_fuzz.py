"""Whatever a file holds, it is understood or refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.model.errors import InputError
from kant.serving.fit import read_latency, read_steps
from kant.serving.predictor import LengthRanker, read_pairs
from kant.serving.read import FORMATS, read_requests
from kant.serving.recording import read_recording, verify

HEADERS = (
    "t_ms,in_tok,out_tok", "TIMESTAMP,ContextTokens,GeneratedTokens", "model,client,window_s,rate,cv,dist,p1,p2",
    "arrival_s,prompt,output", "arrival_s,prompt,output,priority,predicted,program,group,prefix",
)  # fmt: skip
cell = st.one_of(
    st.integers(-3, 10**20).map(str), st.floats().map(str),
    st.sampled_from(["", "Gamma", "Weibull", "m", "2023-11-16 18:15:46.68", "-0", "1e400", '"', "\x00", "é"]),
)  # fmt: skip
tables = st.builds(
    lambda header, rows: "\n".join([header, *(",".join(row) for row in rows)]).encode(),
    st.sampled_from(HEADERS),
    st.lists(st.lists(cell, min_size=1, max_size=8), max_size=5),
)
json_value = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**30), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
mooncake = st.lists(
    st.fixed_dictionaries(
        {"timestamp": json_value, "input_length": json_value, "output_length": json_value, "hash_ids": json_value}
    ),
    max_size=3,
).map(lambda rows: "\n".join(map(json.dumps, rows)).encode())
contents = st.one_of(st.binary(max_size=60), tables, mooncake, st.binary(max_size=40).map(lambda b: b"\x1f\x8b" + b))


def civil(read: Callable[[], object]) -> None:
    try:
        read()
    except InputError as error:
        assert ": expected " in str(error)


@given(content=contents, form=st.sampled_from([None, *FORMATS]), count=st.sampled_from([None, 1, 3]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(300))
def test_requests_are_understood_or_refused(
    content: bytes, form: str | None, count: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "requests"
    path.write_bytes(content)

    def read() -> None:
        found = read_requests(path, form, 1, count)
        found.check(16, 10**6, True)
        for i in range(len(found)):
            found.contents(i, 16)

    civil(read)


@given(content=contents)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("read", [read_recording, read_pairs, read_steps, read_latency, LengthRanker.load])
def test_other_files_are_understood_or_refused(read: Callable[[Path], object], content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    civil(lambda: read(path))


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_recording_of_strange_numbers_is_verified_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    number = st.one_of(st.integers(-2, 40), st.sampled_from([10**9, 10**18, -(10**18)]))
    names = ("prompt", "output", "priority", "group", "prefix")
    request = {"id": 0, "arrival": 0.0, "first": None, "finish": None, "preempted": 0, "cached": 0}
    limits = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size")
    run = {"cell": 1, "policy": "fcfs", "prefix_cache": data.draw(st.booleans())}
    run |= {name: data.draw(number) for name in limits}
    run["requests"] = [{**request, "id": i, **{name: data.draw(number) for name in names}} for i in range(2)]
    recording = {"engine": "", "F": 1.0, "S": 1.0, "C": 1.0, "K": 0.0, "Q": 0.0, "O": 1.0, "cells": [run]}
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(recording))
    civil(lambda: verify(read_recording(path)))
