"""What processes are called in their own pid namespace and container; procfs is a directory here."""

from __future__ import annotations

import numpy as np
import pytest

from otel_bridge.kernel.process_names import ProcessNames
from otel_bridge.kernel.records import PROCESS_EVENT
from otel_bridge.model import KernelEventKind

A = "a" * 64
GROUPS = {
    "docker": f"0::/system.slice/docker-{A}.scope\n",
    "kubernetes": f"0::/kubepods.slice/kubepods-pod1234.slice/cri-containerd-{A}.scope\n",
    "v1": f"4:memory:/kubepods/burstable/pod1234/{A}\n0::/\n",
    "none": "0::/user.slice\n",
    "nested": f"0::/docker/{'b' * 64}/docker/{A}\n",
}


@pytest.fixture
def proc(tmp_path):
    """The machine's own pid namespace is the directory's."""
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").write_text("")
    return tmp_path


def begin(proc, pid, *, own=None, group="", elsewhere=True):
    """A process; in a namespace of its own unless told otherwise."""
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    if elsewhere:
        (folder / "ns" / "pid").write_text("")
    else:
        (folder / "ns" / "pid").hardlink_to(proc / "self" / "ns" / "pid")
    numbers = f"{pid}" if own is None else f"{pid}\t{own}"
    (folder / "status").write_text(f"Name:\tx\nNStgid:\t{numbers}\nNSpid:\t{numbers}\nNSpgid:\t{numbers}\n")
    (folder / "cgroup").write_text(group)


@pytest.mark.parametrize(
    ("group", "container"), [(name, "" if name == "none" else A) for name in GROUPS], ids=list(GROUPS)
)
def test_a_container_is_known_by_its_control_group(proc, group, container):
    """The innermost one, by whatever runtime; with or without version 2."""
    begin(proc, 4711, own=17, group=GROUPS[group])
    [row] = ProcessNames(proc).of_running([4711])
    assert (row["tgid"], row["namespace_pid"], row["container"].decode()) == (4711, 17, container)


def test_outside_of_containers_nothing_is_read(proc):
    """Both numbers are the same, and a login session's group is no container."""
    begin(proc, 7, group=GROUPS["docker"], elsewhere=False)
    [row] = ProcessNames(proc).of_running([7])
    assert (row["namespace_pid"], row["container"]) == (7, b"")


def test_processes_that_are_gone_are_left_out(proc):
    """They may end at any time."""
    begin(proc, 7)
    assert ProcessNames(proc).of_running([7, 8])["tgid"].tolist() == [7]


def test_records_of_the_kernel_say_it_themselves(proc):
    """Only the container is looked up, once for each namespace; at its end there is nothing to look up."""
    begin(proc, 7, group=GROUPS["docker"])
    records = np.zeros(3, PROCESS_EVENT)
    records["kind"] = [
        KernelEventKind.PROCESS_FORK,
        KernelEventKind.PROCESS_EXEC,
        KernelEventKind.PROCESS_EXIT,
    ]
    records["tgid"], records["namespace_pid"], records["pid_namespace"] = [7, 8, 8], [1, 2, 0], [99, 99, 0]
    out = ProcessNames(proc).of_records(records)
    assert out["container"].tolist() == [A.encode(), A.encode(), b""]
    assert out["namespace_pid"].tolist() == [1, 2, 0]
    assert out["tgid"].tolist() == [7, 8, 8]
