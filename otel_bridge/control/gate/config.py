"""What users write under `control.actions.gates`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it)
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from otel_bridge.control.actions.limits import ActionConfig
from otel_bridge.units import Duration

PositiveDuration = Annotated[Duration, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
MOST_KILLS = 8
"""Mirrors GATE_KILLS of bpf/gate.h."""


class AllocationsConfig(BaseModel):
    """Allocations in a library, counted when they fail; as they stand, those of a GPU's memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: str = Field(
        "libcuda.so*", min_length=1, description="The file's name, a shell-style pattern, without its path."
    )
    functions: tuple[str, ...] = Field(
        ("cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemAllocManaged", "cuMemCreate"),
        min_length=1,
        description="Those that the library lacks are left out.",
    )
    failed: Annotated[int, Field(ge=0, lt=1 << 32)] = Field(
        2,
        description="What they return then: 2 is CUDA's out of memory, 0 the null pointer of malloc and its "
        "like.",
    )


class KillsConfig(BaseModel):
    """A trip that the kernel makes by itself, without the bridge."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kills: Annotated[int, Field(ge=1, le=MOST_KILLS)] = Field(
        3, description="So many processes of the namespace killed for want of memory within the window."
    )
    window: PositiveDuration = 60.0
    open_time: PositiveDuration = Field(60.0, description="How long the gate is shut then.")
    allocations: AllocationsConfig | None = Field(
        None, description="Failed allocations, counted together with the kills; null: they are not counted."
    )
    target: str = Field(description="The breaker that is told of it, and opens as well.", min_length=1)


class GateConfig(ActionConfig):
    """Refuses new connections to a service, in the kernel."""

    process: str | None = Field(
        None,
        min_length=1,
        description="The service's processes: a shell-style pattern of their name or command line. Each "
        "network namespace that has one is guarded, those of pods included.",
    )
    pid: Annotated[int, Field(ge=1)] | None = Field(None, description="Or one process, by its number.")
    namespace: Path | None = Field(None, description="Or a network namespace, such as /run/netns/llama.")
    ports: tuple[Port, ...] = Field(
        (),
        max_length=32,
        description="Where the service listens. Empty: every port of the namespace. Ports alone guard each "
        "namespace in which somebody listens on one of them.",
    )
    half_open_share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="The share of new connections that is let in while half-open."
    )
    lease: Annotated[Duration, Field(ge=1)] = Field(
        30.0,
        description="The kernel opens the gate so long after the bridge was last heard of; a restart that "
        "takes less leaves it shut.",
    )
    mechanism: Literal["auto", "sk_lookup", "cgroup"] = Field(
        "auto",
        description="sk_lookup answers with a reset. cgroup drops in silence what comes for the service's "
        "control group; auto takes it where sk_lookup cannot be attached.",
    )
    kills: KillsConfig | None = Field(None, description="null: the kernel does not trip by itself.")

    @model_validator(mode="after")
    def _findable(self) -> Self:
        named = [name for name in ("process", "pid", "namespace") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"found {' and '.join(named)}: name the service in one way")
        if not named and not self.ports:
            raise ValueError("name the service: by process, pid, namespace or ports")
        if self.kills is not None and self.kills.allocations is not None and self.namespace is not None:
            raise ValueError(
                "kills.allocations needs to know the service's processes: name it by process, pid or ports"
            )
        if self.mechanism == "cgroup" and self.namespace is not None:
            raise ValueError("a namespace has no control group: name the service by process, pid or ports")
        return self
