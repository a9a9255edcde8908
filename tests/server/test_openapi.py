"""Requests made from the OpenAPI description: valid ones and broken ones, and never an answer that blames the server."""

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from live_server import MODEL, LiveServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that it imports
    schemathesis = pytest.importorskip("schemathesis")

from draftwood.server.openapi import description

PATHS = sorted(description()["paths"])


def run(server: LiveServer, path: str, examples: int) -> set[int]:
    """The statuses of so many made-up requests to one path."""
    from schemathesis import GenerationMode, checks
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

    raw = description()
    for each in raw["paths"].values():
        for operation in each.values():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            properties = body.get("properties", {})
            if "model" in properties:
                properties["model"] = {"type": "string", "enum": [MODEL]}
            if "max_tokens" in properties:  # so that no answer takes long
                body["required"] = [*body["required"], "max_tokens"]
                properties["max_tokens"] = {"type": "integer", "minimum": 1, "maximum": 3}
    schema = schemathesis.openapi.from_dict(raw)
    statuses: set[int] = set()
    wanted = (checks.not_a_server_error, content_type_conformance, response_schema_conformance)
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path != path:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and operation.method.upper() == "GET":
                continue
            strategy = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            )
            @_given(strategy)
            def one(case: Any) -> None:
                response = case.call(base_url=server.url, timeout=30)
                case.validate_response(response, checks=wanted)
                assert response.status_code < 500, response.text
                statuses.add(response.status_code)

            one()
    return statuses


def _given(strategy: Any) -> Any:
    from hypothesis import given

    return given(case=strategy)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_made_up_requests_are_answered_or_refused(server: LiveServer, path: str) -> None:
    assert run(server, path, 5) <= {200, 400, 404, 415}
    assert server.idle()


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_many_made_up_requests_are_answered_or_refused(server: LiveServer, path: str) -> None:
    assert run(server, path, 300) <= {200, 400, 404, 415}
    assert server.idle()
