"""The OpenAPI document, made from the list of addresses."""

from __future__ import annotations

from typing import Any

from penstock.web.routes import Content, Route

_HEX = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_WHOLE = {"type": "integer", "minimum": 0}
_PATH: dict[str, dict[str, Any]] = {
    "jobid": _HEX,
    "vertexid": _HEX,
    "triggerid": _HEX,
    "rescaleuuid": _HEX,
    "checkpointid": _WHOLE,
    "subtaskindex": _WHOLE,
    "attempt": _WHOLE,
}
_REFUSAL = {"$ref": "#/components/schemas/Errors"}


def openapi(routes: list[Route], *, version: str, needs_token: bool) -> dict[str, Any]:
    """The document for these addresses."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        braced = "/".join(f"{{{part[1:]}}}" if part.startswith(":") else part for part in route.path.split("/"))
        paths.setdefault(braced, {})[route.method.lower()] = _operation(route)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": version,
            "description": "Jobs of one driver. The paths outside /penstock are those of Flink's monitoring API.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Errors": {
                    "type": "object",
                    "required": ["errors"],
                    "properties": {"errors": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
                }
            }
        },
    }
    if needs_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _operation(route: Route) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _PATH.get(name, {"type": "string", "minLength": 1})}
        for name in route.parameters
    ]
    parameters += [{"name": name, "in": "query", "schema": dict(schema)} for name, schema in route.query.items()]
    statuses = [400, 401, 403, 404, 413, 421, 503, *route.refusals]
    refused = {
        str(status): {"description": "refused", "content": {"application/json": {"schema": _REFUSAL}}}
        for status in sorted(dict.fromkeys(statuses))
    }
    media = route.content.value.partition(";")[0]
    schema = {} if route.content is Content.JSON else {"type": "string"}
    answer = {"description": route.summary or "the answer", "content": {media: {"schema": schema}}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "responses": {**refused, str(route.status): answer},
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": dict(route.body)}}}
    return operation
