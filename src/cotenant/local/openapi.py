# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The description of the daemon's HTTP interface (OpenAPI 3.1), generated from the table of routes."""

from collections.abc import Sequence
from typing import Any

import msgspec

from cotenant import __version__
from cotenant.local.endpoint import Endpoint
from cotenant.wire.protocol import Problem


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The description of these routes."""
    types = [one for endpoint in endpoints for one in (endpoint.answers, endpoint.takes) if one is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")
    schema_of = {id(one): schema for one, schema in zip(types, schemas, strict=False)}
    problem = {"description": "Error", "content": {"application/json": {"schema": schemas[-1]}}}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        good: dict[str, Any] = {"description": "Success"}
        if endpoint.answers is not None:
            good["content"] = {"application/json": {"schema": schema_of[id(endpoint.answers)]}}
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": endpoint.handler.__name__,
            "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
            "responses": {str(endpoint.status): good, "default": problem},
        }
        if endpoint.takes is not None:
            body = {"application/json": {"schema": schema_of[id(endpoint.takes)]}}
            operation["requestBody"] = {"required": endpoint.takes_always, "content": body}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "cotenant", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [{"name": name, "in": "query", "schema": {"type": kind}} for name, kind in endpoint.query]
