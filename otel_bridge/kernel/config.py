"""What a user can set about kernel events."""

from __future__ import annotations

import itertools
import mmap
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from otel_bridge.units import ByteSize, Duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _ring_size(size: int) -> int:
    if size < mmap.PAGESIZE or size & (size - 1):
        raise ValueError(f"a ring buffer is a power of two of bytes, at least a page ({mmap.PAGESIZE})")
    return size


RingSize = Annotated[ByteSize, AfterValidator(_ring_size)]


class SwitchConfig(_Model):
    """What every probe has."""

    enabled: bool = True

    @property
    def wanted(self) -> bool:
        """Whether the probe is to be loaded."""
        return self.enabled


class ProbeConfig(SwitchConfig):
    """What every probe with events of its own has."""

    ring_size: RingSize = Field(
        1024 * 1024, description="Room for events that were not read yet; a power of two."
    )
    events_per_second: int = Field(
        0, ge=0, description="At most so many events a second on each CPU, the rest is counted; 0: no limit."
    )


class TlsRequestsConfig(SwitchConfig):
    """Requests that are read by way of libssl."""

    enabled: bool = Field(
        False,
        description="Off, because every read of every program that uses libssl pays for two breakpoints.",
    )


class TcpConfig(ProbeConfig):
    """Retransmits, resets, connection attempts, zero windows, full receive queues."""

    connect_threshold: Duration = Field(
        0.0, description="Connections that are made faster are no events; failed ones always are."
    )
    window_threshold: Duration = Field(
        0.0, description="Windows that are zero for less are no events, on the side that waits to send."
    )


class SchedConfig(ProbeConfig):
    """Waiting for a CPU, and for anything else."""

    run_queue_threshold: Duration = Field(
        0.01, description="A single wait for a CPU this long is an event; shorter ones are summed per span."
    )
    off_cpu_threshold: Duration = Field(
        0.05, description="A single wait for anything else this long is an event."
    )
    stacks: bool = Field(
        True, description="Keep where in its program, and where in the kernel, a thread waited for long."
    )


class BlockConfig(ProbeConfig):
    """Block I/O."""

    latency_threshold: Duration = Field(
        0.01,
        description="A single request this slow is an event; faster ones are summed per span and device.",
    )


class MemoryConfig(ProbeConfig):
    """OOM kills and reclaim."""

    reclaim_threshold: Duration = Field(
        0.001, description="A single reclaim this long is an event; shorter ones are summed per span."
    )


class CudaConfig(ProbeConfig):
    """What programs ask of CUDA."""

    alloc_threshold: Duration = Field(
        0.001,
        description="An allocation this slow is an event, one that fails always is; others are summed per "
        "span.",
    )
    copy_threshold: Duration = Field(0.01, description="The same for copies, as far as their call waits.")
    launch_gap: Duration = Field(
        0.05, description="Longer than this between two kernel launches of a thread for one span is an event."
    )
    launches: bool = Field(
        True,
        description="Whether launches are looked at. Each pays for a breakpoint: a microsecond or more; off "
        "for engines that launch tens of thousands of kernels a second without CUDA graphs.",
    )


def _several(value: object) -> object:
    """One of several needs no list."""
    return (value,) if isinstance(value, int | str) else value


ValueType = Literal["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool"]
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class IndexConfig(_Model):
    """Which element of an array."""

    field: FieldName = Field(description="An earlier field that counts the elements.")
    times: int = Field(ge=1, lt=1 << 32, description="Bytes of an element.")


