"""The exceptions mirror the error codes of the command reference."""

import re
from pathlib import Path

import pytest
import redis
import valkey

from holdmq import CommandError, FencedError, InvalidTopicError, ModuleMissingError, errors
from holdmq.errors import ERRORS, translate, translation

OF_THE_SERVER = "NOPERM"
"""Has a row of its own, and stays what redis-py makes of it."""
REFERENCE = Path(__file__).parents[2] / "docs" / "commands" / "index.md"


def documented_codes() -> list[str]:
    """The codes of HoldMQ's own in the table of errors; most of the server's stand together in the last row."""
    section = REFERENCE.read_text().split("## Errors", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([A-Z]+)` \|", section, re.MULTILINE)


def test_there_is_one_exception_for_each_documented_code() -> None:
    assert sorted([*ERRORS, OF_THE_SERVER]) == sorted(documented_codes())
    assert type(translate(redis.exceptions.NoPermissionError("no"))) is redis.exceptions.NoPermissionError
    for code, error in ERRORS.items():
        assert error.code == code
        assert issubclass(error, redis.ResponseError)


@pytest.mark.parametrize("library", [redis, valkey])
@pytest.mark.parametrize("code", [code for code in ERRORS if code != "ERR"])
def test_a_code_becomes_its_class(library: object, code: str) -> None:
    refused: type[Exception] = library.ResponseError  # type: ignore[attr-defined]
    error = translate(refused(f"{code} something was wrong"))
    assert type(error).__name__ == ERRORS[code].__name__
    assert isinstance(error, ERRORS[code])
    assert isinstance(error, refused)
    assert str(error) == f"{code} something was wrong"


def test_a_text_without_a_code_is_a_plain_refusal() -> None:
    error = translate(redis.ResponseError("QOS is 3: 0, 1 or 2 expected"))
    assert type(error) is CommandError


def test_an_unknown_command_means_that_the_module_is_missing() -> None:
    error = translate(redis.ResponseError("unknown command 'SESSION.ADD', with args beginning with: '{a}' "))
    assert type(error) is ModuleMissingError
    other = translate(redis.ResponseError("unknown command 'FLY', with args beginning with: "))
    assert type(other) is CommandError


@pytest.mark.parametrize(
    "error", [redis.exceptions.NoPermissionError("x"), redis.ConnectionError("x"), ValueError("x")]
)
def test_keys_of_others_stay_as_they_are(error: Exception) -> None:
    assert translate(error) is error
    with pytest.raises(type(error)) as caught, translation(redis.Redis()):
        raise error
    assert caught.value is error


def test_a_translated_error_keeps_its_cause() -> None:
    cause = redis.ResponseError("FENCED the session has a newer owner")
    with pytest.raises(FencedError) as caught, translation(redis.Redis()):
        raise cause
    assert caught.value.__cause__ is cause


def test_an_invalid_topic_is_an_error_of_either_side() -> None:
    assert issubclass(InvalidTopicError, redis.ResponseError)
    assert issubclass(InvalidTopicError, redis.DataError)
    assert issubclass(InvalidTopicError, ValueError)


def test_every_error_is_public() -> None:
    assert {error.__name__ for error in ERRORS.values()} <= set(errors.__all__)
