"""Two sides, A and B, each a backend and a model, over each other and as a difference."""

from __future__ import annotations

from dashboards.queries.golden import FAILED, OUTPUT
from dashboards.queries.promql import Query, quantile, rate
from otel_bridge import catalog


def _side(letter: str) -> dict[str, str]:
    return {"service_name": f'=~"$service_{letter}"', "gen_ai_request_model": f'=~"$model_{letter}"'}


A, B = _side("a"), _side("b")


def _sides(expr_a: str, expr_b: str, *, exemplars: bool = False) -> list[Query]:
    return [Query(expr_a, "A", exemplars=exemplars), Query(expr_b, "B", exemplars=exemplars)]


def _difference(expr_a: str, expr_b: str) -> Query:
    return Query(f"({expr_b}) - ({expr_a})", "B minus A")


def _latency(side: dict[str, str]) -> str:
    return quantile(0.95, catalog.DERIVED_SERVER_DURATION, **side)


def _first_token(side: dict[str, str]) -> str:
    return quantile(0.95, catalog.DERIVED_SERVER_FIRST_TOKEN, **side)


def _tokens(side: dict[str, str]) -> str:
    return rate(catalog.DERIVED_SERVER_TOKENS, "sum", **side, **OUTPUT)


def _errors(side: dict[str, str]) -> str:
    failed = rate(catalog.DERIVED_SPAN_CALLS, **side, **FAILED)
    return f"({failed} or vector(0)) / {rate(catalog.DERIVED_SPAN_CALLS, **side)}"


def _causes(side: dict[str, str]) -> str:
    return rate(catalog.DERIVED_CAUSE_TIME, "sum", (catalog.CAUSE.key,), **side)


LATENCY = _sides(_latency(A), _latency(B), exemplars=True)
LATENCY_DIFFERENCE = _difference(_latency(A), _latency(B))
FIRST_TOKEN = _sides(_first_token(A), _first_token(B), exemplars=True)
FIRST_TOKEN_DIFFERENCE = _difference(_first_token(A), _first_token(B))
TOKENS = _sides(_tokens(A), _tokens(B))
TOKENS_DIFFERENCE = _difference(_tokens(A), _tokens(B))
ERRORS = _sides(_errors(A), _errors(B))
ERRORS_DIFFERENCE = _difference(_errors(A), _errors(B))
HOT_SPOTS = [Query(_causes(A), "A {{cause}}"), Query(_causes(B), "B {{cause}}")]
# A cause that one side alone has is the most telling of all.
HOT_SPOTS_DIFFERENCE = Query(
    f"({_causes(B)} or 0 * {_causes(A)}) - ({_causes(A)} or 0 * {_causes(B)})", "{{cause}}"
)
