import pytest

from instrumented_engine.api.errors import INTERNAL, NOT_FOUND, PROTOCOL, TABLE, ApiError, OverloadError, class_of
from telemetry.layout import API, ERROR_CLASSES


def test_the_table_and_the_slots_are_the_same() -> None:
    assert tuple(error_class.name for error_class in TABLE) == ERROR_CLASSES
    assert {f"errors_{error_class.name}" for error_class in TABLE} <= set(API.slots)


@pytest.mark.parametrize(
    ("status", "name"),
    [(400, "protocol"), (404, "not_found"), (405, "not_found"), (413, "too_large"), (500, "internal"),
     (501, "internal"), (503, "overload"), (504, "timeout")],
)  # fmt: skip
def test_every_status_has_a_class(status: int, name: str) -> None:
    assert class_of(status).name == name


def test_only_what_waiting_helps_says_when_to_come_back() -> None:
    assert OverloadError("waiting", "x").headers() == {"Retry-After": "1"}
    assert ApiError(INTERNAL, "x").headers() == {}
    assert ApiError(PROTOCOL, "x").headers() == {"Connection": "close"}


def test_a_status_of_its_own_is_in_the_body_too() -> None:
    error = ApiError(NOT_FOUND, "x", status=405)
    assert (error.status, error.body()["error"]["code"]) == (405, 405)
