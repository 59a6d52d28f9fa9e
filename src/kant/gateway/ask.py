"""Parses requests to an OpenAI-compatible engine as far as routing needs, and formats errors in the API's form.

No content of a body is trusted. Invalid fields are left for the engine to reject; the router itself rejects only a body
that is not a JSON object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kant.serving.prefix_index import BLOCK_TOKENS, BYTES, chain

MESSAGES = "/v1/messages"
"""Anthropic's chat API, which vLLM and SGLang also support."""

RESPONSES = "/v1/responses"
GENERATES = ("/v1/completions", "/v1/chat/completions", MESSAGES, RESPONSES)
"""Paths whose responses are generated token by token."""

FORWARDS = (*GENERATES, "/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize")
"""Paths whose requests are routed to a backend."""

PRIORITIES = 1 << 31
"""The largest absolute value of a priority: vLLM stores priorities in a machine integer."""

LONGEST_PROGRAM = 256
LONGEST_OUTPUT = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""The fields of a request that limit its output tokens, in the order in which they are tried."""


class RefusedError(Exception):
    """A request is refused: HTTP status, message, OpenAI's error type, and seconds until a retry (0: unknown)."""

    def __init__(self, status: int, message: str, kind: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.retry_after = status, message, kind, retry_after

    def body(self, path: str = "") -> bytes:
        """Return the error in the form of the API of `path`: OpenAI's, or Anthropic's."""
        return error_body(self.status, self.message, self.kind, path)


def error_body(status: int, message: str, kind: str, path: str = "") -> bytes:
    """Return an error body: OpenAI's `{"error": {"message": …}}`, or Anthropic's form for the path of its API."""
    if path == MESSAGES:
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


@dataclass(slots=True)
class Ask:
    """What a router knows about a request.

    `prompt()` counts tokens: exactly if the prompt is a list of token ids, else estimated from the bytes of its text.
    `most` limits the output tokens (None: no limit); `program` names the program, session or agent that sent the call.
    """

    path: str
    body: bytes
    fields: dict[str, Any]
    model: str
    stream: bool
    text: str
    ids: int
    most: int | None
    priority: float
    program: str

    def prompt(self, bytes_per_token: float) -> int:
        """Return the tokens of the prompt, at least 1."""
        return max(1, self.ids + round(len(self.text) / bytes_per_token))

    def blocks(self, adapter: str, bytes_per_token: float) -> tuple[list[int], float]:
        """Return the hash chain of the prompt's blocks, and the number of tokens in a block.

        The first hash names the adapter, if there is one. Different `tools`, or a different `cache_salt` of vLLM, give
        different hashes, as in the prefix caches of engines.
        """
        apart = {name: self.fields[name] for name in ("cache_salt", "tools") if self.fields.get(name)}
        root = repr((adapter, apart)) if adapter or apart else ""
        prompt = self.fields.get("prompt", self.fields.get("input"))
        if self.ids and isinstance(prompt, list) and set(map(type, prompt)) == {int}:
            found, tokens = chain(prompt, root, BLOCK_TOKENS), float(BLOCK_TOKENS)
        else:
            found, tokens = chain(self.text, root, BYTES), BYTES / bytes_per_token
        return ([hash(adapter), *found] if adapter else found), tokens

    def yield_to(self, priority: int) -> None:
        """Set this priority (lower goes first) in request and body, unless the client asks for a less urgent one.

        If the priority is 0, a body that has none is not changed, since 0 is the engines' default.
        """
        said = self.fields.get("priority")
        known = isinstance(said, int | float) and not isinstance(said, bool)
        self.priority = max(self.priority, float(priority)) if known else float(priority)
        if said != self.priority and ("priority" in self.fields or (priority and self.path in GENERATES)):
            self._write({**self.fields, "priority": int(self.priority)})

    def forget_program(self) -> None:
        """Remove the name of the program from the request and from its body."""
        self.program = ""
        extra = self.fields.get("vllm_xargs")
        if isinstance(extra, dict) and "program_id" in extra:
            self._write({**self.fields, "vllm_xargs": {k: v for k, v in extra.items() if k != "program_id"}})

    def _write(self, fields: dict[str, Any]) -> None:
        self.fields, self.body = fields, msgspec.json.encode(fields)

    def forwarded(self, priority: int | None, pass_program: bool) -> bytes:
        """Return the body for the engine, with vLLM's `priority` (lower first), and the program's name for plug-ins."""
        program = self.program if pass_program else ""
        if priority is None and not program:
            return self.body
        fields = dict(self.fields)
        if priority is not None:
            fields["priority"] = priority
        if program:
            extra = fields.get("vllm_xargs")
            fields["vllm_xargs"] = {**(extra if isinstance(extra, dict) else {}), "program_id": program}
        return msgspec.json.encode(fields)


def read_ask(path: str, body: bytes, program: str = "") -> Ask:
    """Parse a body; `program` comes from a header ("": from the body). Raises RefusedError if it is no JSON object."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(400, f"the body: expected JSON ({error})", "invalid_request_error") from None
    if not isinstance(fields, dict):
        raise RefusedError(400, "the body: expected a JSON object", "invalid_request_error")
    text, ids = _prompt(fields)
    model = fields.get("model")
    most = next((n for n in map(fields.get, LONGEST_OUTPUT) if _whole(n)), None)
    urgency = fields.get("priority")
    priority = float(max(-PRIORITIES, min(urgency, PRIORITIES))) if isinstance(urgency, int | float) else 0.0
    if not program:
        extra = fields.get("vllm_xargs")
        said = extra.get("program_id") if isinstance(extra, dict) else None
        program = said if isinstance(said, str) else ""
    return Ask(
        path,
        body,
        fields,
        model if isinstance(model, str) else "",
        fields.get("stream") is True,
        text,
        ids,
        most,
        priority,
        program[:LONGEST_PROGRAM],
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < PRIORITIES


def _prompt(fields: dict[str, Any]) -> tuple[str, int]:
    """Return all text of the prompt, and its number of token ids."""
    prompt = fields.get("prompt", fields.get("input"))
    if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], dict)):
        return _listed(prompt)
    messages = fields.get("messages") if prompt is None else prompt  # `input` of /v1/responses may be messages
    return "\n".join(_texts([fields.get("system"), fields.get("instructions"), messages])), 0


def _texts(content: Any) -> list[str]:
    """Return all texts of a message, in order, including those of its parts and of the results of tools."""
    found: list[str] = []
    left = [content]
    while left:
        part = left.pop()
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, list):
            left += reversed(part)
        elif isinstance(part, dict):
            left.append(next((part[name] for name in ("text", "content", "output") if name in part), None))
    return found


def _listed(prompt: list[Any]) -> tuple[str, int]:
    """Return the text and the number of tokens of a list of token ids, of texts, or of lists of token ids."""
    if prompt and isinstance(prompt[0], int):
        return "", len(prompt)
    texts = [part for part in prompt if isinstance(part, str)]
    return "\n".join(texts), sum(len(part) for part in prompt if isinstance(part, list))


class EventCount:
    """Counts the tokens of a stream of server-sent events, however it is split into pieces.

    Each event counts as a token, except the final `[DONE]`, events without choices, and the first event of a chat,
    which has only the role. A final event with `usage` corrects the count.
    """

    __slots__ = ("events", "finished", "tail", "usage")

    def __init__(self) -> None:
        self.events = 0
        self.finished = False
        self.tail = b""
        self.usage: tuple[int, int] | None = None

    def feed(self, piece: bytes) -> int:
        """Process the next piece of the stream; return the tokens so far."""
        data = self.tail + piece
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        end = data.rfind(b"\n\n") + 2
        if end < 2:
            self.tail = data[-MOST_EVENT:]
            return self.events
        self.tail = data[end:][-MOST_EVENT:]
        whole = data[:end]
        self._count(whole)
        if b'"usage":{' in whole:
            self._read_usage(whole)
        self.events = max(self.events, 0)
        return self.events

    def _count(self, whole: bytes) -> None:
        """Count the tokens of complete events."""
        self.events += whole.count(b"\n\n")
        if b"[DONE]" in whole:
            self.finished = True
            self.events -= 1
        if b'"choices":[]' in whole:
            self.events -= whole.count(b'"choices":[]')
        self.events -= whole.count(b'"role":"assistant","content":""')

    def error(self, body: bytes) -> bytes:
        """Return an error as an event of the stream."""
        return b"data: " + body + b"\n\n"

    def _read_usage(self, whole: bytes) -> None:
        for line in reversed(whole.split(b"\n")):
            if line.startswith(b"data: {") and b'"usage":{' in line:
                self.usage = usage_of(line[6:])
                if self.usage is not None:
                    self.events = max(self.events, self.usage[1])
                return


class NamedEventCount(EventCount):
    """Counts the tokens of a stream whose events are named: Anthropic's messages, and responses.

    Each delta event counts as one token. It has a piece of a content block, of a text or of tool arguments.
    """

    __slots__ = ()

    def _count(self, whole: bytes) -> None:
        self.events += whole.count(b"event: content_block_delta\n") + whole.count(b".delta\ndata: ")
        self.finished |= any(b"event: %b\n" % name in whole for name in LAST_EVENTS)

    def error(self, body: bytes) -> bytes:
        return b"event: error\n" + super().error(body)


def count_for(path: str) -> EventCount:
    """Return the counter for a stream of this path."""
    return NamedEventCount() if path in (MESSAGES, RESPONSES) else EventCount()


LAST_EVENTS = (b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")
MOST_EVENT = 1 << 20
"""How many bytes of an incomplete event are kept. Of a longer event, only the last bytes are kept."""


class _Usage(msgspec.Struct):
    """Token counts, in the field names of OpenAI's completions, or of its responses and Anthropic's messages.

    Anthropic's `input_tokens` do not include cached tokens.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    cache_creation_input_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0
    output_tokens: int = 0

    def tokens(self) -> tuple[int, int]:
        """Return the tokens of the prompt and of the output."""
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return self.prompt_tokens or self.input_tokens + cached, self.completion_tokens or self.output_tokens


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    response: _Answer | None = None
    """The whole response, in the last event of a stream of /v1/responses."""


_ANSWER = msgspec.json.Decoder(_Answer)
_ANY = msgspec.json.Decoder(msgspec.Raw)


def is_json(answer: bytes) -> bool:
    """Whether a response is one JSON document."""
    try:
        _ANY.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def usage_of(answer: bytes) -> tuple[int, int] | None:
    """Return the prompt and output tokens that a response reports, or None if missing or invalid."""
    try:
        said = _ANSWER.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    usage = (said.response or said).usage
    if usage is None:
        return None
    found = usage.tokens()
    return found if all(0 <= tokens < PRIORITIES for tokens in found) else None
