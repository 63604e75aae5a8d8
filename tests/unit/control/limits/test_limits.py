"""Rate limits behind the decision: whom they concern, what they take, what spans give back."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from otel_bridge import catalog
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.http_decisions import refusal
from otel_bridge.control.limits.claims import sizes_of
from otel_bridge.errors import ConfigError
from otel_bridge.settings import load
from tests.support.limits import Limited, trace

PER_USER = {"per-user": {"by": ["user"], "amount": 3, "per": "60s"}}
TOKENS = {"tokens": {"by": ["user"], "unit": "tokens", "amount": 6000, "per": "60s", "burst": 1000}}


def test_each_user_has_a_bucket():
    """The fourth request waits; another user's does not."""
    bridge = Limited(PER_USER)
    assert bridge.passes(3, user="alice") == 3
    decision = bridge.ask(user="alice")
    assert (decision.allow, decision.limit, decision.result) == (False, "per-user", "limited")
    assert decision.retry_after == pytest.approx(20)
    headers = decision.headers()
    assert (headers["Retry-After"], headers["X-Retry-After"]) == ("20", "20000")
    assert headers["X-Otel-Bridge-Limit"] == "per-user"
    assert headers["X-Otel-Bridge-State"] == "closed"
    assert bridge.ask(user="bob").allow
    assert bridge.count(catalog.LIMIT_DECISIONS, limit="per-user", result="allowed") == 4
    assert bridge.count(catalog.LIMIT_DECISIONS, limit="per-user", result="refused") == 1


async def test_who_waits_as_told_passes():
    """And not a moment earlier."""
    bridge = Limited(PER_USER)
    bridge.passes(3, user="alice")
    wait = bridge.ask(user="alice").retry_after
    await bridge.world.clock.advance(wait - 0.001)
    assert not bridge.ask(user="alice").allow
    await bridge.world.clock.advance(0.001)
    assert bridge.ask(user="alice").allow


def test_waits_are_spread():
    """Those who were refused together do not come back together."""
    bridge = Limited(PER_USER)
    bridge.passes(3, user="alice")
    draws = iter(number / 10 for number in range(10))
    bridge.limiter._draw = lambda: next(draws)
    waits = [bridge.ask(user="alice").retry_after for _ in range(10)]
    assert waits == sorted(set(waits))
    assert min(waits) >= 20
    assert max(waits) <= 24


def test_the_answer_that_stands_for_the_request():
    """429, the limit by name, and the wait; nothing of the user."""
    bridge = Limited(PER_USER)
    bridge.passes(3, user="alice@example.org", service="llama")
    status, content_type, body = refusal(bridge.ask(user="alice@example.org", service="llama"))
    assert (status, content_type) == (429, "application/json")
    assert orjson.loads(body) == {
        "error": {
            "type": "rate_limit",
            "message": "limit per-user: 3 requests in 60 s",
            "retry_after_ms": 20000,
        }
    }


def test_by_api_key_model_version_and_request_type():
    """Each combination by itself."""
    by = ["api_key", "model", "version", "request_type"]
    bridge = Limited({"fine": {"by": by, "amount": 1}})
    base = {"api_key": "sk-1", "model": "8b", "version": "2", "request_type": "chat"}
    others = {"api_key": "sk-2", "model": "70b", "version": "3", "request_type": "embeddings"}
    assert bridge.passes(2, **base) == 1
    for name, value in others.items():
        assert bridge.passes(2, **{**base, name: value}) == 1, name


def test_one_bucket_for_all():
    """`by` nothing."""
    bridge = Limited({"all": {"by": [], "amount": 2}})
    assert [bridge.ask(user=user).allow for user in "abc"] == [True, True, False]


def test_only_what_matches():
    """Patterns, all of them; others are free."""
    bridge = Limited(
        {"big": {"by": ["user"], "amount": 1, "match": {"model": "llama-*", "request_type": "chat"}}}
    )
    assert bridge.passes(3, user="a", model="llama-70b", request_type="chat") == 1
    assert bridge.passes(3, user="a", model="llama-70b", request_type="embeddings") == 3
    assert bridge.passes(3, user="a", model="qwen", request_type="chat") == 3


@pytest.mark.parametrize(("nameless", "passed"), [("shared", 3), ("skip", 10)])
def test_requests_that_name_nobody(nameless, passed):
    """They share a bucket, since leaving a header out is no way round; or have none, where that is meant."""
    bridge = Limited({"per-user": {**PER_USER["per-user"], "nameless": nameless}})
    assert bridge.passes(10) == passed


def test_all_limits_or_none_are_taken_from():
    """A request that one limit refuses costs the others nothing."""
    bridge = Limited({"user": {"by": ["user"], "amount": 1}, "model": {"by": ["model"], "amount": 5}})
    assert bridge.passes(4, user="alice", model="8b") == 1
    assert bridge.level("model") == 4
    assert [bridge.ask(user=user, model="8b").allow for user in "bcdef"] == [True] * 4 + [False]


