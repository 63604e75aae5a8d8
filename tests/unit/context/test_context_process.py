"""The process describes itself as OTEP 4719 lays it out, once, and each process for itself."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk import resources
from opentelemetry.sdk.trace import TracerProvider

from otel_bridge import context
from otel_bridge.context import _record, process

HEADER = struct.Struct("<8sIIQQ")


def mappings(pid: int | str = "self") -> list[tuple[int, int]]:
    """Start and end of each process context."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    found = [line for line in lines if re.search(r"(/memfd|\[anon|\[anon_shmem):OTEL_CTX", line)]
    return [tuple(int(part, 16) for part in line.split()[0].split("-")) for line in found]


def read(pid: int | str = "self") -> tuple[tuple[bytes, int, int, int, int], bytes]:
    """Header and payload as a reader outside takes them."""
    ((start, _),) = mappings(pid)
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(start)
        header = HEADER.unpack(memory.read(HEADER.size))
        memory.seek(header[4])
        return header, memory.read(header[2])


def fields(message: bytes) -> list[tuple[int, bytes]]:
    """The length-delimited fields of a message."""
    found = []
    while message:
        assert message[0] & 7 == 2
        number, size, at, shift = message[0] >> 3, 0, 1, 0
        while True:
            byte = message[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        found.append((number, message[at : at + size]))
        message = message[at + size :]
    return found


def decode(payload: bytes) -> tuple[dict[str, AnyValue], dict[str, AnyValue]]:
    """Resource attributes and further attributes of a ProcessContext, by protobuf's own library."""
    (resource,) = [content for number, content in fields(payload) if number == 1]
    attributes = [KeyValue.FromString(content) for number, content in fields(payload) if number == 2]
    return (
        {item.key: item.value for item in Resource.FromString(resource).attributes},
        {item.key: item.value for item in attributes},
    )


def test_it_is_laid_out_as_the_otep_says():
    """Signature, version, size, time of publication, payload; one mapping, found by its name."""
    (signature, version, size, published_at, _), payload = read()
    assert (signature, version, size) == (b"OTEL_CTX", 2, len(payload))
    assert 0 < published_at <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    _, attributes = decode(payload)
    assert attributes["threadlocal.schema_version"].string_value == "tlsdesc_v1_dev"
    assert attributes["threadlocal.attribute_key_map"].HasField("array_value")
    assert len(attributes["threadlocal.attribute_key_map"].array_value.values) == 0
    assert attributes["otel_bridge.threadlocal.sequence_offset"].int_value == 32


def test_off_withdraws_it():
    """Nothing is left mapped."""
    context.uninstall()
    assert mappings() == []


def test_the_resource_of_the_sdk_is_told_once_it_is_known(monkeypatch):
    """At the first span, if there was no SDK when it was turned on; in place, under a later time."""
    where, before = mappings(), read()[0][3]
    resource = resources.Resource({"service.name": "llama", "service.instance.id": "7", "replicas": 3})
    provider = TracerProvider(resource=resource)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with provider.get_tracer("test").start_as_current_span("a"):
        pass
    header, payload = read()
    assert mappings() == where
    assert header[3] > before
    told, _ = decode(payload)
    assert told["service.name"].string_value == "llama"
    assert told["replicas"].int_value == 3


def test_an_sdk_that_is_there_already_is_asked_at_once(monkeypatch):
    """No span is needed."""
    context.uninstall()
    provider = TracerProvider(resource=resources.Resource({"service.name": "llama"}))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    context.install()
    assert decode(read()[1])[0]["service.name"].string_value == "llama"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        ({"OTEL_SERVICE_NAME": "a"}, {"service.name": "a"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=b, k = v%2C1 ,=x,y"}, {"service.name": "b", "k": "v,1"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=b", "OTEL_SERVICE_NAME": "a"}, {"service.name": "a"}),
    ],
)
def test_without_an_sdk_the_environment_is_asked(environment, expected, monkeypatch):
    """As every SDK would read it."""
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert process.resource_of(SimpleNamespace()) == expected


def test_a_child_describes_itself():
    """The mapping is not inherited, so it cannot be stale; Python's own fork makes another."""
    ((start, end),) = mappings()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        mine = mappings()
        os.write(writing, b"y" if len(mine) == 1 and read()[0][0] == b"OTEL_CTX" else b"n")
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.waitpid(pid, 0)
    assert mappings() == [(start, end)]


FORKED_PAST_PYTHON = """
import ctypes, os, re
import otel_bridge.context
otel_bridge.context.install()
pid = ctypes.CDLL(None).fork()
if pid == 0:
    print("OTEL_CTX" in open("/proc/self/maps").read(), flush=True)
    from otel_bridge.context import _record
    _record.publish_process(b"")
    print("OTEL_CTX" in open("/proc/self/maps").read(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_a_child_forked_by_c_code_inherits_nothing():
    """And may describe itself afterwards: nothing points into the memory that it does not have."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED_PAST_PYTHON], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_another_library_that_describes_the_process_is_left_alone():
    """There may be one description only."""
    context.uninstall()
    file = os.memfd_create("OTEL_CTX")
    os.ftruncate(file, 4096)
    import mmap

    with mmap.mmap(file, 4096):
        status = context.install()
        assert status.publishing
        assert "another library" in status.process_problem
        assert len(mappings()) == 1
    os.close(file)
    context.uninstall()


def test_many_updates_leave_one_mapping_and_the_last_payload():
    """In place, each with a later time."""
    times = []
    for number in range(101):
        _record.publish_process(process.encode({"number": number}, {}))
        header, payload = read()
        times.append(header[3])
        assert decode(payload)[0]["number"].int_value == number
    assert times == sorted(set(times))
    assert len(mappings()) == 1


VALUES = st.recursive(
    st.text()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.binary(),
    lambda values: st.lists(values, max_size=4),
    max_leaves=8,
)


def plain(value: AnyValue):
    """The Python value of an AnyValue."""
    kind = value.WhichOneof("value")
    return (
        [plain(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
    )


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.dictionaries(st.text(), VALUES, max_size=5))
def test_what_is_encoded_is_what_protobuf_decodes(resource, attributes):
    """Every type of OTLP."""
    decoded = decode(process.encode(resource, attributes))
    assert [{key: plain(value) for key, value in part.items()} for part in decoded] == [resource, attributes]


@pytest.mark.parametrize(("value", "text"), [(None, "None"), (1 << 63, str(1 << 63)), ("\ud800", "?")])
def test_what_otlp_has_no_type_for_goes_as_text(value, text):
    """It is for people to read; it must not stop the rest."""
    assert decode(process.encode({"key": value}, {}))[0]["key"].string_value == text
