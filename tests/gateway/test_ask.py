"""Bodies, streams, metrics and keys of strangers: whatever they are, they are read or refused in one sentence."""

from __future__ import annotations

import gc
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.gateway.ask import Ask, EventCount, RefusedError, count_for, read_ask, usage_of
from kant.gateway.proxy import origin
from kant.gateway.scrape import Scraped, read_metrics, read_models
from kant.gateway.tenants import Tenant, Tenants, read_tenants
from kant.model.errors import InputError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["model", "prompt", "messages", "input", "stream", "max_tokens", "priority", "vllm_xargs", "content", "n"]
)
BODIES = st.dictionaries(NAMES | st.text(max_size=8), VALUES, max_size=8)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_one_sentence(body: bytes) -> None:
    try:
        assert isinstance(read_ask("/v1/completions", body), Ask)
    except RefusedError as error:
        assert error.status == 400 and "\n" not in error.message
        assert json.loads(error.body())["error"]["code"] == 400


def test_a_body_nested_as_deep_as_it_can_be_is_refused() -> None:
    gc.collect()  # else what other tests have left may be finalised at the limit of recursion, and fail there
    with pytest.raises(RefusedError):
        read_ask("/v1/completions", b"[" * 1_000_000)


@given(BODIES, st.none() | st.integers(-(2**31), 2**31), st.text(max_size=12))
def test_what_is_forwarded_differs_only_in_priority_and_program(
    fields: dict[str, object], priority: int | None, program: str
) -> None:
    body = json.dumps(fields).encode()
    try:
        ask = read_ask("/v1/chat/completions", body, program)
    except RefusedError:  # a number that no machine integer holds
        return
    assert ask.prompt(4.0) >= 1
    sent = json.loads(ask.forwarded(priority, pass_program=True))
    assert priority is None or sent["priority"] == priority
    assert not ask.program or sent["vllm_xargs"]["program_id"] == ask.program
    changed = ("priority", "vllm_xargs")
    assert {k: v for k, v in sent.items() if k not in changed} == {k: v for k, v in fields.items() if k not in changed}
    assert ask.forwarded(None, pass_program=False) == body


def test_prompts_are_counted_in_all_their_forms() -> None:
    def count(**fields: object) -> int:
        return read_ask("/v1/completions", json.dumps(fields).encode()).prompt(4.0)

    assert count(prompt=[1, 2, 3]) == 3
    assert count(prompt=[[1, 2], [3]]) == 3
    assert count(prompt="x" * 40) == 10
    assert count(messages=[{"content": "x" * 20}, {"content": [{"type": "text", "text": "x" * 19}]}]) == 10
    assert count(messages=3) == count() == 1
    tool = {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "x" * 20}]}]}
    assert count(messages=[{"content": "x" * 19}, tool]) == 10


def test_a_response_is_counted_and_told_apart_by_all_of_its_input() -> None:
    """Forms of input as OpenAI's documentation of responses has them."""

    def ask(**fields: object) -> Ask:
        return read_ask("/v1/responses", json.dumps({"max_output_tokens": 9, **fields}).encode())

    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 700}]}
    done = {"type": "function_call_output", "call_id": "a", "output": "y" * 99}
    assert ask(input=[said, done]).prompt(4.0) == ask(input="x" * 700 + "\n" + "y" * 99).prompt(4.0) == 200
    assert ask(input=[said], instructions="z" * 99).prompt(4.0) == 200 and ask(input=[said]).most == 9
    alike, other = ask(input=[said, done]).blocks("", 4.0)[0], ask(input=[said], instructions="z").blocks("", 4.0)[0]
    assert alike[:2] == ask(input=[said]).blocks("", 4.0)[0] and not set(alike) & set(other)
    Tenant("lab", priority=3).rank(urgent := ask(input=[said]))
    assert json.loads(urgent.body)["priority"] == 3


