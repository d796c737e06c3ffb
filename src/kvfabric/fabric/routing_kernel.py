"""Compiled routing: what the balancers of ``load_balancing`` do, over arrays; ``routing`` calls it.

Path for path and choice for choice the same as those balancers, which are its readable twins.
"""

# ruff: noqa: PLR0917 — compiled functions take their arrays one by one

from typing import Any

import numpy as np

from kvfabric.fabric.compiled import compiled, inner
from kvfabric.fabric.maxmin_tables import Indices, Ints, Records
from kvfabric.fabric.measures import ByteArray
from kvfabric.fabric.routing_tables import Policy, RoutingTables

_ECMP, _ASSIGNED = int(Policy.ECMP), int(Policy.ASSIGNED)
_U64: Any = np.uint64  # hashes are unsigned throughout: mixed with int64 they would turn to float64
_LOW = _U64(0xFFFFFFFF)


@inner
def _mix64(value: Any) -> Any:
    value += _U64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U64(27))) * _U64(0x94D049BB133111EB)
    return value ^ (value >> _U64(31))


@inner
def _scaled(value: Any, count: int) -> int:
    """Return ``value * count >> 64``, of a count below 2**32."""
    num = _U64(count)
    low = (value & _LOW) * num >> _U64(32)
    scaled: int = np.int64(((value >> _U64(32)) * num + low) >> _U64(32))  # type: ignore[assignment]
    return scaled


@inner
def _same_row(rows: Records, items: Indices, row: int, first: int, length: int) -> int:
    """Return the row from ``row`` on that holds the items from ``first`` on; -1: there is none."""
    while row >= 0:
        found = rows[row]
        num_same = length if found.num_items == length else 0
        begin, place = found.first, 0
        while place < num_same:
            if items[begin + place] != items[first + place]:
                num_same = -1
            place += 1
        if num_same == length:
            break
        row = found.next
    return row


@inner
def _find_row(r: RoutingTables, switch: int, target: int) -> int:
    """Make out what leads one step closer to a target and note it as a row of the switch."""
    state, tail, items, bundles = r.router[0], r.switches[switch], r.items, r.bundles
    distances, closer = r.distances, np.int64(r.distances[switch, target]) - 1
    first = end = state.num_items
    for idx in range(tail.first_bundle, tail.first_bundle + tail.num_bundles):
        bundle = bundles[idx]
        if distances[bundle.head, target] == closer:
            if state.policy == _ASSIGNED:
                items[end] = idx
                end += 1
            else:
                for place in range(bundle.first, bundle.first + bundle.num_channels):
                    items[end] = r.bundled[place]
                    end += 1
    row: int = _same_row(r.rows, items, tail.first_row, first, end - first)
    if row < 0:
        row = state.num_rows
        entry = r.rows[row]
        entry.first, entry.num_items, entry.next = first, end - first, tail.first_row
        tail.first_row = row
        state.num_rows, state.num_items = row + 1, end
    r.row_of[switch, target] = row + 1
    return row


@inner
def _hash_path(
    r: RoutingTables, source: int, target: int, key: Any, path: Indices, num_hops: int
) -> int:
    """Append one hashed channel per switch; return the new number of hops."""
    switch = source
    while switch != target:
        idx = r.row_of[switch, target] - 1
        if idx < 0:
            idx = _find_row(r, switch, target)
        row = r.rows[idx]
        chosen = _scaled(_mix64(key ^ r.switches[switch].salt), row.num_items)
        channel = r.items[row.first + chosen]
        path[num_hops] = channel
        switch = r.channels[channel].head
        num_hops += 1
    return num_hops


@inner
def _copy_stages(rows: Records, items: Indices, row: int, path: Indices, num_hops: int) -> int:
    """Append the channels of a row; return the new number of hops."""
    first = rows[row].first
    for place in range(first, first + rows[row].num_items):
        path[num_hops] = items[place]
        num_hops += 1
    return num_hops


@inner
def _find_least_loaded(r: RoutingTables, source: int, target: int) -> None:
    """Note at every switch on the way how the least loaded path comes there, stage by stage."""
    switches, bundles, items, frontier = r.switches, r.bundles, r.items, r.frontier
    goal, start = switches[target], switches[source]
    search, turn = r.router[0].search + 1, start.turn
    r.router[0].search = search
    start.turn = turn + 1
    start.search, start.largest_bytes, start.total_bytes = search, 0, 0
    frontier[0] = source
    num_here, here, there = 1, 0, len(switches)
    while goal.search != search:
        num_there = 0
        for place in range(here, here + num_here):
            switch = frontier[place]
            tail = switches[switch]
            idx = r.row_of[switch, target] - 1
            if idx < 0:
                idx = _find_row(r, switch, target)
            first, num_items = r.rows[idx].first, r.rows[idx].num_items
            taken = first + turn % num_items
            for _ in range(num_items):
                bundle = bundles[items[taken]]
                least = bundle.least_bytes
                largest, total = max(tail.largest_bytes, least), tail.total_bytes + least
                reached = switches[bundle.head]
                is_new = reached.search != search
                if is_new:
                    frontier[there + num_there] = bundle.head
                    num_there += 1
                if (
                    is_new
                    or largest < reached.largest_bytes
                    or (largest == reached.largest_bytes and total < reached.total_bytes)
                ):
                    reached.search, reached.came_by, reached.came_from = (
                        search,
                        items[taken],
                        switch,
                    )
                    reached.largest_bytes, reached.total_bytes = largest, total
                taken += 1
                if taken == first + num_items:
                    taken = first
        num_here, here, there = num_there, there, here