def test_a_limit_that_only_looks_on():
    """It refuses nothing, takes what there is, and counts."""
    bridge = Limited({"trial": {**PER_USER["per-user"], "dry_run": True}})
    assert bridge.passes(5, user="alice") == 5
    assert bridge.count(catalog.LIMIT_DECISIONS, limit="trial", result="allowed") == 3
    assert bridge.count(catalog.LIMIT_DECISIONS, limit="trial", result="would_refuse") == 2


def test_a_request_larger_than_the_bucket_is_refused_for_good():
    """At once, with a reason, and without a wait that never helps (cases.md rl-bucket d)."""
    bridge = Limited({"tokens": {"by": [], "unit": "tokens", "amount": 666}})
    decision = bridge.ask(prompt_len=1600, max_tokens=400)
    assert not decision.allow
    assert "taken for 800 tokens" in decision.reason
    assert "never admits more than 666" in decision.reason
    assert "Retry-After" not in decision.headers()
    assert bridge.count(catalog.LIMIT_DECISIONS, limit="tokens", result="too_large") == 1
    assert bridge.ask(prompt_len=1000, max_tokens=400).allow
    look = Limited({"tokens": {"by": [], "unit": "tokens", "amount": 666, "dry_run": True}})
    assert look.ask(prompt_len=1600, max_tokens=400).allow


# Tokens


def test_tokens_are_reserved_and_settled():
    """By prompt length and max_tokens, then by what the span says."""
    bridge = Limited(TOKENS)
    assert bridge.ask(trace(1), user="alice", prompt_len=1200, max_tokens=500).allow
    assert bridge.level("tokens") == 200
    assert not bridge.ask(trace(2), user="alice", prompt_len=1200, max_tokens=500).allow
    bridge.used(trace(1), 350)
    assert bridge.level("tokens") == 650
    assert bridge.count(catalog.LIMIT_TOKENS, limit="tokens", kind="reserved") == 800
    assert bridge.count(catalog.LIMIT_TOKENS, limit="tokens", kind="returned") == 450
    assert bridge.limiter.local.open_reservations == 0


def test_more_than_reserved_is_owed():
    """The next request waits until it is paid."""
    bridge = Limited(TOKENS)
    bridge.ask(trace(1), user="alice", prompt_len=400, max_tokens=0)
    bridge.used(trace(1), 1600)
    assert bridge.level("tokens") == -600
    assert bridge.ask(trace(2), user="alice", prompt_len=400, max_tokens=0).retry_after == pytest.approx(7)
    assert bridge.count(catalog.LIMIT_TOKENS, limit="tokens", kind="overrun") == 1500


def test_without_sizes_a_request_is_taken_for_the_estimate():
    """Numbers that are none count as not told."""
    bridge = Limited(TOKENS, limits={"estimate": {"prompt_tokens": 30, "max_tokens": 70}})
    for size in ("", "-5", "1e3", "٣", "9" * 16, "12 "):
        assert bridge.ask(user=f"u{size}", prompt_len=size, max_tokens=size).allow
        assert bridge.level("tokens") == 900


@pytest.mark.parametrize("tokens", [-1.0, float("inf"), float("nan"), 1e12])
def test_tokens_that_are_not_believed(tokens):
    """The reservation stays, and it is counted."""
    bridge = Limited(TOKENS)
    bridge.ask(trace(1), user="alice", prompt_len=400, max_tokens=0)
    bridge.used(trace(1), tokens)
    assert bridge.level("tokens") == 900
    assert bridge.count(catalog.LIMIT_SETTLEMENTS, outcome="implausible") == 1


async def test_a_span_of_an_earlier_call_settles_no_later_one():
    """An agent's trace has many calls: in order, each by its own span."""
    bridge = Limited(TOKENS)
    bridge.ask(trace(1), user="alice", prompt_len=400, max_tokens=0)
    bridge.used(trace(1), 50)
    await bridge.world.clock.advance(1)
    end = bridge.world.clock.time_ns()
    await bridge.world.clock.advance(1)
    bridge.ask(trace(1), user="alice", prompt_len=400, max_tokens=0)
    bridge.limiter.settle(trace(1), 1, end)  # once more of the first, from another side
    assert bridge.count(catalog.LIMIT_SETTLEMENTS, outcome="unreserved") == 1
    bridge.used(trace(1), 70)
    assert bridge.count(catalog.LIMIT_SETTLEMENTS, outcome="settled") == 2


