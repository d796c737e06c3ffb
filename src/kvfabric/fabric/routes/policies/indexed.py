"""``dmodk``, ``path-source``, ``path-destination``: the path follows from a port's number alone."""

import numpy as np

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.graph import IntArray
from kvfabric.fabric.routes.folded_clos import folded_clos
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.balancer import (
    StatelessBalancer,
    Stripe,
    SubFlow,
    stripe_path,
    stripes,
)
from kvfabric.fabric.routes.routing_tables import PathRules, Policy


class PathIndexBalancer(StatelessBalancer):
    """Path distribution by a fixed rule: number of a NIC port modulo number of choices.

    ``path-source`` goes by the port that sends: what one NIC sends to a switch stays on one path,
    so a paused receiver holds up its own senders' paths only. ``path-destination`` goes by the port
    that receives: what a NIC receives comes in on few paths, so its back-pressure stays on those.

    Numbers in a folded Clos, tier by tier: ports in order of their leaves; from tier t (leaves are
    tier 0) the choice is ``number // (uplinks of a leaf * ... of a switch of tier t - 1) % count``,
    up and down, so that the ports of one leaf spread over all its uplinks. Elsewhere, at every
    switch: the port's place at the switch of port 0 plus the number of that switch, modulo the
    count. So in ZCube the GPUs of one rank and those of one server are both spread over the
    parallel cables, where the plain index of the GPU would use ``m / (n / k)`` of them.
    """

    def __init__(self, paths: PathTable, *, by_source: bool) -> None:
        """Number the ports."""
        super().__init__(paths)
        self._by_source = by_source
        clos = folded_clos(paths)
        self._numbers = diagonal_numbers(paths) if clos is None else clos.port_numbers.tolist()
        if clos is None:
            self._divisors = [1] * len(paths.bundle_head)
        else:
            self._divisors = clos.bundle_divisors.tolist()

    @property
    def name(self) -> str:
        """Return ``path-source`` or ``path-destination``."""
        return "path-source" if self._by_source else "path-destination"

    def route(
        self,
        src_gpu: int,
        dst_gpu: int,
        num_bytes: int,
        flow_key: int,  # noqa: ARG002 - the interface of all policies
    ) -> tuple[SubFlow, ...]:
        """Return one sub-flow per port pair."""
        parts = stripes(self._paths, src_gpu, dst_gpu, num_bytes)
        return tuple(SubFlow(self._path(stripe), stripe.num_bytes) for stripe in parts)

    def _path(self, stripe: Stripe) -> tuple[int, ...]:
        paths, num_ports = self._paths, self._paths.topology.ports_per_nic
        source_number = self._numbers[stripe.src_gpu * num_ports + stripe.src_port]
        target_number = self._numbers[stripe.dst_gpu * num_ports + stripe.dst_port]
        number = source_number if self._by_source else target_number
        switch = source = paths.access_switch(stripe.src_gpu, stripe.src_port)
        target = paths.access_switch(stripe.dst_gpu, stripe.dst_port)
        hops = []
        while switch != target:
            choices = paths.channels_toward(switch, target)
            divisor = self._divisors[paths.bundle_of[choices[0]]]
            if switch == source:
                choices = paths.without_gpu(choices, stripe.src_gpu)
            hops.append(choices[number // divisor % len(choices)])
            switch = paths.next_switch(hops[-1])
        return stripe_path(paths, stripe, hops)

    @property
    def rules(self) -> PathRules:
        """Return fabric, numbers and divisors."""
        return PathRules(
            policy=Policy.INDEXED,
            paths=self._paths,
            port_numbers=self._numbers,
            divisors=self._divisors,
            by_source=self._by_source,
        )


class DmodkBalancer(PathIndexBalancer):
    """Destination-indexed up-paths (D-mod-k), as InfiniBand subnet managers route fat-trees.

    The rule of ``PathIndexBalancer`` by destination. Every destination has one path down from each
    spine and core, and the destinations of one leaf spread over all of its uplinks, so shift
    permutations collide nowhere. Refused on fabrics that are no folded Clos.

    Source: Zahavi, "Fat-tree routing and node ordering providing contention free traffic for MPI
    global collectives", J. Parallel Distrib. Comput. 72, 2012.
    """

    def __init__(self, paths: PathTable) -> None:
        """Number the ports in order of their leaves."""
        if folded_clos(paths) is None:
            raise UnsupportedError(
                f"dmodk over {paths.topology.name}, which has no up and down",
                where="fabric.load_balancing",
                hint="Write path-destination, path-source or ecmp",
            )
        super().__init__(paths, by_source=False)

    @property
    def name(self) -> str:
        """Return ``dmodk``."""
        return "dmodk"


def diagonal_numbers(paths: PathTable) -> list[int]:
    """Return ``[num_gpus * ports_per_nic]``: place at the switch of port 0 plus its index."""
    topology = paths.topology
    first = topology.access_switches[:, 0]
    place: IntArray = np.zeros(topology.num_gpus, np.int64)
    order = np.argsort(first, kind="stable")
    counts = np.bincount(first, minlength=topology.num_switches)
    starts = np.cumsum(counts) - counts
    place[order] = np.arange(topology.num_gpus) - starts[first[order]]
    numbers: list[int] = np.repeat(place + first, topology.ports_per_nic).tolist()
    return numbers