class FieldConfig(_Model):
    """Where the value of a field comes from."""

    argument: Annotated[int, Field(ge=1, le=6)] | Literal["return", "stack_depth"] = Field(
        description="Which argument, by the calling convention (a C++ method's first is its object); what "
        "the function returns, with `latency`; or how many functions called each other, as far as frame "
        "pointers lead."
    )
    type: ValueType = "i64"
    at: Annotated[tuple[int, ...], BeforeValidator(_several)] = Field(
        (),
        max_length=3,
        description="The argument is a pointer; the value lies so many bytes behind it. Several: the value "
        "is a pointer again, and so on.",
    )
    index: IndexConfig | None = Field(None, description="The value is in an array, where `at` leads last.")
    falls: bool = Field(
        False, description="By how much the value falls from call to return, with `latency`, instead of it."
    )
    less: FieldName | None = Field(None, description="The value less that of an earlier field.")
    plus: FieldName | None = Field(None, description="The value and that of an earlier field.")
    times: Annotated[tuple[FieldName, ...], BeforeValidator(_several)] = Field(
        (),
        description="After `less` and `plus`: multiplied by each of these earlier fields. An event whose "
        "product is more than 2^62 is told without the field.",
    )
    per: int = Field(1, ge=1, description="At last divided by this; towards minus infinity.")
    told: bool = Field(True, description="false: it serves other fields only.")

    @property
    def operands(self) -> tuple[str, ...]:
        """The fields that it is computed with."""
        return (*(name for name in (self.less, self.plus) if name is not None), *self.times)

    @property
    def computed(self) -> bool:
        """Whether it is other than what the kernel read."""
        return bool(self.operands) or self.per != 1


class HandOverConfig(_Model):
    """A number under which a span is handed from thread to thread."""

    group: FieldName = Field(description='What is numbered: "task", "slot".')
    field: FieldName = Field(description="The field that holds the number.")


