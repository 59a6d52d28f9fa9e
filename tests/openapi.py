"""The OpenAPI document of the routes."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from kant import __version__
from kant.service import views
from kant.service.route import ApiRoute
from kant.service.routes import ROUTES
from kant.service.shown import Shown
from kant.service.views import Failure


def schema() -> dict[str, Any]:
    """Return the OpenAPI document. `kant/service/openapi.json` is a copy; a test checks that they are equal."""
    types = [kind for route in ROUTES for kind in (route.gives, route.takes) if kind] + [Failure]
    unique = list({each.__name__: each for each in types}.values())
    refs, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    ref = {each.__name__: found for each, found in zip(unique, refs, strict=True)}
    for name, own in components.items():
        if isinstance(kind := getattr(views, name, None), type) and issubclass(kind, Shown):
            own["additionalProperties"] = False  # Kant sends no other fields; a client must accept new ones
    paths: dict[str, Any] = {}
    wrong = {"description": "What was wrong.", "content": {"application/json": {"schema": ref["Failure"]}}}
    for route in ROUTES:
        content = {route.media: {"schema": ref[route.gives.__name__]} if route.gives else {}}
        own = {
            "operationId": route.name,
            "summary": route.about,
            "responses": {
                str(route.status): {"description": "Done.", "content": content} | _links(route),
                "4XX": wrong,
                "5XX": wrong,
            },
        }
        parameters: list[dict[str, Any]] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.places
        ]
        for name, (hint, default) in route.query.items():
            parameters.append({"name": name, "in": "query", "schema": _parameter(hint, default)})
        if parameters:
            own["parameters"] = parameters
        if route.takes is not None:
            body = {"application/json": {"schema": ref[route.takes.__name__]}}
            own["requestBody"] = {"required": True, "content": body}
        paths.setdefault(route.path, {})[route.method.lower()] = own
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kant", "version": __version__},
        "paths": paths,
        "components": {"schemas": dict(sorted(components.items()))},
    }


def _parameter(hint: Any, default: Any) -> dict[str, Any]:
    """Return the schema of a query parameter."""
    if default is None:
        (hint,) = [each for each in get_args(hint) if each is not type(None)]
    return msgspec.json.schema(hint) | ({"default": default} if default is not None else {})


def _links(route: ApiRoute[..., Any]) -> dict[str, Any]:
    """Return links to the routes about the first job of a response."""
    if route.name != "submit":
        return {}
    job = {"job": "$response.body#/jobs/0"}
    ways = [each for each in ROUTES if "{job}" in each.path]
    return {"links": {way.name: {"operationId": way.name, "parameters": job} for way in ways}}