@inner
def _add_load(
    channels: Records, bundles: Records, bundled: Indices, channel: int, num_bytes: int
) -> None:
    """Add to a channel's load and find its bundle's least loaded one; ties go to the next."""
    load = channels[channel]
    load.assigned_bytes += num_bytes
    bundle = bundles[load.bundle]
    lightest, least, place = -1, 0, load.place
    for _ in range(bundle.num_channels):
        place += 1
        if place == bundle.num_channels:
            place = 0
        candidate = bundled[bundle.first + place]
        candidate_bytes = channels[candidate].assigned_bytes
        if lightest < 0 or candidate_bytes < least:
            lightest, least = candidate, candidate_bytes
    bundle.lightest, bundle.least_bytes = lightest, least


@inner
def _assign_path(
    r: RoutingTables, source: int, target: int, num_bytes: int, path: Indices, num_hops: int
) -> int:
    """Append the least loaded path and load it; return the new number of hops."""
    _find_least_loaded(r, source, target)
    switches, bundles = r.switches, r.bundles
    end: int = num_hops + r.distances[source, target]
    switch, place = target, end
    while switch != source:
        place -= 1
        path[place] = bundles[switches[switch].came_by].lightest
        switch = switches[switch].came_from
    for hop in range(num_hops, end):
        _add_load(r.channels, bundles, r.bundled, path[hop], num_bytes)
    return end


@inner
def _is_straight(ports: Records, distances: ByteArray, source: int, target: int) -> bool:
    """Tell whether port 0 of a two-port NIC sends to port 0: ``PathTable.port_pairs``."""
    a, b = ports[source].switch, ports[source + 1].switch
    c, d = ports[target].switch, ports[target + 1].switch
    straight, crossed = distances[a, c] + distances[b, d], distances[a, d] + distances[b, c]
    is_straight: bool = straight < crossed
    return is_straight


@compiled
def route(
    r: RoutingTables,
    messages: Ints,
    first_message: int,
    num_messages: int,
    transfer_id: int,
    group: int,
    new: Records,
    path: Indices,
) -> tuple[int, int, int]:
    """Route the messages of a transfer from one of them on.

    Args:
        r: the tables. Their ``router`` counts sub-flows and hops so far, from 0 for message 0.
        messages: source GPU, destination GPU and bytes of each, one after the other.
        first_message: where to begin.
        num_messages: of the whole transfer.
        transfer_id: with the number of a message it tells connections apart.
        group: of the new flows.
        new: takes the sub-flows, as ``NEW_FLOW``.
        path: takes their channels.

    Returns:
        The first message not routed, for want of room for rows, or ``num_messages``; the sub-flows;
        the hops of the longest path.
    """
    state = r.router[0]
    if first_message == 0:
        state.num_new = state.num_hops = state.longest_hops = 0
    num_new, num_hops = state.num_new, state.num_hops
    num_ports, queue_pairs = state.ports_per_nic, state.queue_pairs
    num_parts = num_ports * queue_pairs
    for message in range(first_message, num_messages):
        src, dst = messages[3 * message], messages[3 * message + 1]
        num_bytes = messages[3 * message + 2]
        if src // state.gpus_per_server == dst // state.gpus_per_server:
            continue
        if state.num_items + state.items_per_message > len(r.items):
            return message, num_new, state.longest_hops
        src, dst = src * num_ports, dst * num_ports
        shift = 0 if num_ports == 1 or _is_straight(r.ports, r.distances, src, dst) else 1
        for position in range(min(num_parts, num_bytes)):
            # dealt in turn, so that a short message still uses all ports
            port = position % num_ports
            up, down = r.ports[src + port], r.ports[dst + (port ^ shift)]
            size = num_bytes // num_parts + (1 if position < num_bytes % num_parts else 0)
            first = num_hops
            path[num_hops] = up.uplink
            num_hops += 1
            if state.policy == _ECMP:
                connection = (_U64(transfer_id) << _U64(16) | _U64(message)) * _U64(
                    queue_pairs
                ) + _U64(position // num_ports)
                key = _mix64(state.seed ^ _U64(up.uplink))
                key = _mix64(_mix64(key ^ _U64(down.uplink + 1)) ^ connection)
                num_hops = _hash_path(r, up.switch, down.switch, key, path, num_hops)
            elif state.policy == _ASSIGNED:
                num_hops = _assign_path(r, up.switch, down.switch, size, path, num_hops)
            elif up.switch != down.switch:
                row = r.row_of[up.switch, down.switch] - 1
                num_hops = _copy_stages(r.rows, r.items, row, path, num_hops)
            path[num_hops] = down.uplink + 1
            num_hops += 1
            flow = new[num_new]
            flow.payload_bytes = size
            flow.size_bytes = -(-size * state.frame_bytes // state.payload_bytes)
            flow.first_hop, flow.num_hops, flow.group = first, num_hops - first, group
            state.longest_hops = max(state.longest_hops, num_hops - first)
            num_new += 1
        state.num_new, state.num_hops = num_new, num_hops
    return num_messages, num_new, state.longest_hops


@compiled
def release(r: RoutingTables, flows: Records, hops: Records, done: Records, num_done: int) -> None:
    """Take the load of the flows that ``done`` lists off the channels between switches."""
    stride = len(hops) // len(flows)
    for i in range(num_done):
        slot = done[i].slot
        first = slot * stride
        for hop in range(first + 1, first + flows[slot].num_hops - 1):
            num_bytes = -flows[slot].payload_bytes
            _add_load(r.channels, r.bundles, r.bundled, hops[hop].channel, num_bytes)
