"""What users write under `control`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from otel_bridge import catalog
from otel_bridge.control.actions.config import ActionsConfig
from otel_bridge.control.limits.config import LimitsConfig
from otel_bridge.control.machine import Rules
from otel_bridge.control.patterns import compile_pattern
from otel_bridge.listeners.config import AuthConfig, GrpcTlsConfig, TlsConfig
from otel_bridge.targets import FIELDS, matches
from otel_bridge.units import ByteSize, Duration, Endpoint, EndpointText

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20

PositiveDuration = Annotated[Duration, Field(gt=0)]
Ratio = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
FieldName = Literal["service", "model", "version", "tenant"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# Targets


class FieldConfig(_Model):
    """Where one part of a target's name comes from."""

    attributes: tuple[str, ...] = Field(
        (), description="Attribute keys of spans or their resources; the first that has a value."
    )
    header: str = Field(
        description="The request header that tells it to the decision API. A gateway sets it, or drops "
        "what a client sent."
    )


def _default_fields() -> dict[FieldName, FieldConfig]:
    return {
        "service": FieldConfig(attributes=("service.name",), header="x-otel-bridge-service"),
        "model": FieldConfig(
            attributes=("gen_ai.request.model", "llm.model.id", "gen_ai.response.model"),
            header="x-otel-bridge-model",
        ),
        "version": FieldConfig(attributes=("service.version",), header="x-otel-bridge-version"),
        "tenant": FieldConfig(attributes=("tenant.id",), header="x-otel-bridge-tenant"),
    }


class TargetsConfig(_Model):
    """What has a breaker of its own."""

    key: tuple[FieldName, ...] = Field(
        ("service", "model"),
        min_length=1,
        description='Parts of a target\'s name, a beginning of service, model, version, tenant. "llama/8b" '
        'is the model 8b of the service llama; a breaker of "llama" governs all its models.',
    )
    fields: dict[FieldName, FieldConfig] = Field(
        default_factory=dict, description="Where parts come from, if not from the usual places."
    )
    allowed: tuple[str, ...] = Field(
        ("*",), description="Patterns of the targets that may have a breaker; all others are let alone."
    )
    max_targets: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1000,
        description="Breakers at most. The one that was idle for longest makes room; while all are open, "
        "there is none for a new target.",
    )

    @field_validator("key")
    @classmethod
    def _in_order(cls, value: tuple[FieldName, ...]) -> tuple[FieldName, ...]:
        if value != FIELDS[: len(value)]:
            raise ValueError(f"the parts are a beginning of {', '.join(FIELDS)}, in this order")
        return value

    def field(self, name: FieldName) -> FieldConfig:
        """Where one part comes from."""
        return self.fields.get(name) or _default_fields()[name]


# Policies


class SlowCallsConfig(_Model):
    """Calls that take too long."""

    threshold: PositiveDuration = Field(2.0, description="A call that takes longer is slow.")
    consecutive: Count | None = Field(5, description="So many slow calls in a row trip; null: they do not.")
    rate: Ratio | None = Field(
        None, description="A larger share of slow calls in the window trips; null: it does not."
    )


class ErrorsConfig(_Model):
    """Calls that fail."""

    rate: Ratio | None = Field(
        0.5, description="A larger share of failed calls in the window trips; null: it does not."
    )


class TimeoutsConfig(_Model):
    """Calls that outlast their caller's patience."""

    threshold: PositiveDuration = Field(
        0.08, description="A call that takes longer has timed out, whatever its status."
    )
    consecutive: Count = Field(3, description="So many in a row trip.")


class WindowConfig(_Model):
    """Over which calls rates are reckoned."""

    type: Literal["time", "count"] = "time"
    duration: PositiveDuration = Field(60.0, description="time: the calls of the last so many seconds.")
    calls: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        100, description="count: the last so many calls."
    )
    minimum_calls: Count = Field(10, description="With fewer calls in the window no rate is reckoned.")

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.type == "count" and self.minimum_calls > self.calls:
            raise ValueError("minimum_calls must not be more than calls, or no rate is ever reckoned")
        return self


