"""A tree of headers of the running kernel, made of the types that it tells (BTF).

BCC compiles with the headers of the kernel that it runs on. A machine for tests need not have them, and those
of another kernel would put fields at the wrong places. What a program can ask of the headers is types, which
BTF holds all of, exactly; and a few macros, which are written here.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import needs_command

BTF = "/sys/kernel/btf/vmlinux"

TYPES = """
#pragma once
#define BPF_NO_PRESERVE_ACCESS_INDEX
/* Of all the kernel's types this one has the name of something in the probes. */
#define config btf_config
#include <btf.h>
#undef config
#define NULL ((void *)0)
#define offsetof(type, member) __builtin_offsetof(type, member)
#define __always_inline inline __attribute__((__always_inline__))
#define ___constant_swab16(value) __builtin_bswap16(value)
"""
VERSION = """
#pragma once
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
#define LINUX_VERSION_CODE {code}
"""
# Read before all others. BCC's own copy of linux/bpf.h would define again what BTF tells.
KCONFIG = """
#define _UAPI__LINUX_BPF_H__
#define CONFIG_BPF_SYSCALL 1
"""
EMPTY = (
    "asm/byteorder.h",
    "asm/page.h",
    "linux/blk-mq.h",
    "linux/if_ether.h",
    "linux/log2.h",
    "linux/pid_namespace.h",
    "linux/ptrace.h",
    "linux/sched.h",
    "linux/sched/signal.h",
    "linux/stddef.h",
    "net/tcp.h",
    "uapi/linux/bpf.h",
    "uapi/linux/if_ether.h",
    "uapi/linux/if_packet.h",
    "uapi/linux/ptrace.h",
)


def make_headers(directory: Path) -> Path:
    """The tree, in a directory; the test is skipped where the kernel does not tell its types."""
    bpftool = needs_command("bpftool", "bpftool")
    if not Path(BTF).exists():
        pytest.skip("needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF), to make headers of")
    release = os.uname().release
    numbers = [int(part) for part in release.split("-")[0].split(".")[:3]]
    code = (numbers[0] << 16) + (numbers[1] << 8) + min(numbers[2], 255)
    include = directory / "include"
    files = dict.fromkeys(EMPTY, "#include <linux/types.h>\n") | {
        "linux/types.h": TYPES,
        "linux/kconfig.h": KCONFIG,
        "linux/version.h": VERSION.format(code=code),
        "generated/utsrelease.h": f'#define UTS_RELEASE "{release}"\n',
        "btf.h": subprocess.run(
            [bpftool, "btf", "dump", "file", BTF, "format", "c"], capture_output=True, text=True, check=True
        ).stdout,
    }
    for name, text in files.items():
        path = include / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory
