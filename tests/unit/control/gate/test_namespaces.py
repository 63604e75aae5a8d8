"""Services are found in a procfs of the test's own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from otel_bridge.control.gate.config import GateConfig
from otel_bridge.control.gate.namespaces import Processes, cgroup_of, find, libraries

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue\n"


def gate(**config):
    """A gate's configuration."""
    return GateConfig.model_validate({"targets": ["*"]} | config)


class Proc:
    """Processes; each namespace is a file that links share."""

    def __init__(self, root):
        self.root = root
        (root / "namespaces").mkdir()
        (root / "uptime").write_text("1 1")
        (root / "self").mkdir()
        (root / "self" / "mountinfo").write_text(
            "30 1 0:26 / /sys/fs/cgroup\\040x rw - cgroup2 cgroup2 rw\n31 1 0:27 / /proc rw - proc proc rw\n"
        )

    def add(self, pid, namespace, *, command=("sleep",), tcp="", tcp6=None, cgroup="0::/\n"):
        """One process; gives its namespace's inode."""
        process = self.root / str(pid)
        (process / "ns").mkdir(parents=True)
        (process / "net").mkdir()
        place = self.root / "namespaces" / namespace
        place.touch()
        (process / "ns" / "net").hardlink_to(place)
        (process / "comm").write_text(command[0].rpartition("/")[2][:15] + "\n")
        (process / "cmdline").write_text("".join(f"{word}\0" for word in command))
        (process / "net" / "tcp").write_text(HEADER + tcp)
        if tcp6 is not None:
            (process / "net" / "tcp6").write_text(HEADER + tcp6)
        (process / "cgroup").write_text(cgroup)
        return place.stat().st_ino

    def look(self):
        """As they are now."""
        return Processes(self.root)

    def find(self, **config):
        """The inodes of a service's namespaces."""
        return set(find(gate(**config), self.look()).namespaces)


@pytest.fixture
def proc(tmp_path):
    """An empty one."""
    return Proc(tmp_path)


def test_by_name_or_command_line(proc):
    """In every namespace, once."""
    first = proc.add(10, "first", command=("/usr/bin/llama-server", "-m", "x.gguf"))
    proc.add(11, "first", command=("/usr/bin/llama-server",))
    second = proc.add(12, "second", command=("python3", "-m", "vllm.entrypoints.openai.api_server"))
    proc.add(13, "third", command=("bash",))
    proc.add(14, "kernel", command=("",))
    assert proc.find(process="llama-server") == {first}
    assert proc.find(process="*vllm*") == {second}
    assert proc.find(process="nobody") == set()


def test_by_number_and_by_path(proc):
    """A number that is gone finds nothing."""
    inode = proc.add(10, "first")
    assert proc.find(pid=10) == {inode}
    assert proc.find(pid=11) == set()
    assert proc.find(namespace=str(proc.root / "namespaces" / "first")) == {inode}
    assert proc.find(namespace="/nowhere/at/all") == set()


def test_by_port(proc):
    """Only where somebody listens, over IPv4 or IPv6; with IPv6 absent as well."""
    listening = "   0: 0100007F:1F90 00000000:0000 0A 0 0\n"
    connected = "   0: 0100007F:1F90 0100007F:A000 01 0 0\n"
    six = "   0: 00000000000000000000000000000000:1F91 00000000000000000000000000000000:0000 0A 0 0\n"
    first = proc.add(10, "first", tcp=listening)
    proc.add(11, "second", tcp=connected, tcp6="")
    third = proc.add(12, "third", tcp6=six)
    assert proc.find(ports=[8080]) == {first}
    assert proc.find(ports=[8081]) == {third}
    assert proc.find(ports=[8080, 8081]) == {first, third}
    assert proc.find(ports=[9]) == set()


def test_processes_that_may_not_be_looked_at_are_told(proc, monkeypatch):
    """Which may be the reason that nothing is found."""
    proc.add(10, "first", command=("llama-server",))
    config = gate(process="llama-server")
    assert find(config, proc.look()).missing == ""
    assert "nothing runs that fits" in find(config.model_copy(update={"process": "x"}), proc.look()).missing

    def refuse(_path):
        raise PermissionError

    monkeypatch.setattr("otel_bridge.control.gate.namespaces.inode_of", refuse)
    assert (
        "1 processes could not be looked at: that takes CAP_SYS_PTRACE" in find(config, proc.look()).missing
    )


def test_the_control_group(proc):
    """Version 2's; the root is nobody's own."""
    proc.add(10, "first", cgroup="4:memory:/x\n0::/system.slice/llama.service\n")
    proc.add(11, "first", cgroup="4:memory:/x\n0::/\n")
    assert str(cgroup_of(10, proc.root)) == "/sys/fs/cgroup x/system.slice/llama.service"
    assert cgroup_of(11, proc.root) is None


def test_libraries_of_a_namespace(proc):
    """By the file's name, each file once, whoever has it mapped; deleted ones cannot be opened."""
    lines = (
        "7f00-7f10 r--p 00000000 08:01 42 /usr/lib/libcuda.so.535.1\n"
        "7f10-7f20 r-xp 00001000 08:01 42 /usr/lib/libcuda.so.535.1\n"
        "7f20-7f30 r-xp 00000000 08:01 43 /opt/my libs/libcuda.so.1\n"
        "7f30-7f40 r-xp 00000000 08:01 44 /usr/lib/libcuda.so.1 (deleted)\n"
        "7f40-7f50 r-xp 00000000 08:01 45 /usr/lib/libcudart.so.12\n"
        "7f50-7f60 rw-p 00000000 00:00 0\n"
    )
    inode = proc.add(10, "first")
    proc.add(11, "first")
    proc.add(12, "second")
    for pid in (10, 11):
        (proc.root / str(pid) / "maps").write_text(lines)
    (proc.root / "12" / "maps").write_text(lines.replace("08:01", "08:02"))
    found = libraries(inode, "libcuda.so*", proc.look())
    assert set(found) == {"08:01 42", "08:01 43"}
    assert str(found["08:01 43"]).endswith("/root/opt/my libs/libcuda.so.1")
    assert libraries(inode, "libnccl.so*", proc.look()) == {}
    assert libraries(1, "libcuda.so*", proc.look()) == {}


def test_each_process_is_read_once_for_all_gates(proc, monkeypatch):
    """And the ports of a namespace once for all processes in it; those that may not be looked at, too."""
    for pid in range(10, 17):
        proc.add(pid, f"n{pid % 3}", command=("llama-server",))
        (proc.root / str(pid) / "maps").write_text("7f00-7f10 r--p 0 08:01 42 /usr/lib/libcuda.so.1\n")
    (proc.root / "16" / "ns" / "net").unlink()
    read: Counter[str] = Counter()
    for name in ("stat", "read_bytes", "read_text", "iterdir"):
        real = getattr(Path, name)

        def counting(path, *args, r=real, **options):
            read[str(path)] += 1
            return r(path, *args, **options)

        monkeypatch.setattr(Path, name, counting)
    look = proc.look()
    for number in range(5):
        assert not find(gate(process=f"nobody{number}"), look).namespaces
        assert not find(gate(ports=[number + 1]), look).namespaces
        for inode in {look.namespace(pid) for pid in range(10, 16)}:
            assert set(libraries(inode, "libcuda*", look)) == {"08:01 42"}
            assert libraries(inode, "libnccl*", look) == {}
    assert set(read.values()) == {1}
    assert sum(path.endswith("net/tcp") for path in read) == 3
    assert sum(path.endswith("maps") for path in read) == 6
