"""CPUs that save power answer late: between two blocks of KV they slow down, and have to speed up again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.subjects import GIGABIT_PER_S, hardware_nics

_CPUS = "/sys/devices/system/cpu"
SLOW = frozenset({"powersave", "conservative", "ondemand"})
RAIL_BITS_PER_S = 25 * GIGABIT_PER_S


def judge(host: Host) -> Iterator[Finding]:
    """Yield a governor that saves power on a host with a fast NIC. Intel's own driver scales by itself: a hint only."""
    found = Counter(
        governor
        for name in host.tree.names(_CPUS)
        if name.removeprefix("cpu").isdigit()
        and (governor := host.tree.read(f"{_CPUS}/{name}/cpufreq/scaling_governor"))
    )
    slow = {governor: count for governor, count in found.items() if governor in SLOW}
    rails = [nic.name for nic in hardware_nics(host) if (nic.speed_bits_per_s or 0) >= RAIL_BITS_PER_S]
    if not slow or not rails:
        return
    driver = host.tree.read(f"{_CPUS}/cpu0/cpufreq/scaling_driver") or ""
    active = driver in ("intel_pstate", "amd-pstate-epp") or (not driver and "intel_pstate" in host.tree.names(_CPUS))
    own = active and set(slow) == {"powersave"}
    named = ", ".join(f"{governor} on {count} CPUs" for governor, count in slow.items())
    yield Finding(
        level=Level.INFO if own else Level.WARNING,
        symptom=f"the CPU frequency governor saves power: {named}",
        cause="a CPU that idles between blocks clocks down, and the next message waits until it is fast again",
        fix="cpupower frequency-set -g performance",
        evidence=tuple(f"{_CPUS}/cpu*/cpufreq/scaling_governor: {governor}" for governor in slow),
    )


CHECK = Check(
    name="cpu-governor",
    title="CPUs run at full speed when a message comes",
    reads=(f"{_CPUS}/cpu*/cpufreq/{{scaling_governor,scaling_driver}}", f"{_CPUS}/intel_pstate/no_turbo"),
    reference="https://docs.kernel.org/admin-guide/pm/cpufreq.html",
    judge=judge,
)
