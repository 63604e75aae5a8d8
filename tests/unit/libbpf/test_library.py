"""What libbpf says goes to whoever called it."""

from __future__ import annotations

import ctypes.util
import gc

import pytest

from otel_bridge.kernel.backend import BTF
from otel_bridge.libbpf.core_object import Object
from otel_bridge.libbpf.library import LibbpfError, Library

pytestmark = pytest.mark.skipif(
    ctypes.util.find_library("bpf") is None, reason="needs libbpf: apt-get install libbpf1"
)


def said(library, path) -> str:
    """Its own words about a file that is no BPF object."""
    with pytest.raises(LibbpfError) as refused:
        Object(library, path)
    return refused.value.log


def test_each_of_several_hears_what_it_asked_for(tmp_path):
    """There is one place in libbpf for who listens; also once the one that took it last is gone."""
    path = tmp_path / "none.bpf.o"
    path.write_bytes(b"no object")
    first, second = Library(), Library()
    assert str(path) in said(first, path)
    assert str(path) in said(second, path)
    del second
    gc.collect()
    assert str(path) in said(first, path)


@pytest.mark.skipif(not BTF.exists(), reason=f"needs a kernel with BTF: there is no {BTF}")
def test_the_members_of_the_kernel_s_structures_are_told_by_name():
    """Only those of the structure asked for."""
    library = Library()
    assert {"pid", "tgid", "comm"} <= library.kernel_members("task_struct")
    assert "comm" not in library.kernel_members("sched_entity")
    assert library.kernel_members("no_such_structure") == frozenset()