async def test_a_reservation_that_nobody_settles_costs_what_it_reserved():
    """And is forgotten in time."""
    bridge = Limited(TOKENS, limits={"settle_within": "30s"})
    bridge.ask(trace(1), user="alice", prompt_len=1200, max_tokens=500)
    await bridge.world.clock.advance(31)
    bridge.limiter.tick()
    assert bridge.limiter.local.open_reservations == 0
    assert bridge.count(catalog.LIMIT_SETTLEMENTS, outcome="expired") == 1
    bridge.used(trace(1), 1)
    assert bridge.count(catalog.LIMIT_SETTLEMENTS, outcome="unreserved") == 1


def test_a_trace_that_asks_for_ever_reserves_no_memory():
    """A client may send one traceparent for all its requests."""
    bridge = Limited({"tokens": {"by": [], "unit": "tokens", "amount": 1e9}})
    assert bridge.passes(500, trace=trace(1), prompt_len=4) == 500
    assert bridge.limiter.local.open_reservations == 100


def test_a_breaker_s_refusal_costs_nothing():
    """Limits are asked only for what a breaker lets through."""
    bridge = Limited({"service": {"by": ["service"], "amount": 5}})
    bridge.world.calls("llama/8b", *[3.0] * 5)
    assert bridge.ask(service="llama", model="8b").result == "refused"
    assert bridge.ask(service="llama", model="70b").allow
    assert bridge.level("service") == 4


async def test_a_request_that_a_limit_refuses_is_no_probe():
    """Its permit goes to the next one."""
    bridge = Limited({"per-user": {"by": ["user"], "amount": 1, "per": "1h"}})
    bridge.world.calls("llama/8b", *[3.0] * 5)
    assert bridge.ask(user="alice").allow
    await bridge.world.pass_time(60.001)
    for number in range(20):
        assert bridge.ask(trace(number), user="alice", service="llama", model="8b").result == "limited"
    assert not bridge.world.record("llama/8b").permits
    assert [
        bridge.ask(trace(number), user=f"u{number}", service="llama", model="8b").result
        for number in range(6)
    ] == ["probe"] * 5 + ["refused"]


# Memory and secrets


def test_users_and_keys_are_kept_as_digests():
    """In buckets, in what operators see, in metrics; and with a key of one's own they cannot be guessed."""
    rules = {"both": {"by": ["user", "api_key", "model"], "amount": 5}}
    seen = []
    for limits in ({}, {"digest_key": "a secret of our own"}):
        bridge = Limited(rules, limits=limits)
        bridge.ask(user="alice@example.org", api_key="sk-secret", model="8b")
        described = orjson.dumps(bridge.limiter.describe(10)).decode()
        assert "alice" not in described
        assert "sk-secret" not in described
        assert "model=8b" in described
        seen.append(bridge.limiter.describe(10)["limits"][0]["emptiest"][0]["bucket"])
    assert seen[0] != seen[1]


@pytest.mark.parametrize("name", ["user", "service", "model"])
@pytest.mark.parametrize(
    "value", ["../../etc", "$(reboot)", "a" * 10_000, "\x00\n\r", "a,user=b", "(others)", "{x}"]
)
def test_names_are_data(name, value):
    """Bounded, one spelling each, nothing that means something elsewhere."""
    bridge = Limited({"one": {"by": [name, "version"], "amount": 1}})
    assert bridge.ask(**{name: value, "version": "b"}).allow
    (found,) = bridge.limiter.describe(10)["limits"][0]["emptiest"]
    assert len(found["bucket"]) < 300
    assert found["bucket"].isprintable()
    assert found["bucket"].count(",") == 1
    assert not set(found["bucket"]) & set("(){} /$")


async def test_idle_buckets_go():
    """Those that are full again; others stay."""
    bridge = Limited(PER_USER)
    for number in range(2000):
        bridge.ask(user=f"user {number}")
    await bridge.world.clock.advance(19)
    bridge.ask(user="late")
    bridge.limiter.tick()
    assert bridge.count(catalog.LIMIT_BUCKETS, limit="per-user") == 2001
    for _ in range(3):
        await bridge.world.clock.advance(1)
        bridge.limiter.tick()
    assert bridge.count(catalog.LIMIT_BUCKETS, limit="per-user") == 1


