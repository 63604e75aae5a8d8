"""Who measures must not wait for a CPU: the wait would be in the figure."""

from __future__ import annotations

import ctypes
import os

INSTRUMENT, CLIENTS = 20, 10
"""Priorities: who measures goes before the clients, and these before what is measured on the same core."""
_PR_SET_TIMERSLACK = 29


def go_first(priority: int) -> None:
    """Do and measure things when they are due, and not when the scheduler gets to it; takes root."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def go_as_others() -> None:
    """Undo it."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