class FunctionConfig(_Model):
    """One function of a program whose calls are events."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]*$", max_length=60)] = Field(
        description='Of the events: "llm.kv_cache.evict".'
    )
    library: str = Field(description="Pattern of the file's name, without its directory.")
    symbol: str = Field("", description="The function, as the linker names it (C++: mangled).")
    offset: int = Field(0, ge=0, description="Bytes from the symbol, or without one from the file's start.")
    begins: str = Field(
        "",
        pattern=r"^([0-9a-f]{2})*$",
        max_length=256,
        description="The function's first bytes, hexadecimal; it is left alone in files where they are other "
        "ones: for fields that hold for one version of a program.",
    )
    usdt: str = Field("", description="A static tracepoint instead: provider:name.")
    fields: dict[FieldName, FieldConfig] = Field(default_factory=dict, max_length=8)
    latency: bool = Field(
        False,
        description="Pair call and return. Not for functions that throw: a C++ exception that passes a "
        "function whose return is probed ends the program.",
    )
    threshold: Duration = Field(0.0, description="With `latency`: faster calls are no events.")
    event: bool = Field(True, description="false: the calls are no events, they only hand over spans.")
    gives: HandOverConfig | None = Field(None, description="Hands the span on under a number.")
    takes: HandOverConfig | None = Field(None, description="Takes the span that was handed on.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if bool(self.usdt) == bool(self.symbol or self.offset):
            raise ValueError("a function is named by `symbol` or `offset`, or by `usdt`, not by both")
        if self.usdt and (self.usdt.count(":") != 1 or self.latency):
            raise ValueError('`usdt` is "provider:name"; a static tracepoint has no latency')
        if self.begins and not self.symbol:
            raise ValueError("`begins` is of a function that is named by its symbol")
        returns = [name for name, field in self.fields.items() if field.argument == "return" or field.falls]
        if returns and not self.latency:
            raise ValueError(f"`{returns[0]}` is known when the function returns: that needs latency: true")
        for name, earlier in _references(self.fields):
            before = [*itertools.takewhile(name.__ne__, self.fields)]
            if earlier not in before:
                raise ValueError(
                    f"`{name}` refers to {earlier!r}, which is no earlier field; before it "
                    f"{'are ' + ', '.join(before) if before else 'is none'}"
                )
        for over in (self.gives, self.takes):
            if over is not None and over.field not in self.fields:
                raise ValueError(f"there is no field {over.field!r} to hand over by")
        self._kernel_knows(over.field for over in (self.gives, self.takes) if over is not None)
        self._kernel_knows(field.index.field for field in self.fields.values() if field.index is not None)
        if self.takes is not None and self.takes.field in returns:
            raise ValueError("a span is taken when the function is called: not by what it returns")
        return self

    def _kernel_knows(self, names: Iterable[str]) -> None:
        """What is computed is computed when events are read, and the kernel has only what it is made of."""
        for name in names:
            if self.fields[name].computed:
                raise ValueError(
                    f"`{name}` is computed after the kernel: `index`, `gives` and `takes` need a field "
                    "without `less`, `plus`, `times` and `per`"
                )


def _references(fields: Mapping[str, FieldConfig]) -> Iterator[tuple[str, str]]:
    """Fields with those that they refer to."""
    for name, field in fields.items():
        if field.index is not None:
            yield name, field.index.field
        for operand in field.operands:
            yield name, operand


class UserConfig(ProbeConfig):
    """Functions of programs, by symbol, offset or static tracepoint."""

    functions: tuple[FunctionConfig, ...] = Field((), max_length=256)
    presets: tuple[Literal["llama.cpp"], ...] = Field(
        (), description="Functions that ship with the bridge: of llama.cpp's server."
    )

    @property
    def wanted(self) -> bool:
        """Whether there is anything to probe."""
        return self.enabled and bool(self.functions or self.presets)


class ProbesConfig(_Model):
    """The probes, each optional on its own."""

    tcp: TcpConfig = TcpConfig()
    sched: SchedConfig = SchedConfig()
    block: BlockConfig = BlockConfig()
    memory: MemoryConfig = MemoryConfig()
    tls: ProbeConfig = ProbeConfig()
    cuda: CudaConfig = CudaConfig()
    drm: SwitchConfig = Field(
        SwitchConfig(),
        description="Evictions from the memory of AMD and Intel GPUs, where their drivers are.",
    )
    user: UserConfig = UserConfig()
    requests: SwitchConfig = Field(
        SwitchConfig(),
        description="In programs that publish no spans: `traceparent` of the HTTP/1.1 requests they read.",
    )
    tls_requests: TlsRequestsConfig = Field(
        TlsRequestsConfig(), description="The same for requests that come in encrypted; needs `requests`."
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.tls_requests.enabled and not self.requests.enabled:
            raise ValueError("tls_requests finds the connections' requests through requests: enable it too")
        return self


class BccConfig(_Model):
    """BCC, which compiles the probes where the kernel does not tell its types."""

    headers: str = Field(
        "",
        description="Directory of the running kernel's headers; empty: where they belong, "
        "/lib/modules/<release>/build, or what the kernel itself brings (/sys/kernel/kheaders.tar.xz).",
    )
    cache: str = Field(
        "/var/cache/otel-bridge/bcc",
        description="Directory that keeps compiled programs, since compiling takes some seconds a probe; "
        "nobody else may write to it. Empty: compile at every start.",
    )


def _mode(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class KernelConfig(_Model):
    """Kernel events."""

    mode: Annotated[Literal["auto", "required", "off"], BeforeValidator(_mode)] = Field(
        "auto",
        description="auto: load what this machine lets load, and say what not. required: or do not start.",
    )
    backend: Literal["auto", "libbpf", "bcc"] = Field(
        "auto",
        description="What loads the probes. auto: libbpf where the kernel tells its types (BTF), else BCC.",
    )
    bcc: BccConfig = BccConfig()
    probes: ProbesConfig = ProbesConfig()
    obi_table: str = Field(
        "",
        description="Path of the table in which OpenTelemetry's eBPF instrumentation (OBI) keeps the span of "
        "each thread, /sys/fs/bpf/otel/traces_ctx_v1; asked about programs that publish nothing. "
        "Empty: not asked.",
    )
    max_spans: int = Field(
        16384,
        ge=1,
        description="Spans that are summed up in the kernel between two `sum_interval`s; of waits, each "
        "thread's of a span.",
    )
    read_interval: Duration = Field(
        0.005, description="Least time between two reads of the ring buffers; a first event is read at once."
    )
    sum_interval: Duration = Field(0.25, description="How often sums per span are taken from the kernel.")
    scan_interval: Duration = Field(
        30.0,
        description="How often running processes are held against those that the kernel told of: a net under "
        "news that were lost.",
    )
    drop_privileges: bool = Field(
        True, description="After loading, give up every capability that is not needed any more."
    )
    run_statistics: bool = Field(
        False, description="Have the kernel time the programs themselves: about 20 ns a run more."
    )