def test_newcomers_share_a_bucket_when_there_is_no_room(capsys):
    """A flood of invented users neither fills the memory nor gets round the limit, and it is said once."""
    bridge = Limited(PER_USER, limits={"max_buckets": 100})
    passed = sum(bridge.passes(3, user=f"user {number}") for number in range(5000))
    assert passed == 100 * 3 + 3
    assert bridge.limiter.local.count(bridge.limiter.limits[0]) == 101
    assert bridge.count(catalog.LIMIT_OVERFLOWS, limit="per-user") == 4900 * 3
    assert capsys.readouterr().out.count("max_buckets") == 1


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alice", "bob", "carol"]),
            st.integers(0, 2000),
            st.floats(0, 20),
            st.floats(0, 1),
        ),
        max_size=40,
    ),
    st.randoms(),
)
async def test_no_user_gets_more_than_its_share(requests, random):
    """Requests and tokens at once, spans in any order, some never: never above capacity + rate x time."""
    bridge = Limited(
        {**PER_USER, **TOKENS, "all": {"by": [], "unit": "tokens", "amount": 12_000, "burst": 1500}}
    )
    begin = bridge.world.clock.monotonic()
    spent = {user: [0, 0.0] for user in ("alice", "bob", "carol")}
    waiting = []
    for number, (user, size, pause, share) in enumerate(requests):
        if bridge.ask(trace(number), user=user, prompt_len=size, max_tokens=100).allow:
            waiting.append((trace(number), user, size, share))
            spent[user][0] += 1
        await bridge.world.clock.advance(pause)
        while waiting and random.random() < 0.5:
            found, who, length, part = waiting.pop(random.randrange(len(waiting)))
            used = (length / 4 + 100) * part
            bridge.used(found, used)
            spent[who][1] += used
        elapsed = bridge.world.clock.monotonic() - begin
        for count, tokens in spent.values():
            assert count <= 3 + elapsed / 20 + 1e-6
            assert tokens <= 1000 + elapsed * 100 + 1e-6
        assert sum(tokens for _, tokens in spent.values()) <= 1500 + elapsed * 200 + 1e-6


# Sizes and configuration


@pytest.mark.parametrize(
    ("body", "size", "found"),
    [
        (b"", -1, {}),
        (b"", 0, {}),
        (b"", 4000, {"prompt_len": "4000"}),
        (b'{"max_tokens": 7}', 17, {"prompt_len": "17", "max_tokens": "7"}),
        (b'{"max_completion_tokens": 5, "max_tokens": 7}', -1, {"prompt_len": "45", "max_tokens": "5"}),
        (b'{"max_tokens": true}', -1, {"prompt_len": "20"}),
        (b'{"max_tokens": -7}', -1, {"prompt_len": "18"}),
        (b'{"max_tokens": "7"}', -1, {"prompt_len": "19"}),
        (b'{"prompt": "cut of', 9000, {"prompt_len": "9000"}),
        (b"[" * 100_000, -1, {"prompt_len": "100000"}),
        (b"\xff\xfe", -1, {"prompt_len": "2"}),
        (b"7", -1, {"prompt_len": "1"}),
    ],
)
def test_what_a_body_says_of_its_size(body, size, found):
    """Of one that is cut or no JSON only its length."""
    assert sizes_of(body, size) == found


def test_a_question_s_body_may_have_numbers_for_sizes():
    """And for nothing else."""
    bridge = Limited(TOKENS)
    body = orjson.dumps({"user": "alice", "prompt_len": 400, "max_tokens": 50})
    assert bridge.questions.ask({}, body=body).claim.draws[0].amount == 150


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"by": ["user"]}, "amount"),
        ({"by": ["user"], "amount": 0}, "greater than 0"),
        ({"by": ["usr"], "amount": 1}, "usr"),
        ({"by": ["user", "user"], "amount": 1}, "each field once"),
        ({"by": ["user"], "amount": 0.5}, "never admits a request"),
        ({"by": [], "amount": 1, "match": {"api_key": "sk-*"}}, "secret"),
        ({"by": [], "amount": 1, "per": "0s"}, "greater than 0"),
    ],
)
def test_bad_configuration(rule, says):
    """Said when it is read."""
    with pytest.raises(ValidationError, match=says):
        ControlConfig.model_validate({"limits": {"rules": {"one": rule}}})


def test_a_misspelt_key_gets_its_nearest(tmp_path):
    """With its key path, as all of the configuration does."""
    path = tmp_path / "bridge.yaml"
    path.write_text("control: {limits: {rules: {one: {by: [user], amount: 3, bursts: 5}}}}")
    with pytest.raises(ConfigError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert (problem.path, problem.expected) == ("control.limits.rules.one.bursts", "'burst'")


def test_the_digests_key_never_prints():
    """As every secret."""
    config = ControlConfig.model_validate({"limits": {"digest_key": "a secret of our own"}})
    assert "secret of" not in repr(config) + str(config) + config.model_dump_json()


async def test_a_probe_under_way_keeps_its_permit():
    """A further hop of its trace that a limit refuses takes nothing from it."""
    bridge = Limited({"per-user": {"by": ["user"], "amount": 2, "per": "1h"}})
    bridge.world.calls("llama/8b", *[3.0] * 5)
    await bridge.world.pass_time(60.001)
    target = {"user": "alice", "service": "llama", "model": "8b"}
    assert [bridge.ask(trace(1), **target).result for _ in range(4)] == [
        "probe",
        "probe",
        "limited",
        "limited",
    ]
    assert list(bridge.world.record("llama/8b").permits) == [trace(1)]
