"""Both sides of every structure: the dtypes here, and the compiler's type information of the headers."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest

from otel_bridge.control.gate import records as gate
from otel_bridge.events import COMMON
from otel_bridge.kernel import records
from otel_bridge.model import KernelEventKind, Match
from tests.support.processes import needs_command

BPF = Path(__file__).parents[3] / "bpf"
STRUCTURES = {
    "tcp_event": records.TCP_EVENT,
    "tcp_config": records.TCP_CONFIG,
    "rate_limit": records.RATE_LIMIT,
    "thread_layout": records.THREAD_LAYOUT,
    "context_sources": records.CONTEXT_SOURCES,
    "sched_wait": records.SCHED_WAIT,
    "sched_config": records.SCHED_CONFIG,
    "sched_sum": records.SCHED_SUM_VALUE,
    "sched_row": records.SCHED_ROW,
    "rows_head": records.ROWS_HEAD,
    "span_key": records.SPAN_KEY,
    "block_io": records.BLOCK_IO,
    "block_config": records.BLOCK_CONFIG,
    "block_key": records.BLOCK_KEY,
    "block_sum": records.BLOCK_SUM_VALUE,
    "device_key": records.BLOCK_DEVICE,
    "block_device_totals": records.BLOCK_TOTALS,
    "memory_event": records.MEMORY_EVENT,
    "memory_config": records.MEMORY_CONFIG,
    "memory_sum": records.MEMORY_SUM_VALUE,
    "tls_event": records.TLS_EVENT,
    "cuda_event": records.CUDA_EVENT,
    "cuda_config": records.CUDA_CONFIG,
    "cuda_sum": records.CUDA_SUM_VALUE,
    "drm_sum": records.DRM_SUM_VALUE,
    "process_event": records.PROCESS_EVENT,
    "user_event": records.USER_EVENT,
    "user_field": records.USER_FIELD,
    "user_probe": records.USER_PROBE,
    "gate_slot": gate.SLOT,
    "gate_config": gate.CONFIG,
}
ENUMS = {
    "known": (records.Known, ""),
    "counter": (records.Counter, "COUNTER_"),
    "event_kind": (KernelEventKind, "EVENT_"),
    "match": (Match, "MATCH_"),
    "block_operation": (records.BlockOperation, "BLOCK_"),
    "tls_role": (records.TlsRole, "TLS_ROLE_"),
    "cuda_operation": (records.CudaOperation, "CUDA_"),
}
# What one side says with other words than the other.
RENAMED = {"time_ns": "time", "duration_ns": "duration", "first_ns": "first", "last_ns": "last"}
ONLY_IN_USER_SPACE = {"PROCESS"}


@pytest.fixture(scope="module")
def types(tmp_path_factory):
    """The compiler's type information of all headers, by type id; read with bpftool."""
    clang = needs_command("clang", "clang")
    bpftool = needs_command("bpftool", "bpftool")
    headers = sorted(path.relative_to(BPF) for path in BPF.rglob("*.h") if not path.name.endswith(".bpf.h"))
    lines = [f'#include "{header}"' for header in headers if header.name != "kernel.h"]
    # Type information is kept of what is used.
    lines += [f"struct {name} a_{name};" for name in STRUCTURES]
    lines += [f"enum {name} an_{name};" for name in ENUMS]
    directory = tmp_path_factory.mktemp("types")
    (directory / "types.c").write_text("\n".join(lines))
    multiarch = f"/usr/include/{platform.machine()}-linux-gnu"
    command = [clang, "-g", "-O2", "-target", "bpf", "-isystem", multiarch, f"-I{BPF}", "-c", "types.c"]
    subprocess.run(command, cwd=directory, check=True)
    dump = subprocess.run(
        [bpftool, "btf", "dump", "-j", "file", directory / "types.o"], capture_output=True, check=True
    )
    return {entry["id"]: entry for entry in json.loads(dump.stdout)["types"]}


def named(types: dict[int, dict], kind: str, name: str) -> dict:
    """The type of a name."""
    [found] = [entry for entry in types.values() if entry["kind"] == kind and entry["name"] == name]
    return found


def resolved(types: dict[int, dict], type_id: int) -> dict:
    """A type behind its typedefs and qualifiers."""
    entry = types[type_id]
    while entry["kind"] in ("TYPEDEF", "VOLATILE", "CONST"):
        entry = types[entry["type_id"]]
    return entry


def fields(types: dict[int, dict], structure: dict, base: int = 0) -> dict[str, tuple[int, int]]:
    """Offset and size of each field, those of structures inside flattened."""
    out: dict[str, tuple[int, int]] = {}
    for member in structure["members"]:
        offset = base + member["bits_offset"] // 8
        kind = resolved(types, member["type_id"])
        if kind["kind"] == "STRUCT":
            out |= fields(types, kind, offset)
        else:
            size = kind.get("size") or resolved(types, kind["type_id"])["size"] * kind["nr_elems"]
            out[RENAMED.get(member["name"], member["name"])] = offset, size
    return out


def fields_of(dtype: np.dtype, base: int = 0) -> dict[str, tuple[int, int]]:
    """The same of a dtype."""
    out: dict[str, tuple[int, int]] = {}
    for name, (kind, offset) in dtype.fields.items():
        out |= fields_of(kind, base + offset) if kind.fields else {name: (base + offset, kind.itemsize)}
    return out


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_is_the_same_on_both_sides(types, name):
    """Every field's name, place and size; and the whole."""
    dtype = STRUCTURES[name]
    structure = named(types, "STRUCT", name)
    assert dtype.itemsize == structure["size"]
    assert fields_of(dtype) == fields(types, structure)


@pytest.mark.parametrize("name", ENUMS)
def test_an_enumeration_is_the_same_on_both_sides(types, name):
    """Every name and number."""
    enum, prefix = ENUMS[name]
    values = {value["name"]: value["val"] for value in named(types, "ENUM", name)["values"]}
    values.pop("COUNTER_MAX", None)
    assert values == {
        prefix + member.name: member.value for member in enum if member.name not in ONLY_IN_USER_SPACE
    }


def test_every_record_begins_with_what_all_events_have():
    """Consumers look at those fields without knowing the probe."""
    for dtype in (
        records.TCP_EVENT,
        records.SCHED_WAIT,
        records.BLOCK_IO,
        records.MEMORY_EVENT,
        records.TLS_EVENT,
        records.PROCESS_EVENT,
        records.USER_EVENT,
    ):
        assert dtype.descr[: len(COMMON.descr)] == COMMON.descr


def test_a_sum_is_handed_over_with_the_ids_of_its_key_and_the_numbers_of_its_value():
    """Ends when its last occurrence ended."""
    keys = np.zeros(2, records.BLOCK_KEY)
    values = np.zeros(2, records.BLOCK_SUM_VALUE)
    keys["span_id"] = [b"\1" * 8, b"\2" * 8]
    keys["major"] = 259
    values["first"], values["last"], values["count"] = 10, 20, [3, 4]
    keys["match"], keys["tgid"] = Match.THREAD, 42
    out = records.sum_records(KernelEventKind.BLOCK_SUM, keys, values)
    assert out["kind"].tolist() == [KernelEventKind.BLOCK_SUM] * 2
    assert out["span_id"].tolist() == [b"\1" * 8, b"\2" * 8]
    assert out[["time", "first", "count", "match", "tgid", "major"]].tolist() == [
        (20, 10, 3, Match.THREAD, 42, 259),
        (20, 10, 4, Match.THREAD, 42, 259),
    ]
