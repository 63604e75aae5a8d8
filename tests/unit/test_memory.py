"""Freed memory is kept: the kernel need not clear it anew for each request."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

LOOP = """
import resource, sys
from otel_bridge.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def churn(times):
    for _ in range(times):
        pieces = [bytes(60_000) for _ in range(70)]
        del pieces
churn(20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn(100)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    result = subprocess.run([sys.executable, "-c", LOOP, mode], capture_output=True, text=True, check=True)
    return int(result.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told")
def test_requests_cost_no_new_pages():
    """A hundred rounds of 4 MB: next to no page is touched for the first time, a thousand a round without."""
    assert page_faults("kept") < 2000
    assert page_faults("default") > 20_000


THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HEAP = """
from pathlib import Path
from otel_bridge.memory import keep_freed_memory
assert keep_freed_memory()
print(Path("/proc/self/smaps").read_text())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told")
@pytest.mark.skipif(not THP.exists(), reason="the kernel has no transparent huge pages")
def test_what_is_kept_may_lie_in_huge_pages():
    """The kernel marks the stretch ("hg"); whether it has such pages free is its own affair."""
    result = subprocess.run([sys.executable, "-c", HEAP], capture_output=True, text=True, check=True)
    stretches = re.findall(r"\[heap\](?:\n[A-Z].*)+", result.stdout)
    marked = [stretch for stretch in stretches if re.search(r"VmFlags:.* hg\b", stretch)]
    sizes = [int(re.findall(r"Size: +(\d+) kB", stretch)[0]) for stretch in marked]
    assert sum(sizes) > 30_000