class ReadingConfig(_Model):
    """A gauge that must not stay high."""

    metric: str = Field(catalog.GPU_MEMORY_USED_RATIO.name, description="Its name, as on /metrics.")
    labels: dict[str, str] = Field(
        default_factory=dict, description="Only series with these label values; shell-style patterns."
    )
    above: float = Field(0.95, description="The limit, in the metric's unit.")
    duration: Duration = Field(30.0, description="Above the limit for so long trips.")
    stale_after: PositiveDuration = Field(
        10.0, description="A silence longer than this begins the duration anew."
    )


class HalfOpenConfig(_Model):
    """How a breaker finds out whether the service is well again."""

    probes: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="So many requests are let through; all must pass, one that fails opens again."
    )
    probe_timeout: PositiveDuration = Field(
        30.0, description="A probe of which no span came by then gives its permit back."
    )
    max_lost: Count = Field(
        10,
        description="After so many probes without a span the breaker opens again; it closes where no span of "
        "the target was ever seen, since nobody can judge probes there.",
    )


class PolicyConfig(_Model):
    """How breakers behave."""

    targets: tuple[str, ...] = Field(
        ("*",),
        min_length=1,
        description="Patterns of the targets it is for; the first policy that fits counts.",
    )
    mode: Literal["auto", "observe"] = Field(
        "auto", description="observe: everything is decided and recorded, and no request is ever refused."
    )
    slow_calls: SlowCallsConfig = SlowCallsConfig()
    errors: ErrorsConfig = ErrorsConfig()
    timeouts: TimeoutsConfig | None = Field(None, description="null: no call counts as timed out.")
    window: WindowConfig = WindowConfig()
    readings: tuple[ReadingConfig, ...] = Field(
        (ReadingConfig(),), description="GPU memory above 95 % for 30 s, unless set otherwise."
    )
    open_time: PositiveDuration = Field(60.0, description="How long an open lasts that no alert holds.")
    half_open: HalfOpenConfig = HalfOpenConfig()
    on_resolve: Literal["half_open", "close"] = Field(
        "half_open", description="What follows when the last alert that holds the breaker open resolves."
    )
    fallback: str | None = Field(
        None,
        description="The response under decisions.fallbacks that refused requests get instead of the 429.",
    )

    def rules(self) -> Rules:
        """What the state machine needs of it."""
        return Rules(
            open_time=self.open_time,
            probes=self.half_open.probes,
            probe_timeout=self.half_open.probe_timeout,
            most_lost=self.half_open.max_lost,
            on_resolve=self.on_resolve,
        )


class SpansConfig(_Model):
    """Which spans tell of calls."""

    enabled: bool = Field(True, description="Whether spans trip breakers and judge probes.")
    kinds: tuple[Literal["server", "client", "internal", "consumer", "producer"], ...] = Field(
        ("server",), min_length=1, description="Span kinds; of nested ones in a request the outermost counts."
    )
    ignored_statuses: tuple[int, ...] = Field(
        (429, 499), description="HTTP statuses of calls that say nothing: refused, or left by their client."
    )


# Strategies

