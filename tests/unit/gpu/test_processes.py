"""Processes on GPUs: cases.md gpu-pids, and who a process is by its procfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_bridge import catalog
from otel_bridge.gpu.processes import Processes, read_process
from tests.support.gpu import gpu

MIB, GIB = 1 << 20, 1 << 30
CONTAINER, POD = "c" * 64, "0f5b1a2c-1111-2222-3333-444455556666"
ROUNDS = 2  # with an every-round slow part, both halves of it


def read(rig, *lines, used=30720):
    """A card with 30 GiB used, its processes read once."""
    one = rig(gpu("GPU-a", memory=f"constant {used}"), *lines, slow_interval="100ms")
    one.rounds(ROUNDS)
    return one


def per_process(one):
    """The series of processes: memory by pid, and what else they say."""
    shown = one.scrape().get(catalog.GPU_PROCESS_MEMORY.name, {})
    return {dict(labels)["pid"]: (value, dict(labels)) for labels, value in shown.items()}


def unattributed(one):
    """Bytes that no process is known to hold."""
    return one.shown(catalog.GPU_MEMORY_UNATTRIBUTED, gpu_uuid="GPU-a")


def test_no_process_is_no_series_and_no_zero(rig):
    """(a) An empty list: all is unattributed."""
    one = read(rig)
    assert per_process(one) == {}
    assert unattributed(one) == 30 * GIB


def test_a_process_that_is_not_here_is_unknown(rig):
    """(b) A number that is in another namespace, or gone before it was looked up."""
    one = read(rig, "process 4194303 1024")
    [(value, labels)] = per_process(one).values()
    assert value == GIB
    assert labels == {"gpu_uuid": "GPU-a", "pid": "4194303", "service": "unknown"}


def test_memory_that_is_not_available_is_absent(rig):
    """(c) 0xFFFFFFFFFFFFFFFF is neither memory nor part of a sum."""
    one = read(rig, f"process {os.getpid()} -1", f"process {os.getppid()} 1024")
    assert list(per_process(one)) == [str(os.getppid())]
    assert unattributed(one) == 29 * GIB
    assert one.shown(catalog.GPU_PROCESSES, gpu_uuid="GPU-a") == 2


def test_what_processes_do_not_show_is_unattributed(rig):
    """(d) One process with 5 GiB on a card with 58; levels go by the card."""
    one = read(rig, f"process {os.getpid()} 5120", used=58 * 1024)
    assert unattributed(one) == 53 * GIB
    assert one.shown(catalog.GPU_PRESSURE_LEVEL, gpu_uuid="GPU-a") == 1


def test_a_thousand_processes(rig):
    """Series for those with most memory, the sum over all."""
    one = read(rig, "processes 999 3000000 10", "process 4194303 500")
    assert len(per_process(one)) == 256
    assert per_process(one)["4194303"][0] == 500 * MIB
    assert one.shown(catalog.GPU_PROCESSES, gpu_uuid="GPU-a") == 1000
    assert unattributed(one) == (30720 - 9990 - 500) * MIB


def test_processes_that_come_and_go_leave_no_series(rig):
    """Churn."""
    one = read(rig, "processes 10 3000000 10")
    one.play(gpu("GPU-a", memory="constant 30720"), "processes 3 3500000 10")
    one.rounds(ROUNDS)
    assert sorted(per_process(one)) == ["3500000", "3500001", "3500002"]


@pytest.fixture
def proc(tmp_path):
    """Makes processes of a procfs."""

    def make(pid, *, parent=1, ids="", cgroup="0::/", began=77, name="python (x) y"):
        directory = tmp_path / str(pid)
        directory.mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 17, str(began), "0"]
        (directory / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")
        (directory / "status").write_text(f"Name:\tx\nNSpid:\t{ids or pid}\nThreads:\t1\n")
        (directory / "cgroup").write_text(cgroup + "\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("cgroup", "container", "pod"),
    [
        ("0::/", "", ""),
        (f"0::/system.slice/docker-{CONTAINER}.scope", CONTAINER, ""),
        (
            f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            CONTAINER,
            POD,
        ),
        (f"11:memory:/kubepods/besteffort/pod{POD}/{CONTAINER}\n0::/", CONTAINER, POD),
    ],
)
def test_container_and_pod_are_read_off_the_cgroup(proc, cgroup, container, pod):
    """Docker, containerd under systemd, the older hierarchy."""
    root = proc(4000, parent=300, ids="4000\t7", cgroup=cgroup)
    proc(300, parent=20)
    proc(20)
    found = read_process(4000, root)
    assert found is not None
    assert (found.container, found.pod, found.own_pid, found.began) == (container, pod, 7, 77)
    assert found.ancestors == (300, 20)


@pytest.mark.parametrize("name", ["stat", "status", "cgroup"])
@pytest.mark.parametrize("failure", [FileNotFoundError, ProcessLookupError, PermissionError])
def test_a_process_that_is_gone_while_it_is_looked_at_is_none(proc, monkeypatch, name, failure):
    """Between any two files; or one that may not be looked at."""
    root, read_text = proc(4000), Path.read_text

    def read(path, **options):
        if path.name == name:
            raise failure(path)
        return read_text(path, **options)

    assert read_process(4000, root) is not None
    monkeypatch.setattr(Path, "read_text", read)
    assert read_process(4000, root) is None


def test_a_number_that_is_given_anew_is_another_process(proc):
    """Looked at again after some seconds."""
    root = proc(4000, began=1)
    processes = Processes(root)
    assert processes.find(4000, 0.0).began == 1
    proc(4000, began=2)
    assert processes.find(4000, 5.0).began == 1
    assert processes.find(4000, 11.0).began == 2
    assert processes.find(4001, 0.0) is None
