"""A route of the API, declared once as a typed method. The server, the schema and the client use the declaration."""

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
"""The media type of a route by the return type of its method. Other return types are sent as JSON."""


class Request(NamedTuple):
    """A request, and the type of its response (`gives`). `query` has the given parameters."""

    method: str
    path: str
    query: dict[str, Any]
    body: Any
    gives: Any


class AtOnce:
    """Base of a client whose route methods return the response."""

    def __init__(self, ask: Callable[[Request], Any]) -> None:
        self._ask = ask


class Awaited:
    """Base of a client whose route methods return an awaitable."""

    def __init__(self, ask: Callable[[Request], Coroutine[Any, Any, Any]]) -> None:
        self._ask = ask


class ApiRoute(Generic[P, T]):
    """A route, and the method that requests it.

    Parameters of `declared` that the path names go into the path; `body` is sent as JSON; the others form the query,
    without those that are None. `answers` is the type of the response, if the method returns a dict or nothing.
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
        """Return the request of a call with these arguments. Raises TypeError for undeclared arguments."""
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
        """The parameters in the path."""
        return [name for name in inspect.signature(self._declared).parameters if f"{{{name}}}" in self.path]

    @property
    def query(self) -> dict[str, tuple[Any, Any]]:
        """The type and the default of each query parameter. A parameter whose default is None is optional."""
        own = list(inspect.signature(self._declared).parameters.values())[1:]
        others = {*self.places, "body"}
        return {each.name: (self._types[each.name], each.default) for each in own if each.name not in others}

    @property
    def takes(self) -> Any:
        """The type of the body, or None."""
        return self._types.get("body")

    @property
    def gives(self) -> Any:
        """The type of a JSON response; None if it is not JSON or its fields are not declared."""
        returned = self._types["return"]
        return self._answers or (returned if hasattr(returned, "__struct_fields__") else None)

    @property
    def media(self) -> str:
        """The content type of the response."""
        return self._media or MEDIA.get(self._types["return"], "application/json")


def get(
    path: str, answers: Any = None, media: str = "", status: int = 200
) -> Callable[[Declared[P, T]], ApiRoute[P, T]]:
    """Declare a GET route."""
    return lambda declared: ApiRoute("GET", path, declared, status, answers, media)


def post(path: str, status: int = 200, answers: Any = None) -> Callable[[Declared[P, T]], ApiRoute[P, T]]:
    """Declare a POST route."""
    return lambda declared: ApiRoute("POST", path, declared, status, answers)
