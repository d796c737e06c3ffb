"""Compiled routing: what the balancers of ``policies`` do, over arrays; ``routing`` calls it.

Path for path and choice for choice the same as those balancers, which are its readable twins.
"""

# ruff: noqa: PLR0917 — compiled functions take their arrays one by one

from typing import Any

import numpy as np

from kvfabric.fabric.engines.compiled import compiled, inner
from kvfabric.fabric.engines.maxmin_tables import Indices, Ints, Records
from kvfabric.fabric.measured.measures import UNREACHABLE
from kvfabric.fabric.routes.port_pairing import LINK_PENALTY, MOST_SQUARES, PORT_PENALTY
from kvfabric.fabric.routes.routing_tables import Policy, RoutingTables

_ECMP, _ASSIGNED, _INDEXED = int(Policy.ECMP), int(Policy.ASSIGNED), int(Policy.INDEXED)
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
    distances = r.distances
    closer = np.int64(distances[switch, target]) - state.links_per_hop
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
def _row_toward(r: RoutingTables, switch: int, target: int) -> int:
    """Return the row of what leads one step closer to a target."""
    row: int = r.row_of[switch, target] - 1
    if row < 0:
        row = _find_row(r, switch, target)
    return row


@inner
def _passes(r: RoutingTables, item: int, gpu: int) -> bool:
    """Tell whether an item is a relay of a GPU; none is of GPU -1."""
    if gpu < 0:
        return False
    hop = r.bundles[item].lightest if r.router[0].policy == _ASSIGNED else item
    is_passed: bool = r.channels[hop].gpu == gpu
    return is_passed


@inner
def _num_choices(r: RoutingTables, row: int, gpu: int) -> int:
    """Return the items of a row that are no relay of a GPU; -1 if all are."""
    first, num = r.rows[row].first, 0
    for place in range(first, first + r.rows[row].num_items):
        if not _passes(r, r.items[place], gpu):
            num += 1
    return num or -1


@inner
def _nth_choice(r: RoutingTables, row: int, gpu: int, number: int) -> int:
    """Return one of the items that ``_num_choices`` counts."""
    place = r.rows[row].first
    if gpu < 0:
        return int(r.items[place + number])
    while True:
        if not _passes(r, r.items[place], gpu):
            number -= 1
            if number < 0:
                return int(r.items[place])
        place += 1


@inner
def _walk(
    r: RoutingTables, ends: tuple[int, int, int], key: Any, path: Indices, num_hops: int
) -> int:
    """Append one hop per switch, hashed or by number; return the new number of hops.

    ``ends`` are both switches and, where hosts forward, the source GPU, else -1. ``key`` is the
    hash, or the number of a NIC port.
    """
    source, target, src_gpu = ends
    switch, is_hashed = source, r.router[0].policy == _ECMP
    while switch != target:
        row = _row_toward(r, switch, target)
        gpu = src_gpu if switch == source else -1
        count: int = r.rows[row].num_items
        if gpu >= 0:
            count = _num_choices(r, row, gpu)
            if count < 0:
                gpu, count = -1, r.rows[row].num_items
        if is_hashed:
            chosen = _scaled(_mix64(key ^ r.switches[switch].salt), count)
        else:
            bundle = r.channels[r.items[r.rows[row].first]].bundle
            chosen = np.int64(key) // r.bundles[bundle].divisor % count
        hop = _nth_choice(r, row, gpu, chosen)
        path[num_hops] = hop
        switch = r.channels[hop].head
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
def _reach(r: RoutingTables, bundle_idx: int, switch: int) -> bool:
    """Note the way to a bundle's head over it, if it is new or better; tell whether it is new."""
    bundle, tail, search = r.bundles[bundle_idx], r.switches[switch], r.router[0].search
    reached = r.switches[bundle.head]
    least = bundle.least_bytes
    largest, total = max(tail.largest_bytes, least), tail.total_bytes + least
    is_new: bool = reached.search != search
    if (
        is_new
        or largest < reached.largest_bytes
        or (largest == reached.largest_bytes and total < reached.total_bytes)
    ):
        reached.search, reached.came_by, reached.came_from = search, bundle_idx, switch
        reached.largest_bytes, reached.total_bytes = largest, total
    return is_new