BUCKETS = 100
StrategyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class StrategyConfig(_Model):
    """A way to serve requests that only a share of them takes."""

    name: StrategyName
    buckets: tuple[Annotated[int, Field(ge=0, lt=BUCKETS)], Annotated[int, Field(ge=0, lt=BUCKETS)]] = Field(
        description="The first and the last of its buckets, of the hundred (0 to 99) that traces fall into."
    )

    @field_validator("buckets")
    @classmethod
    def _in_order(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise ValueError(f"found {value[0]} to {value[1]}: the first bucket comes first")
        return value


def _default_shares() -> tuple[StrategyConfig, ...]:
    return (
        StrategyConfig(name="grey-a", buckets=(0, 4)),
        StrategyConfig(name="circuit-test", buckets=(5, 9)),
    )


class StrategiesConfig(_Model):
    """By which strategy each request is served, told from its trace id."""

    enabled: bool = Field(False, description="Whether gateways are told a strategy, and calls counted by it.")
    shares: tuple[StrategyConfig, ...] = Field(
        default_factory=_default_shares, description="Those that own buckets."
    )
    rest: StrategyName = Field("production", description="The strategy of all other buckets.")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        names = [*(share.name for share in self.shares), self.rest]
        if len(set(names)) < len(names):
            raise ValueError(f"each strategy has a name of its own; found {', '.join(names)}")
        owner: dict[int, str] = {}
        for share in self.shares:
            for bucket in range(share.buckets[0], share.buckets[1] + 1):
                if bucket in owner:
                    raise ValueError(f"bucket {bucket} belongs to {owner[bucket]} and to {share.name}")
                owner[bucket] = share.name
        return self


# Ways in


class ListenerConfig(_Model):
    """Where something is served over HTTP."""

    tls: TlsConfig | None = Field(None, description="null speaks plaintext.")
    auth: AuthConfig | None = Field(None, description="Who may ask; null lets everybody in.")
    insecure: bool = Field(
        False,
        description="Allow an address that other machines reach without TLS, or without authentication.",
    )
    max_request_size: Annotated[ByteSize, Field(gt=0)] = Field(MIB, description="The largest body, in bytes.")
    read_timeout: PositiveDuration = Field(10.0, description="How long a client may take to send a request.")
    idle_timeout: PositiveDuration = Field(
        120.0, description="A connection without requests for so long is closed."
    )


def _require_protection(endpoint: Endpoint, listener: ListenerConfig | GrpcDecisionsConfig) -> None:
    if endpoint.loopback or listener.insecure:
        return
    tls, auth = listener.tls, listener.auth
    if tls is None or (auth is None and tls.client_ca_file is None):
        raise ValueError(
            f"{endpoint} is reached by other machines: set tls, and auth or tls.client_ca_file; or listen on "
            "127.0.0.1; or set insecure: true if the network is trusted"
        )


class HttpDecisionsConfig(ListenerConfig):
    """The decision API over HTTP: plain JSON, Envoy, nginx, Traefik, Caddy."""

    enabled: bool = True
    endpoint: EndpointText = Field(Endpoint("127.0.0.1", 9465), description="Where to listen.")
    process: Literal["shared", "own"] = Field(
        "shared",
        description="own: a process of its own answers, so that spans never keep a decision waiting; it "
        "takes some 60 MB. Permits for probes, and rate limits, are still the bridge's to give.",
    )

    @model_validator(mode="after")
    def _protected(self) -> Self:
        _require_protection(self.endpoint, self)
        return self


class GrpcDecisionsConfig(_Model):
    """The decision API as Envoy's ext_authz over gRPC."""

    enabled: bool = False
    endpoint: EndpointText = Field(Endpoint("127.0.0.1", 9466), description="Where to listen.")
    tls: GrpcTlsConfig | None = Field(None, description="null speaks plaintext.")
    auth: AuthConfig | None = Field(None, description="Who may ask; null lets everybody in.")
    insecure: bool = Field(
        False,
        description="Allow an address that other machines reach without TLS, or without authentication.",
    )

    @model_validator(mode="after")
    def _protected(self) -> Self:
        _require_protection(self.endpoint, self)
        return self


class FallbackConfig(_Model):
    """A response that stands for the refused one, such as a smaller model's apology."""

    status: Annotated[int, Field(ge=200, le=599)] = 200
    content_type: str = "application/json"
    body: str = ""


class DecisionsConfig(_Model):
    """What gateways ask before they let a request through."""

    http: HttpDecisionsConfig = HttpDecisionsConfig()
    grpc: GrpcDecisionsConfig = GrpcDecisionsConfig()
    fallbacks: dict[str, FallbackConfig] = Field(
        default_factory=dict, description="Responses by the name that a policy's `fallback` gives."
    )


class BasicUser(_Model):
    """One user of HTTP's basic authentication."""

    username: str = Field(min_length=1)
    password: SecretStr = Field(min_length=1)


class RouteConfig(_Model):
    """Which alerts trip which target."""

    match: dict[str, str] = Field(
        default_factory=dict,
        description="Labels that the alert must have, each with a pattern (RE2) of its whole value.",
    )
    target: str = Field(
        description='The target, its parts from labels in braces: "{service}/{model}". A label that the '
        "alert lacks leaves its part out, but not the first."
    )

    @field_validator("match")
    @classmethod
    def _patterns(cls, value: dict[str, str]) -> dict[str, str]:
        for pattern in value.values():
            compile_pattern(pattern)
        return value

    @field_validator("target")
    @classmethod
    def _parts(cls, value: str) -> str:
        parts = value.split("/")
        if not all(parts) or len(parts) > len(FIELDS):
            raise ValueError(f"a target is up to {len(FIELDS)} names or {{labels}} with / between")
        return value


class AlertmanagerApiConfig(_Model):
    """Alertmanager's own API, asked for alerts that still fire."""

    url: str = Field(description="Its base URL, such as http://127.0.0.1:9093.", pattern=r"^https?://")
    interval: PositiveDuration | None = Field(
        None, description="Time between two looks; null: a third of the lease."
    )
    timeout: PositiveDuration = 5.0
    bearer_token: SecretStr | None = None
    ca_file: Path | None = Field(None, description="Authorities to trust instead of the system's.")


class AlertmanagerConfig(ListenerConfig):
    """Alertmanager's webhook (version 4), POSTed to /v1/alertmanager."""

    endpoint: EndpointText = Field(Endpoint("127.0.0.1", 9467), description="Where to listen.")
    basic_auth: tuple[BasicUser, ...] = Field(
        (), description="Users and passwords, beside or instead of auth's bearer tokens."
    )
    routes: tuple[RouteConfig, ...] = Field(
        (RouteConfig(target="{service}/{model}"),), description="The first that fits an alert counts."
    )
    lease: PositiveDuration = Field(
        180.0,
        description="An alert of which nothing is heard for so long holds nothing any more. Longer than the "
        "repeat_interval of Alertmanager's route, unless api is set.",
    )
    clock_skew: Duration = Field(
        60.0,
        description="How far Alertmanager's clock and delivery may be off. An alert from further in the "
        "future, or a resolve from further before its alert was applied, is refused as replayed.",
    )
    queue_size: Count = Field(
        64, description="Webhooks that wait to be acted on; beyond, the answer is 503 and they come again."
    )
    max_request_size: Annotated[ByteSize, Field(gt=0)] = Field(
        32 * MIB, description="The largest body, in bytes."
    )
    api: AlertmanagerApiConfig | None = Field(
        None, description="Where renewals are fetched; null: only the webhook renews."
    )

    @model_validator(mode="after")
    def _protected(self) -> Self:
        if not self.basic_auth:
            _require_protection(self.endpoint, self)
        elif self.tls is None and not self.endpoint.loopback and not self.insecure:
            raise ValueError(
                f"{self.endpoint} is reached by other machines, and passwords would be readable on the way: "
                "set tls, or listen on 127.0.0.1"
            )
        return self

    @property
    def open_to_all(self) -> bool:
        """Whether anybody who reaches the port may trip breakers."""
        mutual = self.tls is not None and self.tls.client_ca_file is not None
        return self.auth is None and not self.basic_auth and not mutual


class RuleFiringsConfig(_Model):
    """Rules of the bridge itself that name a target."""

    lease: PositiveDuration = Field(
        60.0,
        description="Renewed while this process lives and the rule holds; after a crash the open ends so "
        "long after.",
    )


def default_socket() -> Path:
    """Where operators' commands find the bridge: systemd's place, root's, or the user's own."""
    if directory := os.environ.get("RUNTIME_DIRECTORY"):
        return Path(directory) / "control.sock"
    if os.geteuid() == 0:
        return Path("/run/otel-bridge/control.sock")
    runtime = os.environ.get("XDG_RUNTIME_DIR") or Path.home() / ".local" / "state"
    return Path(runtime) / "otel-bridge" / "control.sock"


class OperatorsConfig(_Model):
    """How operators reach the running bridge."""

    socket: Path | None = Field(
        default_factory=default_socket,
        description="A Unix socket, mode 0600: who may open it may command. null: none.",
    )
    endpoint: EndpointText | None = Field(
        None, description="A loopback address to listen on as well, with `auth`; null: none."
    )
    auth: AuthConfig | None = Field(None, description="Tokens for `endpoint`.")
    forced_open_lease: PositiveDuration = Field(
        3600.0, description="A forced open that nobody repeats ends after so long, in half-open."
    )

    @model_validator(mode="after")
    def _protected(self) -> Self:
        if self.endpoint is None:
            return self
        if not self.endpoint.loopback:
            raise ValueError("operators are served on a loopback address only; use ssh from elsewhere")
        if self.auth is None:
            raise ValueError("operators.endpoint needs operators.auth: any local user reaches a port")
        return self


# Keeping


def default_state_file() -> Path:
    """Where breakers are kept: systemd's place, root's, or the user's own."""
    if directory := os.environ.get("STATE_DIRECTORY"):
        return Path(directory) / "control.sqlite"
    if os.geteuid() == 0:
        return Path("/var/lib/otel-bridge/control.sqlite")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "otel-bridge" / "control.sqlite"


class StateConfig(_Model):
    """Where breakers and the audit log are kept over a restart."""

    file: Path | None = Field(
        default_factory=default_state_file, description="An SQLite file; null keeps them in memory only."
    )
    max_audit_entries: Annotated[int, Field(ge=100)] = Field(
        100_000, description="Older entries of the audit log are dropped."
    )


class RedisConfig(_Model):
    """Redis, where replicas share breakers and the audit log."""

    url: SecretStr = Field(
        description="redis://[user:password@]host:port/db, rediss:// for TLS, unix://path."
    )
    prefix: str = Field("otel-bridge", pattern=r"^[A-Za-z0-9_.:-]+$", description="Beginning of all keys.")
    timeout: PositiveDuration = Field(0.2, description="Of connecting, and of one command.")
    sync_interval: PositiveDuration = Field(
        1.0, description="Time between two looks at all breakers, beside the messages that tell of changes."
    )
    when_cut_off: Literal["local", "closed", "open"] = Field(
        "local",
        description="What holds while Redis cannot be reached: each replica's own breakers, all closed "
        "(traffic passes), or all open (traffic is refused).",
    )
    max_audit_entries: Annotated[int, Field(ge=100)] = 10_000


# All of it


def _default_policies() -> tuple[PolicyConfig, ...]:
    return (PolicyConfig(),)


class ControlConfig(_Model):
    """Breakers: what trips them, who asks them, what they do."""

    enabled: bool = Field(False, description="Whether anything is decided; off, no port is opened.")
    targets: TargetsConfig = TargetsConfig()
    policies: tuple[PolicyConfig, ...] = Field(
        default_factory=_default_policies,
        description="The first that fits a target counts; one with every default follows them.",
    )
    spans: SpansConfig = SpansConfig()
    strategies: StrategiesConfig = Field(default_factory=StrategiesConfig)
    rules: RuleFiringsConfig = RuleFiringsConfig()
    alertmanager: AlertmanagerConfig | None = Field(None, description="null: no webhook is served.")
    decisions: DecisionsConfig = DecisionsConfig()
    limits: LimitsConfig = LimitsConfig()
    operators: OperatorsConfig = Field(default_factory=OperatorsConfig)
    actions: ActionsConfig = ActionsConfig()
    state: StateConfig = Field(default_factory=StateConfig)
    redis: RedisConfig | None = Field(None, description="null: this bridge decides alone.")

    @model_validator(mode="after")
    def _fallbacks_known(self) -> Self:
        for policy in self.policies:
            if policy.fallback is not None and policy.fallback not in self.decisions.fallbacks:
                known = ", ".join(sorted(self.decisions.fallbacks)) or "none"
                raise ValueError(
                    f"a policy names the fallback {policy.fallback!r}, and decisions.fallbacks has {known}"
                )
        return self

    @property
    def every_policy(self) -> tuple[PolicyConfig, ...]:
        """The policies, each once, with the one that follows them."""
        distinct: list[PolicyConfig] = []
        for policy in (*self.policies, PolicyConfig()):
            if policy not in distinct:
                distinct.append(policy)
        return tuple(distinct)

    def policy(self, key: str) -> PolicyConfig:
        """How the breaker of a target behaves."""
        return next((policy for policy in self.policies if matches(key, policy.targets)), PolicyConfig())

    def warnings(self) -> Iterator[str]:
        """What is allowed but rarely meant, each with the key path that mends it."""
        if self.alertmanager is not None and self.alertmanager.open_to_all:
            yield (
                "control.alertmanager has no authentication, so every local user can trip breakers: set "
                "control.alertmanager.auth or basic_auth"
            )
