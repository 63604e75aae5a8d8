"""Kernel: network, scheduler, disks, memory, TLS, and how well the probes see."""

from dashboards import panels
from dashboards.layout import assemble
from dashboards.panels import Section
from dashboards.queries import kernel

network = Section(
    "Network and TLS",
    [
        panels.lines("Retransmits and resets", "TCP, a second.", "cps", kernel.RETRANSMITS, width=8),
        panels.lines(
            "Stalls",
            "Connections that wait: opening, closed windows, full queues; a second.",
            "cps",
            kernel.STALLS,
            width=8,
        ),
        panels.lines("TLS handshakes", "A second.", "cps", kernel.HANDSHAKES, width=8),
        panels.lines(
            "TIME_WAIT",
            "Connections in it, the ports there are, and the limit.",
            "short",
            kernel.TIME_WAIT,
            width=24,
        ),
    ],
)
waiting = Section(
    "Scheduler, disks, memory",
    [
        panels.lines(
            "Waits for a CPU", "Long waits and sums of waits, events a second.", "cps", kernel.WAITS, width=8
        ),
        panels.lines("Reclaim and OOM kills", "Events a second.", "cps", kernel.RECLAIM, width=8),
        panels.lines(
            "Time lost by cause",
            "Seconds of spans lost, a second, of all services.",
            "s",
            kernel.LOST_TIME,
            width=8,
            stacked=True,
        ),
        panels.lines(
            "Memory pressure",
            "Share of the last ten seconds in which some task of the cgroup, or all that could run (full), "
            "waited for memory; / is the machine. Above 10 % is trouble.",
            "percentunit",
            kernel.MEMORY_PRESSURE,
        ),
        panels.lines(
            "Time stalled for memory",
            "Seconds, a second, in which some task of the cgroup, or all (full), waited for memory.",
            "s",
            kernel.MEMORY_STALLED,
        ),
        panels.lines(
            "Block I/O latency", "Mean, from queued to done, by device.", "s", kernel.BLOCK_LATENCY, width=6
        ),
        panels.lines(
            "Block I/O requests", "Ended, a second, by device.", "iops", kernel.BLOCK_REQUESTS, width=6
        ),
        panels.lines(
            "Block I/O in flight", "Queued and not done, by device.", "short", kernel.BLOCK_IN_FLIGHT, width=6
        ),
        panels.lines("Block I/O errors", "A second, by device.", "cps", kernel.BLOCK_ERRORS, width=6),
    ],
)
probes = Section(
    "How well the probes see",
    [
        panels.states(
            "Probes at work",
            "Whether each probe is loaded.",
            kernel.LOADED,
            {0: ("off", "text"), 1: ("at work", "green")},
        ),
        panels.lines(
            "Events",
            "Read and handed on, a second, by probe, kind and how their span was found.",
            "cps",
            kernel.EVENTS,
        ),
        panels.lines(
            "Events lost", "A second: no room, over the limit, or malformed.", "cps", kernel.DROPPED
        ),
        panels.lines("Contexts not used", "A second, by why.", "cps", kernel.BAD_CONTEXTS, width=6),
        panels.lines(
            "State lost",
            "What a program could not follow because a table was full, a second.",
            "cps",
            kernel.LOST_STATE,
            width=6,
        ),
        panels.lines(
            "Processes followed",
            "Processes whose threads' spans the kernel knows.",
            "short",
            kernel.PROCESSES,
            width=6,
        ),
        panels.lines(
            "Clock error",
            "How far off an event's time may be from a span's.",
            "s",
            kernel.CLOCK_ERROR,
            width=6,
        ),
    ],
)

dashboard = assemble(
    "otel-bridge-kernel",
    "OTel Bridge / Kernel",
    "What the probes see of network, scheduler, disks, memory and TLS, and what they miss.",
    [network, waiting, probes],
)
