"""A route of the API, declared once as a typed method: the server, the schema and the client read the declaration."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property, wraps
from types import MethodType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, get_type_hints, overload
from urllib.parse import quote

P = ParamSpec("P")
T = TypeVar("T")
Declared = Callable[Concatenate[Any, P], T]
MEDIA = {bytes: "application/octet-stream", str: "text/plain"}
"""What a route sends whose method gives this; anything else is JSON."""


class Request(NamedTuple):
    """What is sent, and the type of its answer. `query` has the parameters that were given."""

    method: str
    path: str
    query: dict[str, Any]
    body: Any
    gives: Any


class AtOnce:
    """Has routes as methods that return the answer."""

    def __init__(self, ask: Callable[[Request], Any]) -> None:
        self._ask = ask


class Awaited:
    """Has routes as methods whose answer is awaited."""

    def __init__(self, ask: Callable[[Request], Coroutine[Any, Any, Any]]) -> None:
        self._ask = ask


class Route(Generic[P, T]):
    """A route, and the method that asks it.

    Of the parameters of `declared` those in the path stand there and `body` is sent as JSON; the others are the query,
    without those that are None. `answers` is the type of the answer, if the method returns it as a dict or not at all.
    """

    def __init__(
        self, method: str, path: str, declared: Declared[P, T], status: int, answers: Any = None, media: str = ""
    ) -> None:
        self.method, self.path, self.status = method, path, status
        self.name, self.about = declared.__name__, inspect.cleandoc(declared.__doc__ or "")
        self._declared, self._answers, self._media = declared, answers, media

        @wraps(declared)
        def call(asks: AtOnce | Awaited, *args: Any, **kwargs: Any) -> Any:
            return asks._ask(self.request(*args, **kwargs))

        self._call = call

    @overload
    def __get__(self, asks: None, owner: type) -> Declared[P, T]: ...
    @overload
    def __get__(self, asks: AtOnce, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, asks: Awaited, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, asks: AtOnce | Awaited | None, owner: type) -> Any:
        return self._call if asks is None else MethodType(self._call, asks)

    def request(self, *args: Any, **kwargs: Any) -> Request:
        """What a call with these arguments sends. Raises TypeError for others than are declared."""
        given = inspect.signature(self._declared).bind(None, *args, **kwargs).arguments
        given = {name: value for name, value in list(given.items())[1:] if value is not None}
        body = given.pop("body", None)
        path = self.path.format_map({name: quote(str(given.pop(name)), safe="") for name in self.places})
        return Request(self.method, path, given, body, self._types["return"])

    @cached_property
    def _types(self) -> dict[str, Any]:
        return get_type_hints(self._declared, include_extras=True)

    @property
    def places(self) -> list[str]:
        """The parameters that stand in the path."""
        return [name for name in inspect.signature(self._declared).parameters if f"{{{name}}}" in self.path]

    @property
    def query(self) -> dict[str, tuple[Any, Any]]:
        """The type and the default of each parameter of the query. None as default: it may be absent."""
        own = list(inspect.signature(self._declared).parameters.values())[1:]
        others = {*self.places, "body"}
        return {each.name: (self._types[each.name], each.default) for each in own if each.name not in others}

    @property
    def takes(self) -> Any:
        """The type of the body, None where there is none."""
        return self._types.get("body")

    @property
    def gives(self) -> Any:
        """The type of an answer in JSON, None where it is not JSON or its fields are not said."""
        returned = self._types["return"]
        return self._answers or (returned if hasattr(returned, "__struct_fields__") else None)

    @property
    def media(self) -> str:
        """The content type of the answer."""
        return self._media or MEDIA.get(self._types["return"], "application/json")


def get(path: str, answers: Any = None, media: str = "", status: int = 200) -> Callable[[Declared[P, T]], Route[P, T]]:
    """Declare a route that is asked by GET."""
    return lambda declared: Route("GET", path, declared, status, answers, media)


def post(path: str, status: int = 200, answers: Any = None) -> Callable[[Declared[P, T]], Route[P, T]]:
    """Declare a route that is asked by POST."""
    return lambda declared: Route("POST", path, declared, status, answers)
