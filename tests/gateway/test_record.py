"""The record of a router: a line for every request, and prompts that share blocks there as they do, without a word."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.gateway.engines import STREAM, TOKEN, FakeEngine, answer, chunk, engines
from tests.gateway.rig import dispatcher, routing
from tests.patience import PATIENCE_S

from kant.gateway.ask import read_ask
from kant.gateway.record import Record, RequestRecord
from kant.model.errors import InputError
from kant.serving.prefix_index import BLOCK_TOKENS
from kant.serving.replay import read_day

PROMPTS = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 100)), min_size=1, max_size=4), max_size=6)
"""Each prompt is some runs of equal tokens."""


def written(path: Path, prompts: list[Any], router: str = "prefix", said: int = 0) -> None:
    """A record of requests with these prompts, which have ended well; the engine has `said` so many tokens of each."""

    async def run() -> None:
        chosen, record = dispatcher(["http://a"], router=router), Record(path, router, "fcfs")
        for prompt in prompts:
            ask = read_ask("/v1/completions", json.dumps({"model": "m", "prompt": prompt}).encode())
            entry = RequestRecord("x", "/v1/completions", asyncio.get_running_loop().time())
            entry.placed, entry.status, entry.output, entry.backend = chosen.come(ask), 200, 7, 0
            entry.prompt = said
            record.write(entry, 4.0)
        record.close()

    asyncio.run(run())


@given(PROMPTS.filter(bool), st.sampled_from(["prefix", "round-robin"]), st.booleans())
@settings(max_examples=examples(40))
def test_prompts_share_as_many_blocks_as_they_begin_alike(
    drawn: list[list[tuple[int, int]]], router: str, restarted: bool
) -> None:
    prompts = [[token for token, count in runs for _ in range(count)] for runs in drawn]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        written(path, prompts, router)
        if restarted:  # what another run has numbered is not taken for the same
            written(path, [[9] * 200], router)
        day = read_day(path)
        requests, count = day.requests, len(prompts)
        assert requests.prompt.tolist() == [*map(len, prompts), *([200] * restarted)]
        assert requests.output.tolist() == [7] * len(requests) and (day.router, day.engines) == (router, 1)
        for i in range(count):
            for j in range(i):
                alike = next((k for k, (a, b) in enumerate(zip(prompts[i], prompts[j], strict=False)) if a != b), None)
                alike = min(len(prompts[i]), len(prompts[j])) if alike is None else alike
                ids = [requests.hashes[k].tolist() for k in (i, j)]
                shared = next((k for k, (a, b) in enumerate(zip(*ids, strict=False)) if a != b), min(map(len, ids)))
                assert shared == alike // BLOCK_TOKENS
        if restarted:
            assert not set(requests.hashes[-1].tolist()) & {n for ids in requests.hashes[:-1] for n in ids.tolist()}


def test_no_word_of_a_prompt_is_in_the_record(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    written(path, ["confidential words " * 40, "confidential words " * 30])
    assert b"confid" not in path.read_bytes()
    first, second = (json.loads(line)["hash_ids"] for line in path.read_bytes().splitlines())
    assert len(set(first) & set(second)) == 2  # 570 characters have two blocks of 256
    shorter = tmp_path / "shorter.jsonl"
    written(shorter, ["confidential words " * 40], said=64)
    assert len(json.loads(shorter.read_bytes())["hash_ids"]) == 1


def test_another_file_is_not_written_into(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("precious\n")
    with pytest.raises(InputError, match="record of a router"):
        Record(path, "prefix", "fcfs")
    assert path.read_text() == "precious\n"
    with pytest.raises(InputError, match="can be written"):
        Record(tmp_path / "no" / "day.jsonl", "prefix", "fcfs")


def test_every_request_has_a_line_and_a_name_that_its_engine_hears(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    left = asyncio.Event()

    async def behave(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        what = json.loads(body)["what"]
        if what == "json":
            writer.write(answer(200, b'{"usage":{"prompt_tokens":11,"completion_tokens":3}}'))
            return
        writer.write(STREAM + chunk(TOKEN) + chunk(TOKEN))
        await writer.drain()
        if what == "whole":
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        elif what == "breaks":
            writer.close()
        else:  # its client leaves
            await engine.readers[writer].read()
            left.set()

    async def run() -> tuple[dict[str, str], list[bytes]]:
        said: dict[str, str] = {}
        async with engines(behave) as (made, urls), aiohttp.ClientSession() as session:
            record = Record(path, "round-robin", "fcfs")
            async with routing(dispatcher(urls), record=record) as (_, url), asyncio.timeout(PATIENCE_S):
                for what in ("whole", "json", "breaks", "bad", "leaves"):
                    body = b"[" if what == "bad" else json.dumps({"what": what, "prompt": [1] * 9}).encode()
                    names = {"x-request-id": "mine"} if what == "whole" else {"x-request-id": "no\u00e9"}
                    async with session.post(url + "/v1/completions", data=body, headers=names) as found:
                        said[what] = found.headers["x-request-id"]
                        if what == "leaves":
                            await found.content.readline()
                            found.close()
                            break
                        await found.read()
                await left.wait()
            return said, made[0].heads

    said, heads = asyncio.run(run())
    lines = {line["id"]: line for line in map(json.loads, path.read_bytes().splitlines())}
    assert said["whole"] == "mine" and len(lines) == len(set(said.values())) == 5
    rows = {what: lines[name] for what, name in said.items()}
    assert {what: row["status"] for what, row in rows.items()} == {
        "whole": 200, "json": 200, "breaks": 502, "bad": 400, "leaves": 499,
    }  # fmt: skip
    assert [rows[what]["output_length"] for what in ("whole", "json", "breaks", "leaves")] == [2, 3, 2, 2]
    assert [rows[what]["input_length"] for what in ("whole", "json", "bad")] == [9, 11, 0]
    assert all(0 < row["first_s"] <= row["whole_s"] for what, row in rows.items() if what != "bad")
    for what, head in zip(("whole", "json", "breaks", "leaves"), heads, strict=True):
        assert head.lower().count(b"x-request-id: ") == 1 and f"x-request-id: {said[what]}\r\n".encode() in head
    day = read_day(path)
    assert len(day.requests) == 3 and day.left_out == 2
