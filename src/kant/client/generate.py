"""Writes `generated.py`: the types and the routes of the service's OpenAPI document, for programs in Python.

`python -m kant.client.generate` writes it anew after a change of the service.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from textwrap import fill, indent
from typing import Any

OUTPUT = Path(__file__).with_name("generated.py")
OPEN = frozenset({"ClusterAnswer"})
"""Answers that have more than the document says: they come as they are."""
OURS = frozenset({"Notice", "StageOf", "Submission", "Terminal"})
"""What the service takes as this program has it: there is one `JobRequest`."""
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
HEAD = '''"""The types and routes of the service. Written by `python -m kant.client.generate`: change that, not this.

Long: it is generated, and no shorter than the document.
"""
# ruff: noqa: E501, RUF012
# fmt: off

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal, Protocol, TypeVar, cast

from msgspec import UNSET, UnsetType

from kant.client.shown import Shown
from kant.model.submission import StageOf, Submission, Terminal

T = TypeVar("T")
'''
SYNC = '''

class Asks(Protocol):
    """What carries a question to a Kant, and makes its answer an object of `kind`."""

    def __call__(self, method: str, path: str, query: dict[str, Any], body: Any, kind: type[T]) -> T: ...


class Api:
    """Every route of the service. Each raises `InputError` with the sentence of a refusal."""

    def __init__(self, ask: Asks) -> None:
        self._ask = ask
'''
ASYNC = '''

class AsksLater(Protocol):
    """As `Asks`, for those who await the answer."""

    def __call__(self, method: str, path: str, query: dict[str, Any], body: Any, kind: type[T]) -> Awaitable[T]: ...


class AsyncApi:
    """Every route of the service, to be awaited. Each raises `InputError` with the sentence of a refusal."""

    def __init__(self, ask: AsksLater) -> None:
        self._ask = ask
'''


def document() -> dict[str, Any]:
    """The OpenAPI document of the service."""
    text = (resources.files("kant.service") / "openapi.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def generated() -> str:
    """The text of `generated.py`."""
    found = document()
    types = "".join(_struct(name, schema) for name, schema in found["components"]["schemas"].items())
    routes = [
        (method, path, route)
        for path, methods in found["paths"].items()
        for method, route in methods.items()
        if not _is_stream(route)
    ]
    plain = "".join(_method(method, path, route, "") for method, path, route in routes)
    later = "".join(_method(method, path, route, "async ") for method, path, route in routes)
    return HEAD + types + SYNC + plain + ASYNC + later


def _is_stream(route: dict[str, Any]) -> bool:
    """Whether a route has no answer that ends."""
    return "101" in route["responses"] or "text/event-stream" in _content(route)


def _content(route: dict[str, Any]) -> dict[str, Any]:
    (content,) = [answer.get("content", {}) for status, answer in route["responses"].items() if status.isdigit()]
    return dict(content)


def _type(schema: dict[str, Any]) -> str:
    """The Python type of a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "dict[str, Any]" if name in OPEN else str(name)
    if "anyOf" in schema:
        return " | ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return f"Literal[{', '.join(json.dumps(each) for each in schema['enum'])}]"
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_type(schema['items'])}]" if schema.get("items") else "list[Any]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {_type(values)}]" if isinstance(values, dict) and values else "dict[str, Any]"
    return PLAIN.get(str(kind), "Any")


def _about(text: str, depth: int) -> str:
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    lines = "\n\n".join(fill(part, 112 - 4 * depth) for part in paragraphs).replace("\\", "\\\\")
    closing = '"""' if "\n" not in lines else '\n"""'
    return indent(f'"""{lines}{closing}\n', "    " * depth)


def _struct(name: str, schema: dict[str, Any]) -> str:
    if name in OPEN | OURS:
        return ""
    head = f"\n\nclass {name}(Shown, kw_only=True, omit_defaults=True):\n"
    lines = [head, _about(schema.get("description", name), 1)]
    required = set(schema.get("required", ()))
    for field, own in schema["properties"].items():
        default = "" if field in required else f" = {own.get('default')!r}"
        lines.append(("\n" if len(lines) == 2 else "") + f"    {field}: {_type(own)}{default}\n")
    return "".join(lines)


def _method(method: str, path: str, route: dict[str, Any], later: str) -> str:
    content = _content(route)
    media = next(iter(content), "")
    schema = content.get(media, {}).get("schema")
    if media == "application/octet-stream":
        gives = "bytes"
    elif media == "text/plain":
        gives = "str"
    else:
        gives = _type(schema) if schema else "dict[str, Any]"
    words, query = ["self"], []
    parameters = route.get("parameters", [])
    words += [f"{each['name']}: str" for each in parameters if each["in"] == "path"]
    if "requestBody" in route:
        words.append(f"body: {_type(route['requestBody']['content']['application/json']['schema'])}")
    asked = [each for each in parameters if each["in"] == "query"]
    if asked:
        words.append("*")
    for each in asked:
        words.append(f"{each['name']}: {_type(each['schema'])} | UnsetType = UNSET")
        query.append(f'"{each["name"]}": {each["name"]}')
    kind = gives if not gives.startswith("dict") else "dict"
    given = f'"{method.upper()}", {"f" if "{" in path else ""}"{path}", {{{", ".join(query)}}}, '
    call = f"self._ask({given}{'body' if 'requestBody' in route else 'None'}, {kind})"
    call = f"await {call}" if later else call
    call = f'cast("{gives}", {call})' if kind == "dict" else call
    about = f"{route['summary']}"
    signature = f"{later}def {route['operationId']}({', '.join(words)}) -> {gives}:"
    return f'\n    {signature}\n        """{about}"""\n        return {call}\n'


if __name__ == "__main__":
    OUTPUT.write_text(generated(), encoding="utf-8")
