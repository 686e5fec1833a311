"""Errors are sorted by who must act: what a rollout loop catches depends on it."""

import pytest

from excise import errors


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (errors.Unsupported, {errors.SpecError}),
        (errors.CapacityError, {errors.SubstrateError}),
        (errors.CreateError, {errors.SubstrateError}),
        (errors.ReadyTimeout, {errors.SubstrateError}),
        (errors.SandboxLost, set()),
        (errors.SpecError, {errors.SpecError}),
    ],
)
def test_an_error_says_who_must_act_and_nobody_else(error: type[Exception], kinds: set[type[Exception]]) -> None:
    sorts = {errors.SpecError, errors.SubstrateError}
    assert issubclass(error, errors.ExciseError)
    assert {sort for sort in sorts if issubclass(error, sort)} == kinds


def test_a_lost_sandbox_is_never_taken_for_a_timeout_or_a_file_error() -> None:
    assert not issubclass(errors.SandboxLost, OSError | TimeoutError)