@inner
def _find_least_loaded(r: RoutingTables, source: int, target: int, src_gpu: int) -> None:
    """Note at every switch on the way how the least loaded path comes there, stage by stage.

    The first hop is no relay of ``src_gpu``, if others lead on.
    """
    switches, frontier = r.switches, r.frontier
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
            row = _row_toward(r, switch, target)
            gpu = src_gpu if switch == source else -1
            num_choices: int = r.rows[row].num_items
            if gpu >= 0:
                num_choices = _num_choices(r, row, gpu)
                if num_choices < 0:
                    gpu, num_choices = -1, r.rows[row].num_items
            chosen = turn % num_choices
            for _ in range(num_choices):
                bundle = _nth_choice(r, row, gpu, chosen)
                if _reach(r, bundle, switch):
                    frontier[there + num_there] = r.bundles[bundle].head
                    num_there += 1
                chosen += 1
                if chosen == num_choices:
                    chosen = 0
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
    r: RoutingTables,
    ends: tuple[int, int, int],
    dst_gpu: int,
    num_bytes: int,
    path: Indices,
    num_hops: int,
) -> int:
    """Append the least loaded path and load it; return the new number of hops."""
    source, target, src_gpu = ends
    _find_least_loaded(r, source, target, src_gpu)
    end: int = num_hops + r.distances[source, target] // r.router[0].links_per_hop
    switch, place = target, end
    while switch != source:
        place -= 1
        path[place] = r.bundles[r.switches[switch].came_by].lightest
        switch = r.switches[switch].came_from
    for hop in range(num_hops, end):
        if src_gpu >= 0 and r.channels[path[hop]].gpu == dst_gpu:
            break
        _add_load(r.channels, r.bundles, r.bundled, path[hop], num_bytes)
    return end


@inner
def _expand_relays(r: RoutingTables, dst_gpu: int, path: Indices, first: int, end: int) -> int:
    """Write the two channels of every relay in its place; return the new end.

    A path that enters the destination's NIC ends there; then the end is negative, less 1.
    """
    num_relays = end - first
    for place in range(num_relays - 1, -1, -1):
        relay = r.channels[path[first + place]]
        path[first + 2 * place], path[first + 2 * place + 1] = relay.come, relay.go
    for place in range(num_relays):
        come = path[first + 2 * place]
        if r.channels[come].port // r.router[0].ports_per_nic == dst_gpu:
            return -(first + 2 * place + 1) - 1
    return first + 2 * num_relays


@inner
def _best_pairing(r: RoutingTables, src: int, dst: int) -> tuple[int, int]:
    """Return the best pairing of the ports of two GPUs, and how many pairs it joins.

    It is judged as ``port_pairing`` does. ``src`` and ``dst`` are the GPUs' first ports.
    """
    num_ports: int = r.router[0].ports_per_nic
    best, num_pairs, least = 0, 0, np.int64(-1)
    for pairing in range(len(r.pairings)):
        reached, total, squares = 0, np.int64(0), np.int64(0)
        for port in range(num_ports):
            to_port = dst + r.pairings[pairing, port]
            distance = np.int64(r.distances[r.ports[src + port].switch, r.ports[to_port].switch])
            if distance != UNREACHABLE:
                reached += 1
                total += distance
                squares += distance * distance
        if r.router[0].links_per_hop == 2:
            squares = MOST_SQUARES - squares
        score = (num_ports - reached) * PORT_PENALTY + total * LINK_PENALTY + squares
        if least < 0 or score < least:
            best, num_pairs, least = pairing, reached, score
    return best, num_pairs


