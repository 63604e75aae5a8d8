"""How requests that are not taken are answered, by every listener but OTLP's."""

from __future__ import annotations

import json

import pytest

from otel_bridge.errors import MalformedRequestError, RequestTooLargeError, UnauthenticatedError
from otel_bridge.listeners.answers import problem, refused


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnauthenticatedError("who?"), 401),
        (RequestTooLargeError("too much"), 413),
        (MalformedRequestError("what?"), 400),
        (ValueError("no"), 400),
    ],
    ids=lambda one: getattr(one, "args", one),
)
def test_a_refusal_says_why(error, status):
    """Its text in JSON; who is not known is told what would make them known."""
    answer = refused(error)
    assert (answer.status, answer.content_type) == (status, "application/json")
    assert json.loads(answer.text) == {"error": str(error)}
    assert answer.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)


def test_any_status_may_be_said():
    """Without a challenge where nobody is asked for credentials."""
    answer = problem(404, "there is none")
    assert answer.status == 404
    assert "WWW-Authenticate" not in answer.headers
