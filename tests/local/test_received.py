"""What a request body lacks is said in a sentence that names the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kant.model.submission import Submission
from kant.service.received import received, refusal


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("gpus", -1, "gpus: expected a number of at least 0"),
        ("gpus", 1e9, "gpus: expected a number of at most 100,000"),
        ("time_s", 0, "time_s: expected a number above 0"),
        ("retries", -1, "retries: expected a whole number of at least 0"),
        ("priority", 10**12, "priority: expected a whole number of at most 1,000,000,000"),
        ("name", "a" * 300, "name: expected text of at most 256 characters"),
        ("gpus", "two", "the request: expected a valid body (Expected `float`, got `str` - at `$.gpus`)"),
    ],
)
def test_a_field_out_of_bounds_is_named_with_its_bound(field: str, value: Any, sentence: str) -> None:
    body = msgspec.json.encode({"command": ["true"], "workdir": "/", field: value})
    with pytest.raises(msgspec.ValidationError) as raised:
        received(body, Submission)
    assert refusal(raised.value) == sentence