@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n\r"), max_size=12), max_size=20),
    st.lists(st.integers(0, 400), max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_tokens_are_counted_alike_in_whatever_pieces_they_come(
    tokens: list[str], cuts: list[int], crlf: bool, usage: bool
) -> None:
    events = [json.dumps({"choices": [{"index": 0, "text": token}]}, separators=(",", ":")) for token in tokens]
    if usage:
        said = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": len(tokens) + 3}}
        events.append(json.dumps(said, separators=(",", ":")))
    end = "\r\n\r\n" if crlf else "\n\n"
    whole = "".join(f"data: {event}{end}" for event in [*events, "[DONE]"]).encode()
    count, places = EventCount(), sorted({min(cut, len(whole)) for cut in cuts})
    seen = [count.feed(whole[a:b]) for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
    assert seen[-1] == len(tokens) + (3 if usage else 0)
    assert count.finished
    assert not usage or count.usage == (5, len(tokens) + 3)


@given(st.lists(st.text(max_size=12), max_size=20), st.lists(st.integers(0, 3000), max_size=8), st.booleans())
def test_tokens_of_anthropics_messages_are_counted_in_whatever_pieces_they_come(
    tokens: list[str], cuts: list[int], ended: bool
) -> None:
    """The events are those of Anthropic's documentation of streaming messages."""

    def event(kind: str, **fields: object) -> str:
        said = json.dumps({"type": kind, **fields}, separators=(",", ":"))
        return f"event: {kind}\ndata: {said}\n\n"

    usage = {"input_tokens": 25, "output_tokens": 0}
    events = [event("message_start", message={"role": "assistant", "usage": usage}), event("ping")]
    events.append(event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
    events += [event("content_block_delta", index=0, delta={"type": "text_delta", "text": token}) for token in tokens]
    if ended:
        events.append(event("content_block_stop", index=0))
        events.append(event("message_delta", delta={}, usage={"input_tokens": 25, "output_tokens": len(tokens) + 2}))
        events.append(event("message_stop"))
    whole, count = "".join(events).encode(), count_for("/v1/messages")
    places = sorted({min(cut, len(whole)) for cut in cuts})
    for a, b in zip([0, *places], [*places, len(whole)], strict=True):
        count.feed(whole[a:b])
    assert (count.events, count.finished) == (len(tokens) + 2 * ended, ended)
    assert count.usage == ((25, len(tokens) + 2) if ended else None)


def test_a_message_has_its_system_prompt_and_errors_are_in_its_form() -> None:
    parts = [{"type": "text", "text": "b" * 40}]
    fields = {"system": "a" * 40, "messages": [{"role": "user", "content": parts}], "max_tokens": 9}
    ask = read_ask("/v1/messages", json.dumps(fields).encode())
    assert ask.prompt(4.0) == 20 and ask.most == 9
    refused = RefusedError(429, "too many", "overloaded")
    assert json.loads(refused.body("/v1/messages")) == {
        "type": "error", "error": {"type": "overloaded", "message": "too many"},
    }  # fmt: skip
    assert count_for("/v1/messages").error(b"{}") == b"event: error\ndata: {}\n\n"
    assert usage_of(b'{"usage":{"input_tokens":3,"output_tokens":4}}') == (3, 4)
    cached = b'{"usage":{"input_tokens":3,"cache_read_input_tokens":64,"cache_creation_input_tokens":null}}'
    assert usage_of(cached) == (67, 0)  # vLLM and Anthropic count what was cached apart


@given(
    st.lists(st.text(max_size=12), max_size=20),
    st.lists(st.integers(0, 3000), max_size=8),
    st.sampled_from(["", "completed", "incomplete", "failed"]),
)
def test_tokens_of_responses_are_counted_in_whatever_pieces_they_come(
    tokens: list[str], cuts: list[int], last: str
) -> None:
    """The events are those of vLLM 0.32 (entrypoints/openai/responses)."""

    def event(kind: str, **fields: object) -> str:
        said = json.dumps({"type": kind, **fields}, separators=(",", ":"))
        return f"event: {kind}\ndata: {said}\n\n"

    events = [event(f"response.{kind}", response={"usage": None}) for kind in ("created", "in_progress")]
    events += [event("response.output_item.added"), event("response.content_part.added")]
    events += [event("response.output_text.delta", delta=token) for token in tokens]
    if last:
        events.append(event("response.output_text.done", text="".join(tokens)))
        usage = {"input_tokens": 25, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": len(tokens) + 2}
        events.append(event(f"response.{last}", response={"output": [], "usage": usage}))
    whole, count = "".join(events).encode(), count_for("/v1/responses")
    places = sorted({min(cut, len(whole)) for cut in cuts})
    for a, b in zip([0, *places], [*places, len(whole)], strict=True):
        count.feed(whole[a:b])
    assert (count.events, count.finished) == (len(tokens) + 2 * bool(last), bool(last))
    assert count.usage == ((25, len(tokens) + 2) if last else None)


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_stream_can_be_counted(pieces: list[bytes]) -> None:
    count = EventCount()
    assert all(count.feed(piece) >= 0 for piece in pieces)


VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0"} 9
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1234"} 1.0
"""
SGLANG = """
sglang:num_running_reqs{model_name="m"} 5.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.5
sglang:cache_config_info{page_size="64",num_pages="100"} 1.0
"""

SGLANG_0_5 = """
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="0",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="7",tp_rank="0"} 2.0
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 1.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="7",tp_rank="0"} 1.0
# HELP sglang:token_usage The token usage.
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 0.5
# TYPE sglang:num_retracted_reqs gauge
sglang:num_retracted_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 1.0
# TYPE sglang:num_retracted_requests_total counter
sglang:num_retracted_requests_total{engine_type="unified",model_name="m",moe_ep_rank="0",priority="",tp_rank="0"} 9.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",moe_ep_rank="0",priority="",tp_rank="0"} 6401.0
sglang:page_size{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 64.0
sglang:num_pages{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 100.0
"""
"""Names and labels are those of SGLang 0.5.23, srt/observability/metrics_collector.py, with priority scheduling."""


def test_metrics_of_sglang_are_counted_once_whatever_its_priorities_and_ranks() -> None:
    expected = Scraped(5, 1, 0.5, 9, 100, 64)
    assert read_metrics(SGLANG_0_5) == expected
    plain = "\n".join(line for line in SGLANG_0_5.replace('priority="",', "").split("\n") if "priority" not in line)
    assert read_metrics(plain) == expected
    assert read_metrics(SGLANG_0_5 + SGLANG_0_5.replace('tp_rank="0"', 'tp_rank="1"')) == expected
    two = "".join(plain.replace("tp_rank", f'dp_rank="{k}",tp_rank') for k in range(2))
    assert read_metrics(two) == Scraped(10, 2, 0.5, 18, 200, 64)  # data parallel: engines of their own
    old = "\n".join(line for line in plain.split("\n") if "sglang:num_pages" not in line)
    assert read_metrics(old) == expected


def test_the_blocks_of_several_engines_behind_one_address_are_added() -> None:
    more = VLLM.replace("block_size", 'engine="0",block_size') + 'vllm:cache_config_info{block_size="16",engine="1",'
    assert read_metrics(more + 'num_gpu_blocks="1000"} 1.0\n') == Scraped(7, 2, 0.5, 9, 2234, 16)


def test_metrics_of_vllm_and_of_sglang_are_read() -> None:
    assert read_metrics(VLLM) == Scraped(7, 2, 0.5, 9, 1234, 16)
    assert read_metrics(SGLANG) == Scraped(5, 1, 0.5, 0, 100, 64)
    assert read_metrics(VLLM.replace("kv_cache", "gpu_cache")) == Scraped(7, 2, 0.5, 9, 1234, 16)
    assert read_metrics("python_info 1") is None
    assert read_models(b'{"data":[{"id":"a"},{"id":"b","parent":"a"}]}') == ({"a", "b"}, {"b"})
    assert read_models(b'{"data":3}') is None


@given(st.text(max_size=100), st.sampled_from(["vllm:num_requests_running", "vllm:cache_config_info", "sglang:x"]))
def test_any_metrics_and_answers_can_be_read(text: str, name: str) -> None:
    found = read_metrics(f"{name}{text}\n{text}\n{name}{{{text}}} {text}")
    assert found is None or (found.requests >= 0 and 0 <= found.usage <= 1)
    usage_of(text.encode("utf-8", "replace"))
    read_models(text.encode("utf-8", "replace"))


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 3)), max_size=40),
    st.integers(1, 4),
    st.floats(0.1, 10),
    st.integers(1, 5),
)
def test_a_tenant_never_has_more_than_its_limits(
    steps: list[tuple[bool, float]], at_once: int, rate: float, burst: int
) -> None:
    tenant, now, taken, flying = Tenant("t", at_once, rate, burst, level=burst), 0.0, 0, 0
    for come, later in steps:
        now += later
        if come:
            try:
                tenant.take(now)
            except RefusedError as error:
                assert error.status == 429 and error.retry_after >= 1
            else:
                taken, flying = taken + 1, flying + 1
        elif flying:
            tenant.give_back()
            flying -= 1
        assert flying <= at_once and taken <= burst + rate * now + 1e-6


def test_tenants_are_known_by_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    key = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
    path.write_text(f'[default]\nin_flight = 2\n[tenants.lab]\nkey_sha256 = "{key.upper()}"\nrequests_per_s = 5.0\n')
    tenants = read_tenants(path)
    assert (tenants.of("Bearer password").name, tenants.of("Bearer password").burst) == ("lab", 5.0)
    assert (tenants.of("").in_flight, tenants.of("").burst) == (2, 1.0)
    assert tenants.of("Bearer \udcff").name == tenants.of("").name == "default"
    with pytest.raises(RefusedError, match="expected a valid bearer token"):
        Tenants(tenants.by_digest, None).of("bearer guess")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[", "TOML"),
        ("[team]", "team"),
        ("tenants = 3", "tenants"),
        ("[tenants.a]", "tenants, a: expected the key key_sha256"),
        (
            "".join(f'[tenants.{name}]\nkey_sha256 = "{key}"\n' for name, key in (("a", "b" * 64), ("b", "B" * 64))),
            "tenants, b, key_sha256: expected a key that no other tenant has",
        ),
        ("[default]\nin_flight = 0", "default, in_flight"),
        ("[default]\nspeed = 1", "default: expected only the keys"),
        ("default = 1", "default"),
        ("[default]\npriority = 1.5", "default, priority"),
        ("[default]\npriority = true", "default, priority"),
        ('[default]\ntrusted = "yes"', "default, trusted"),
        ("metrics = 1", "metrics"),
        ("[metrics]", "metrics"),
        ('[metrics]\nkey_sha256 = "abc"', "metrics, key_sha256"),
    ],
)
def test_a_file_of_tenants_that_is_wrong_is_said_in_one_sentence(text: str, where: str, tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_tenants(path)
    assert where in str(caught.value) and "\n" not in str(caught.value)


def test_addresses_of_backends_are_checked() -> None:
    assert origin(" http://a:8000/v1/ ") == "http://a:8000"
    for wrong in ("a:8000", "ftp://a", "http://", "http://a/b", "http://u@a", "http://a:x", "http://[a"):
        with pytest.raises(InputError):
            origin(wrong)


PRIORITIES_SAID = st.one_of(
    st.integers(-(10**12), 10**12), st.floats(-1e12, 1e12), st.booleans(), st.none(), st.text(max_size=5),
    st.sampled_from(["-100", [], {}]),
)  # fmt: skip


@given(st.integers(-100, 100), PRIORITIES_SAID, st.booleans(), st.booleans())
def test_no_request_is_more_urgent_than_its_tenant_is(given_: int, said: object, has: bool, trusted: bool) -> None:
    fields = {"prompt": [1], "vllm_xargs": {"program_id": "fresh", "a": 1}, **({"priority": said} if has else {})}
    ask = read_ask("/v1/completions", json.dumps(fields).encode(), "fresh")
    Tenant("lab", priority=given_, trusted=trusted).rank(ask)
    sent = json.loads(ask.forwarded(None, False))
    assert ask.priority >= given_ and (sent.get("priority") or 0) >= given_
    number = isinstance(said, int | float) and not isinstance(said, bool)
    if has and number and given_ <= said <= 1 << 31:  # type: ignore[operator]
        assert ask.priority == said and sent["priority"] == said  # a client may stand back
    else:
        assert ask.priority in (given_, 1 << 31)
    assert ask.program == ("fresh" if trusted else "")
    assert sent["vllm_xargs"] == {**({"program_id": "fresh"} if trusted else {}), "a": 1}
    if not has and trusted and not given_:
        assert ask.body == json.dumps(fields).encode()  # to the byte


def test_metrics_are_read_with_a_key(tmp_path: Path) -> None:
    lab, scraper = (hashlib.sha256(key).hexdigest() for key in (b"password", b"scrape"))
    path = tmp_path / "tenants.toml"
    path.write_text(f'[default]\n[tenants.lab]\nkey_sha256 = "{lab}"\npriority = -3\ntrusted = true\n')
    tenants = read_tenants(path)
    assert (tenants.of("Bearer password").priority, tenants.of("Bearer password").trusted) == (-3, True)
    assert (tenants.of("").priority, tenants.of("").trusted) == (0, False)
    tenants.read_metrics("Bearer password")
    path.write_text(path.read_text() + f'[metrics]\nkey_sha256 = "{scraper.upper()}"\n')
    apart = read_tenants(path)
    apart.read_metrics("bearer scrape")
    for wrong, key in ((tenants, ""), (tenants, "Bearer scrape"), (apart, "Bearer password"), (apart, "")):
        with pytest.raises(RefusedError, match="expected a valid bearer token"):
            wrong.read_metrics(key)
    Tenants({}, None).read_metrics("")