@inner
def _find_ends(r: RoutingTables, src: int, dst: int) -> tuple[int, int, int, int]:
    """Return where a message leaves and arrives, as ``PathTable.ends``; pairing, pairs joined.

    GPUs are given by their first ports.
    """
    pairing, num_pairs = _best_pairing(r, src, dst)
    num_ports, size = r.router[0].ports_per_nic, r.router[0].gpus_per_server
    src_gpu, dst_gpu = src // num_ports, dst // num_ports
    first_sender, first_receiver = src_gpu - src_gpu % size, dst_gpu - dst_gpu % size
    # turn by turn: other senders, other receivers, then both
    turn = 0
    while not num_pairs:
        if turn < size:
            src = (first_sender + (dst_gpu + turn) % size) * num_ports
        elif turn < 2 * size:
            src = src_gpu * num_ports
            dst = (first_receiver + (src_gpu + turn) % size) * num_ports
        else:
            sender = first_sender + (dst_gpu + turn // size - 2) % size
            src = sender * num_ports
            dst = (first_receiver + (sender + turn) % size) * num_ports
        pairing, num_pairs = _best_pairing(r, src, dst)
        turn += 1
    return src, dst, pairing, num_pairs


@inner
def _nth_pair(r: RoutingTables, ends: tuple[int, int, int, int], number: int) -> tuple[int, int]:
    """Return the source and destination port of a joined pair."""
    src, dst, pairing, num_pairs = ends
    if num_pairs == r.router[0].ports_per_nic:
        return src + number, dst + r.pairings[pairing, number]
    port = 0
    while True:
        to_port = dst + r.pairings[pairing, port]
        if r.distances[r.ports[src + port].switch, r.ports[to_port].switch] != UNREACHABLE:
            number -= 1
            if number < 0:
                return src + port, to_port
        port += 1


@inner
def _find_path(
    r: RoutingTables, pair: tuple[int, int], connection: Any, size: int, path: Indices, first: int
) -> int:
    """Append the channels from one NIC port to another; return the new number of hops."""
    state = r.router[0]
    up, down = r.ports[pair[0]], r.ports[pair[1]]
    has_relays = state.links_per_hop == 2
    src_gpu: int = pair[0] // state.ports_per_nic if has_relays else -1
    dst_gpu: int = pair[1] // state.ports_per_nic
    ends = up.switch, down.switch, src_gpu
    path[first] = up.uplink
    end = first + 1
    if state.policy == _ECMP:
        key = _mix64(state.seed ^ _U64(up.uplink))
        key = _mix64(_mix64(key ^ _U64(down.uplink + 1)) ^ connection)
        end = _walk(r, ends, key, path, end)
    elif state.policy == _INDEXED:
        number = up.idx if state.by_source else down.idx
        end = _walk(r, ends, _U64(number), path, end)
    elif state.policy == _ASSIGNED:
        end = _assign_path(r, ends, dst_gpu, size, path, end)
    elif up.switch != down.switch:
        row = r.row_of[up.switch, down.switch] - 1
        end = _copy_stages(r.rows, r.items, row, path, end)
    if has_relays:
        end = _expand_relays(r, dst_gpu, path, first + 1, end)
        if end < 0:
            return -end - 1
    path[end] = down.uplink + 1
    return end + 1


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
    for message in range(first_message, num_messages):
        src, dst = messages[3 * message], messages[3 * message + 1]
        num_bytes = messages[3 * message + 2]
        if src // state.gpus_per_server == dst // state.gpus_per_server or not num_bytes:
            continue
        if state.num_items + state.items_per_message > len(r.items):
            return message, num_new, state.longest_hops
        ends = _find_ends(r, src * num_ports, dst * num_ports)
        num_pairs = ends[3]
        most_parts = -(-num_bytes // (num_pairs * state.least_part_bytes))
        num_parts = num_pairs * min(queue_pairs, most_parts)
        first_connection = (_U64(transfer_id) << _U64(16) | _U64(message)) * _U64(queue_pairs)
        for position in range(min(num_parts, num_bytes)):
            # dealt in turn, so that a short message still uses all ports
            pair = _nth_pair(r, ends, position % num_pairs)
            size = num_bytes // num_parts + (1 if position < num_bytes % num_parts else 0)
            connection = first_connection + _U64(position // num_pairs)
            first = num_hops
            num_hops = _find_path(r, pair, connection, size, path, first)
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
    links_per_hop, num_ports = r.router[0].links_per_hop, r.router[0].ports_per_nic
    for i in range(num_done):
        slot = done[i].slot
        first, num_bytes = slot * stride, -flows[slot].payload_bytes
        for place in range(first + 1, first + flows[slot].num_hops - 1, links_per_hop):
            hop = hops[place].channel
            if links_per_hop == 2:  # a relay: its id follows from the two ports
                come, go = r.channels[hop].port, r.channels[hops[place + 1].channel].port
                hop = r.router[0].num_channels + come * num_ports + go % num_ports
            _add_load(r.channels, r.bundles, r.bundled, hop, num_bytes)
