"""Reads the packet-level reference runs: flows, the paths they took, and when each one ended.

Source: uet-htsim (RoCE with PFC alone, no congestion control), three-tier fat trees of 400 Gbit/s
links, frames of 4,096 + 64 bytes, XOFF/XON at 60/40 frames per ingress port, ECMP per flow. The
folder ``fabric/packet_level`` of the reference data holds, per workload, ``NAME.fct.csv`` with the
upward queues that ECMP chose. The way down follows from the core switch and the target's leaf.
"""

from reference import reference_path

from kvfabric.app.validate_reference import ReferenceFolder
from kvfabric.plan.validation.packet_level import PacketLevelRun, hosts_per_leaf, run_of

WORKLOADS = ("incast128", "incastv128", "perm128", "kv128", "kv128mid", "perm1024n")


def read_run(name: str) -> PacketLevelRun:
    """Return a workload of the reference data, or skip the test where there is none."""
    folder = reference_path("fabric/packet_level")
    flows = ReferenceFolder(folder.parents[1]).packet_flows(name)
    return run_of(flows, hosts_per_leaf(name))
