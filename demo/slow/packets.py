"""Loses the packets of one connection for a while, by a rule of nftables that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from demo.errors import DemoError

if TYPE_CHECKING:
    from collections.abc import Iterator


def nft() -> str | None:
    """Its path."""
    return shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextmanager
def lost(source: int, destination: int) -> Iterator[None]:
    """Nothing from one port of loopback arrives at another.

    In the input hook: what is dropped in the output hook is told to the sender, and nothing is sent again.

    Raises:
        DemoError: refused.
    """
    table = f"otel_bridge_demo_{os.getpid()}"
    _run(
        f"add table ip {table}\n"
        f"add chain ip {table} input {{ type filter hook input priority 0; }}\n"
        f'add rule ip {table} input iifname "lo" tcp sport {source} tcp dport {destination} drop\n'
    )
    try:
        yield
    finally:
        _run(f"delete table ip {table}\n")


def _run(rules: str) -> None:
    program = nft()
    if program is None:
        raise DemoError("nft is not installed", "apt-get install nftables")
    ended = subprocess.run([program, "-f", "-"], input=rules, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise DemoError(
            f"nft refused the rule that loses packets: {ended.stderr.strip()}",
            "a kernel with nf_tables (modprobe nf_tables); in a container also --cap-add NET_ADMIN",
        )
