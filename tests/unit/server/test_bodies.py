"""A body that says something nobody reads is refused: nothing is ever ignored."""

from typing import Any

import msgspec
import pytest

from excise.action import Action
from excise.server.bodies import CreateBody, unknown


@pytest.mark.parametrize(
    ("type_", "given", "where"),
    [
        (CreateBody, {"spec": {"image": "host", "env": {"ANY": "name"}}, "labels": {"any": "name"}}, None),
        (CreateBody, {"spec": {"imagé": "host"}}, "$.spec.imagé"),
        (CreateBody, {"spec": {"limits": {"memory": 1}}}, "$.spec.limits.memory"),
        (Action, {"action": "batch", "actions": [{"action": "list", "path": "/"}]}, None),
        (
            Action,
            {"action": "batch", "actions": [{"action": "list", "path": "/"}, {"action": "read", "path": "/", "at": 1}]},
            "$.actions[1].at",
        ),
    ],
)
def test_a_name_that_is_nowhere_is_found(type_: Any, given: dict[str, Any], where: str | None) -> None:
    assert unknown(given, msgspec.to_builtins(msgspec.convert(given, type_))) == where
