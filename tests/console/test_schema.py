"""The API keeps to its own description: schemathesis sends what that allows, and what it does not.

Two requests of each kind for each operation; 40 with HOLDMQ_CONSOLE_MORE=1 (`make test-console-more`).
"""

import os
from typing import Any

import hypothesis
import pytest
import redis
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

from holdmq import HoldMQ, Message
from tests.console.support import Api, ConsoleProcess, add_user
from tests.support import embedded_kinds

server_kinds = embedded_kinds

EXAMPLES = 40 if os.environ.get("HOLDMQ_CONSOLE_MORE") == "1" else 2


@pytest.fixture
def described(console: ConsoleProcess, api: Api, client: redis.Redis) -> tuple[Any, dict[str, str]]:
    """The description, and the header of an administrator; there is something of each kind."""
    add_user(client, "root", "admin", "viewer", "payloads")
    hold = HoldMQ(client)
    hold.session("c1").open("owner", expiry=60)
    hold.session("c1").deliver(Message(topic="t", payload=b"x", qos=1))
    hold.history.create("plants", "plant/#", age="1h")
    api.log_in("root")
    made = api.ask("POST", "/tokens", 201, json={"name": "t", "rights": ["view", "admin", "payloads"]})
    headers = {"Authorization": f"Bearer {made['token']}"}
    return schemathesis.openapi.from_url(f"{console.url}/api/v1/openapi.json"), headers


@pytest.mark.timeout(900)  # some thousand requests with HOLDMQ_CONSOLE_MORE
def test_the_api_keeps_to_its_description(described: tuple[Any, dict[str, str]]) -> None:
    schema, headers = described
    asked = 0
    faults = []
    for found in schema.get_all_operations():
        operation = found.ok()
        asked += 1
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            try:
                try_operation(operation.as_strategy(generation_mode=mode), headers)
            except (FailureGroup, AssertionError) as error:
                faults.append(f"{operation.label}: {error!r:.2000}")
            except Unsatisfiable:  # nothing about it can be wrong
                assert mode is schemathesis.GenerationMode.NEGATIVE, operation.label
    assert faults == []
    assert asked >= 40


def try_operation(cases: Any, headers: dict[str, str]) -> None:
    """Sends some cases; each answer has to be described, and wrong input refused."""

    @hypothesis.seed(22)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=cases)
    def send(case: Any) -> None:
        # Topics, rules and cursors have grammars that a schema cannot say: what it allows may be refused.
        case.call_and_validate(headers=headers, timeout=20, excluded_checks=[positive_data_acceptance])

    send()


def test_what_is_described_is_openapi_3_1(api: Api) -> None:
    described = api.http.get("/api/v1/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    for path, operations in described["paths"].items():
        assert path.startswith("/api/v1/")
        for method, operation in operations.items():
            assert operation["summary"], (path, method)
            assert operation["responses"]["default"]["content"].keys() == {"application/problem+json"}
