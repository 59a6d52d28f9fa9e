"""The forms in which a mock engine answers: completions, chats, OpenAI's responses and Anthropic's messages.

A stream has an opening, an event for each token, and a closing. Events are named as in vLLM 0.32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kant.gateway.ask import MESSAGES, RESPONSES

WORD = " tok"


@dataclass(frozen=True, slots=True)
class MockAnswer:
    """An answer: its name, the model, and the tokens of prompt and output."""

    name: str
    model: str
    prompt: int
    output: int

    @property
    def text(self) -> str:
        return WORD * self.output


def _event(said: dict[str, Any], named: bool = False) -> bytes:
    name = f"event: {said['type']}\n" if named else ""
    return b"%bdata: %b\n\n" % (name.encode(), msgspec.json.encode(said))


class CompletionForm:
    """The form of `/v1/completions`."""

    kind = chunk = "text_completion"

    def opening(self, said: MockAnswer) -> bytes:
        return b""

    def token(self, said: MockAnswer) -> bytes:
        return self._chunk(said, {"text": WORD})

    def closing(self, said: MockAnswer, usage: bool) -> bytes:
        last = _event({"id": said.name, "choices": [], "usage": self._usage(said)}) if usage else b""
        return last + b"data: [DONE]\n\n"

    def whole(self, said: MockAnswer) -> dict[str, Any]:
        choice = {"index": 0, **self._said(said.text), "finish_reason": "length"}
        return {
            "id": said.name, "object": self.kind, "model": said.model, "choices": [choice], "usage": self._usage(said),
        }  # fmt: skip

    def _said(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _chunk(self, said: MockAnswer, piece: dict[str, Any]) -> bytes:
        choice = {"index": 0, **piece, "finish_reason": None}
        return _event({"id": said.name, "object": self.chunk, "model": said.model, "choices": [choice]})

    def _usage(self, said: MockAnswer) -> dict[str, int]:
        tokens = said.prompt + said.output
        return {"prompt_tokens": said.prompt, "completion_tokens": said.output, "total_tokens": tokens}


class ChatForm(CompletionForm):
    """The form of `/v1/chat/completions`."""

    kind, chunk = "chat.completion", "chat.completion.chunk"

    def opening(self, said: MockAnswer) -> bytes:
        return self._chunk(said, {"delta": {"role": "assistant", "content": ""}})

    def token(self, said: MockAnswer) -> bytes:
        return self._chunk(said, {"delta": {"content": WORD}})

    def _said(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}


class ResponseForm(CompletionForm):
    """The form of `/v1/responses`."""

    def opening(self, said: MockAnswer) -> bytes:
        begun = {"id": said.name, "object": "response", "model": said.model, "status": "in_progress", "usage": None}
        return _event({"type": "response.created", "response": begun}, True)

    def token(self, said: MockAnswer) -> bytes:
        return _event({"type": "response.output_text.delta", "delta": WORD}, True)

    def closing(self, said: MockAnswer, usage: bool) -> bytes:
        done = _event({"type": "response.output_text.done", "text": said.text}, True)
        return done + _event({"type": "response.completed", "response": self.whole(said)}, True)

    def whole(self, said: MockAnswer) -> dict[str, Any]:
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said.text}]}
        return {
            "id": said.name, "object": "response", "model": said.model, "status": "completed", "output": [message],
            "usage": {"input_tokens": said.prompt, "output_tokens": said.output},
        }  # fmt: skip


class MessageForm(ResponseForm):
    """The form of `/v1/messages`."""

    def opening(self, said: MockAnswer) -> bytes:
        begun = self.whole(said) | {"content": [], "usage": {"input_tokens": said.prompt, "output_tokens": 0}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return _event({"type": "message_start", "message": begun}, True) + _event(block, True)

    def token(self, said: MockAnswer) -> bytes:
        return _event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": WORD}}, True)

    def closing(self, said: MockAnswer, usage: bool) -> bytes:
        counts = self.whole(said)["usage"]
        end = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": counts}
        last = ({"type": "content_block_stop", "index": 0}, end, {"type": "message_stop"})
        return b"".join(_event(one, True) for one in last)

    def whole(self, said: MockAnswer) -> dict[str, Any]:
        return {
            "id": said.name, "type": "message", "role": "assistant", "model": said.model, "stop_reason": "max_tokens",
            "content": [{"type": "text", "text": said.text}],
            "usage": {"input_tokens": said.prompt, "output_tokens": said.output},
        }  # fmt: skip


FORMS: dict[str, CompletionForm] = {
    "/v1/completions": CompletionForm(),
    "/v1/chat/completions": ChatForm(),
    RESPONSES: ResponseForm(),
    MESSAGES: MessageForm(),
}
