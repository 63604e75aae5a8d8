"""GPU: levels, who holds what, preemption, sawtooth."""

from dashboards import panels
from dashboards.layout import GPU, assemble
from dashboards.panels import Section
from dashboards.queries import gpu

LEVELS = {0: ("low", "green"), 1: ("medium", "orange"), 2: ("critical", "red")}
LOST = {0: ("lost", "red"), 1: ("answers", "green")}
HELD = {0: ("no", "green"), 1: ("yes", "red")}

levels = Section(
    "Levels",
    [
        panels.states(
            "Memory pressure", "Level of each GPU's memory pressure.", gpu.PRESSURE, LEVELS, width=12
        ),
        panels.states("Reachable", "Whether the GPU or MIG instance answers.", gpu.UP, LOST, width=12),
        panels.lines(
            "Utilisation",
            "Share of time in which a kernel ran; absent under MIG.",
            "percentunit",
            gpu.UTILIZATION,
            top=1,
        ),
        panels.lines(
            "Memory in use",
            "Share of device memory, reserved memory aside.",
            "percentunit",
            gpu.MEMORY_RATIO,
            top=1,
        ),
        panels.lines(
            "Multiprocessors active",
            "Share of time that they worked.",
            "percentunit",
            gpu.SM_ACTIVE,
            width=8,
            top=1,
        ),
        panels.lines(
            "Occupancy",
            "Resident warps as a share of the most possible.",
            "percentunit",
            gpu.SM_OCCUPANCY,
            width=8,
            top=1,
        ),
        panels.lines(
            "Memory bandwidth",
            "Used share of the device memory's bandwidth.",
            "percentunit",
            gpu.DRAM_ACTIVE,
            width=8,
            top=1,
        ),
        panels.states(
            "Memory saturated", "Nearly full for so long that a breaker trips.", gpu.SATURATED, HELD
        ),
    ],
)
holders = Section(
    "Who holds what",
    [
        panels.lines(
            "Memory by process",
            "Device memory by service and process.",
            "bytes",
            gpu.PROCESS_MEMORY,
            stacked=True,
        ),
        panels.lines(
            "Memory of nobody",
            "Used device memory that no process is known to hold.",
            "bytes",
            gpu.UNATTRIBUTED,
        ),
        panels.lines("Memory by GPU", "Used device memory.", "bytes", gpu.MEMORY_USED),
        panels.states(
            "Pressure by tenant",
            "Host memory pressure of tenants, and whether GPU activity confirms it.",
            gpu.TENANT_PRESSURE,
            {0: ("none", "green"), 1: ("medium", "orange"), 2: ("critical", "red")},
            width=12,
        ),
    ],
)
sharing = Section(
    "Preemption and sawtooth",
    [
        panels.lines(
            "Preemption gap",
            "Occupancy of the last 60 s less that of the last 5 s, while busy: what time slicing took.",
            "percentunit",
            gpu.PREEMPTION_GAP,
            signed=True,
        ),
        panels.states(
            "Preempted", "Whether a tenant is held to be preempted.", gpu.PREEMPTED, HELD, width=12
        ),
        panels.lines(
            "Sawtooth swing",
            "Swing of the utilisation's regular rise and fall; 0 while it has none.",
            "percentunit",
            gpu.SWING,
            width=8,
            top=1,
        ),
        panels.lines(
            "Sawtooth period",
            "Period of that rise and fall; absent while it has none.",
            "s",
            gpu.PERIOD,
            width=8,
        ),
        panels.lines(
            "Correlation with host memory",
            "Near 1 or -1, host memory explains the sawtooth.",
            "short",
            gpu.CORRELATION,
            width=8,
            signed=True,
        ),
    ],
)
hardware = Section(
    "Hardware",
    [
        panels.lines("Power", "Drawn by the card.", "watt", gpu.POWER, width=8),
        panels.lines("Temperature", "Of GPU and memory.", "celsius", gpu.TEMPERATURE, width=8),
        panels.lines("Clocks", "Of multiprocessors and memory.", "hertz", gpu.CLOCK, width=8),
        panels.lines("PCIe", "Transmitted and received.", "Bps", gpu.PCIE, width=8),
        panels.lines("NVLink", "Transmitted and received.", "Bps", gpu.NVLINK, width=8),
        panels.lines("ECC errors", "Since the driver was loaded.", "short", gpu.ECC, width=8),
        panels.lines(
            "Xid errors", "New ones, a second: the counter behind it never resets.", "cps", gpu.XID, width=8
        ),
        panels.states("Throttled", "Whether clocks are held down, by reason.", gpu.THROTTLED, HELD, width=8),
        panels.lines(
            "Absent readings", "Readings that the driver did not give, a second.", "cps", gpu.ABSENT, width=8
        ),
    ],
)

dashboard = assemble(
    "otel-bridge-gpu",
    "OTel Bridge / GPU",
    "GPUs and MIG instances: how full and how busy they are, who holds their memory, who is preempted.",
    [levels, holders, sharing, hardware],
    [GPU],
)
