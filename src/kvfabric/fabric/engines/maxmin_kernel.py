"""Compiled kernels of the max-min flow engine; ``maxmin_flows`` is the way in.

Only the flows whose rate can change are solved again (the *members*); all others count as used
capacity. This is exact, because an allocation is max-min fair if and only if every flow has a
bottleneck: a saturated channel on which no flow is faster. After the members are solved, each
outsider whose bottleneck no longer holds, and each that is faster than a member at that member's
bottleneck, becomes a member too, and the set is solved again until nothing joins.

All functions that call each other stand in this one file, since numba's cache on disk notices
changes only in the file of the function itself.

Source: bottleneck theorem, Bertsekas and Gallager, Data Networks, 2nd ed. 1992, section 6.5.2.
"""

import math
from typing import Any

import numpy as np

from kvfabric.fabric.engines.compiled import compiled, inner
from kvfabric.fabric.engines.maxmin_tables import Floats, FlowTables, Indices, Ints, Records

# Typed, because numba would compile a callee once for a literal 0 and again for any other integer.
_ZERO: Any = np.int64(0)

SAME = 1e-12  # relative difference of two rates that counts as none; above the noise of their sums


@inner
def _slack_ns(now_ns: float) -> float:
    """Return how far apart two instants may lie and still be one: above the rounding of float64."""
    return 1e-6 + 1e-14 * now_ns


@inner
def _whole_ns(instant_ns: float) -> int:
    """Round up, unless only rounding errors lie above the whole nanosecond."""
    return math.ceil(instant_ns - _slack_ns(instant_ns))


@inner
def _sift_up(heap: Records, flows: Records, idx: int) -> None:
    key, item = heap[idx].key, heap[idx].item
    while idx > 0:
        parent = (idx - 1) >> 1
        if heap[parent].key <= key:
            break
        heap[idx].key, heap[idx].item = heap[parent].key, heap[parent].item
        flows[heap[idx].item].heap_idx = idx
        idx = parent
    heap[idx].key, heap[idx].item = key, item
    flows[item].heap_idx = idx


@inner
def _sift_down(heap: Records, flows: Records, idx: int, length: int) -> None:
    key, item = heap[idx].key, heap[idx].item
    while True:
        child = 2 * idx + 1
        if child >= length:
            break
        if child + 1 < length and heap[child + 1].key < heap[child].key:
            child += 1
        if heap[child].key >= key:
            break
        heap[idx].key, heap[idx].item = heap[child].key, heap[child].item
        flows[heap[idx].item].heap_idx = idx
        idx = child
    heap[idx].key, heap[idx].item = key, item
    flows[item].heap_idx = idx


@inner
def _heap_remove(heap: Records, flows: Records, slot: int, length: int) -> None:
    """Take one flow out of a heap of ``length`` entries."""
    idx, last = flows[slot].heap_idx, length - 1
    flows[slot].heap_idx = -1
    if idx < last:
        moved = heap[last].item
        heap[idx].key, heap[idx].item = heap[last].key, moved
        _sift_up(heap, flows, idx)
        _sift_down(heap, flows, flows[moved].heap_idx, last)


@inner
def _link(hops: Records, channels: Records, hop: int) -> None:
    """Put a hop at the head of its channel's list."""
    channel = channels[hops[hop].channel]
    head = channel.first_hop
    hops[hop].next, hops[hop].previous = head, -1
    if head >= 0:
        hops[head].previous = hop
    channel.first_hop = hop


@inner
def _unlink(hops: Records, channels: Records, hop: int) -> None:
    """Take a hop out of its channel's list."""
    before, after = hops[hop].previous, hops[hop].next
    if before >= 0:
        hops[before].next = after
    else:
        channels[hops[hop].channel].first_hop = after
    if after >= 0:
        hops[after].previous = before


@inner
def _remove_flow(t: FlowTables, slot: int, carried_bytes: float) -> None:
    """Free a slot and credit what its flow carried; the row of hops stays readable."""
    flows, state = t.flows, t.state[0]
    stride = len(t.hops) // len(flows)
    for hop in range(slot * stride, slot * stride + flows[slot].num_hops):
        _unlink(t.hops, t.channels, hop)
        t.channels[t.hops[hop].channel].carried_bytes += carried_bytes
    _heap_remove(t.heap, flows, slot, state.num_active)
    flows[slot].rate = 0.0
    state.num_active -= 1
    t.unused[len(flows) - state.num_active - 1] = slot


@inner
def _scan(flows: Records, hops: Records, channels: Records, idx: int, stamp: int) -> None:
    """Note what the outsiders leave free on a channel and how fast they are."""
    channel = channels[idx]
    free, slowest, fastest, num_members = channel.capacity, math.inf, 0.0, 0
    hop = channel.first_hop
    while hop >= 0:
        flow = flows[hops[hop].flow]
        if flow.stamp >= stamp:
            num_members += 1
        else:
            free -= flow.rate
            fastest = max(fastest, flow.rate)
            if flow.bottleneck == idx:
                slowest = min(slowest, flow.rate)
        hop = hops[hop].next
    channel.free, channel.num_members, channel.stamp = max(free, 0.0), num_members, stamp
    channel.slowest_held, channel.fastest_outside = slowest, fastest


@inner
def _settle(shares: Records, idx: int, length: int) -> None:
    """Move the entry at ``idx`` of a heap of shares down to its place."""
    key, item = shares[idx].key, shares[idx].item
    while True:
        child = 2 * idx + 1
        if child >= length:
            break
        if child + 1 < length and shares[child + 1].key < shares[child].key:
            child += 1
        if shares[child].key >= key:
            break
        shares[idx].key, shares[idx].item = shares[child].key, shares[child].item
        idx = child
    shares[idx].key, shares[idx].item = key, item


@inner
def _freeze(
    flows: Records, hops: Records, channels: Records, idx: int, share: float, stamp: int
) -> int:
    """Give every unfrozen member on a channel its share; return how many there were."""
    stride = len(hops) // len(flows)
    num_frozen: int = _ZERO
    hop = channels[idx].first_hop
    while hop >= 0:
        slot = hops[hop].flow
        flow = flows[slot]
        if flow.stamp == stamp:
            flow.stamp, flow.new_rate, flow.bottleneck = stamp + 1, share, idx
            num_frozen += 1
            for own in range(slot * stride, slot * stride + flow.num_hops):
                channel = channels[hops[own].channel]
                channel.num_unfrozen -= 1
                channel.residual = max(channel.residual - share, 0.0)
                channel.level = share  # shares only rise, so the last one is the highest
        hop = hops[hop].next
    channels[idx].has_frozen = 1
    channels[idx].residual = 0.0
    return num_frozen


@inner
def _fill(t: FlowTables, num_touched: int, num_members: int, stamp: int) -> None:
    """Fill the free capacity: freeze the channel with the least share, over and over.

    The heap is lazy: an outdated entry is too low, and is put right when it comes to the top.
    """
    channels, shares = t.channels, t.shares
    for i in range(num_touched):
        channel = channels[t.touched[i]]
        channel.residual, channel.num_unfrozen = channel.free, channel.num_members
        channel.level, channel.has_frozen = 0.0, 0
        shares[i].key = channel.free / channel.num_members
        shares[i].item = t.touched[i]
    length = num_touched
    for i in range((length >> 1) - 1, -1, -1):
        _settle(shares, i, length)
    num_left = num_members
    while num_left > 0:
        idx = shares[0].item
        channel = channels[idx]
        if channel.num_unfrozen > 0:
            share = channel.residual / channel.num_unfrozen
            if share > shares[0].key * (1.0 + 1e-14):
                shares[0].key = share
                _settle(shares, _ZERO, length)
                continue
            num_left -= _freeze(t.flows, t.hops, channels, idx, share, stamp)
        length -= 1
        shares[0].key, shares[0].item = shares[length].key, shares[length].item
        _settle(shares, _ZERO, length)


@inner
def _join(t: FlowTables, num_touched: int, num_members: int, stamp: int) -> int:
    """Add the outsiders that can no longer keep their rate; return the new number of members."""
    hops = t.hops
    for i in range(num_touched):
        idx = t.touched[i]
        channel = t.channels[idx]
        is_full = channel.residual <= channel.capacity * SAME
        # Outsiders bound here must be the fastest; members bound here must be so as well.
        least = channel.level * (1.0 - SAME) if is_full else math.inf
        most = channel.level * (1.0 + SAME) if channel.has_frozen == 1 else math.inf
        is_slow = channel.slowest_held < least and channel.slowest_held < math.inf
        if not is_slow and channel.fastest_outside <= most:
            continue
        hop = channel.first_hop
        while hop >= 0:
            slot = hops[hop].flow
            flow = t.flows[slot]
            if flow.stamp < stamp:
                is_slow = flow.bottleneck == idx and flow.rate < least
                if is_slow or flow.rate > most:
                    flow.stamp = stamp
                    t.members[num_members] = slot
                    num_members += 1
            hop = hops[hop].next
    return num_members


@inner
def _apply(t: FlowTables, num_members: int, now_ns: float) -> None:
    """Let the members run at their new rates from ``now_ns`` on; new flows enter the heap."""
    heap, flows, state = t.heap, t.flows, t.state[0]
    for i in range(num_members):
        slot = t.members[i]
        flow = flows[slot]
        is_new = flow.heap_idx < 0
        if not is_new and abs(flow.new_rate - flow.rate) <= 1e-13 * flow.new_rate:
            continue
        left = flow.remaining_bytes - flow.rate * (now_ns - flow.updated_ns)
        flow.remaining_bytes, flow.updated_ns = max(left, 0.0), now_ns
        flow.rate = flow.new_rate
        if is_new:
            flow.heap_idx = state.num_active
            state.num_active += 1
        idx = flow.heap_idx
        heap[idx].key, heap[idx].item = now_ns + flow.remaining_bytes / flow.rate, slot
        _sift_up(heap, flows, idx)
        _sift_down(heap, flows, flow.heap_idx, state.num_active)


@inner
def _resolve(t: FlowTables, num_members: int, num_new: int, now_ns: float) -> None:
    """Solve the members (the first ``num_new`` just started) and all flows that must join them."""
    flows, hops, channels, members, state = t.flows, t.hops, t.channels, t.members, t.state[0]
    stride = len(hops) // len(flows)
    first = stamp = state.stamp
    num_scanned = num_touched = _ZERO
    num_flows = state.num_active + num_new
    most = state.full_solve_above * num_flows
    while num_members > num_scanned:
        if num_members > most and num_members < num_flows:
            for i in range(state.num_active):
                members[num_new + i] = t.heap[i].item
            num_members, num_scanned = num_flows, 0
        for i in range(num_members):
            flows[members[i]].stamp = stamp
        for i in range(num_scanned, num_members):
            start = members[i] * stride
            for hop in range(start, start + flows[members[i]].num_hops):
                idx = hops[hop].channel
                if channels[idx].stamp < first:
                    t.touched[num_touched] = idx
                    num_touched += 1
                if channels[idx].stamp < stamp:
                    _scan(flows, hops, channels, idx, stamp)
        num_scanned = num_members
        _fill(t, num_touched, num_members, stamp)
        num_members = _join(t, num_touched, num_members, stamp)
        stamp += 2
        state.num_rounds += 1
    state.stamp = stamp
    state.num_solves += 1
    state.num_full_solves += num_members == num_flows
    state.num_flows_solved += num_members
    _apply(t, num_members, now_ns)


@inner
def _members_without(t: FlowTables, first: int, last: int) -> int:
    """List the flows whose bottleneck a flow in ``done[first:last]`` shared; return how many."""
    flows, hops = t.flows, t.hops
    stride, stamp = len(hops) // len(flows), t.state[0].stamp
    num_members: int = _ZERO
    for i in range(first, last):
        row = t.done[i].slot * stride
        for own in range(row, row + flows[t.done[i].slot].num_hops):
            idx = hops[own].channel
            hop = t.channels[idx].first_hop
            while hop >= 0:
                flow = flows[hops[hop].flow]
                if flow.bottleneck == idx and flow.stamp < stamp:
                    flow.stamp = stamp
                    t.members[num_members] = hops[hop].flow
                    num_members += 1
                hop = hops[hop].next
    return num_members


@inner
def _end_next(t: FlowTables, num_done: int) -> int:
    """Take out the flows that end next, which leave together; return the new length of ``done``."""
    heap, state = t.heap, t.state[0]
    state.clock_ns = heap[0].key
    together_ns = state.clock_ns + _slack_ns(state.clock_ns)
    while state.num_active > 0 and heap[0].key <= together_ns:
        slot = heap[0].item
        _remove_flow(t, slot, t.flows[slot].size_bytes)
        t.done[num_done].instant_ns, t.done[num_done].slot = state.clock_ns, slot
        num_done += 1
    return num_done


@inner
def _drop(t: FlowTables, slots: Ints, num_done: int) -> int:
    """Take flows out midway; what they carried stays counted. Return the new length of ``done``."""
    for slot in slots:
        flow = t.flows[slot]
        left = flow.remaining_bytes - flow.rate * (t.state[0].clock_ns - flow.updated_ns)
        _remove_flow(t, slot, flow.size_bytes - max(left, 0.0))
        if flow.group >= 0:
            t.group_left[flow.group] -= 1
        t.done[num_done].slot = slot
        num_done += 1
    return num_done


@inner
def _enter(t: FlowTables, new: Records, path_channels: Indices, num_new: int) -> None:
    """Give new flows their slots and make them the first members."""
    flows, hops, state = t.flows, t.hops, t.state[0]
    stride, num_slots = len(hops) // len(flows), len(flows)
    for i in range(num_new):
        slot = t.unused[num_slots - state.num_active - 1 - i]
        entry, flow = new[i], flows[slot]
        flow.size_bytes = flow.remaining_bytes = entry.size_bytes
        flow.payload_bytes, flow.group = entry.payload_bytes, entry.group
        flow.updated_ns, flow.rate, flow.bottleneck = state.clock_ns, 0.0, -1
        flow.num_hops, flow.heap_idx, flow.stamp = entry.num_hops, -1, state.stamp
        flow.serial = state.num_started + i
        for place in range(entry.num_hops):
            hop = slot * stride + place
            hops[hop].channel, hops[hop].flow = path_channels[entry.first_hop + place], slot
            _link(hops, t.channels, hop)
        if entry.group >= 0:
            t.group_left[entry.group] += 1
        t.members[i] = slot
    state.num_started += num_new


@inner
def _order_done(done: Records, flows: Records, num_done: int) -> None:
    """Put flows in order of whole ns, then of start; they come by instant, so little moves."""
    for i in range(num_done):
        instant_ns, slot = done[i].instant_ns, done[i].slot
        whole_ns, serial = _whole_ns(instant_ns), flows[slot].serial
        place = i
        while place > 0:
            before = done[place - 1]
            if before.whole_ns < whole_ns or (
                before.whole_ns == whole_ns and before.serial < serial
            ):
                break
            done[place].instant_ns, done[place].whole_ns = before.instant_ns, before.whole_ns
            done[place].serial, done[place].slot = before.serial, before.slot
            place -= 1
        done[place].instant_ns, done[place].whole_ns = instant_ns, whole_ns
        done[place].serial, done[place].slot = serial, slot


@inner
def _count_ended(t: FlowTables, num_done: int) -> int:
    """List the groups whose last flow is done; return how many."""
    num_ended: int = _ZERO
    for i in range(num_done):
        group = t.flows[t.done[i].slot].group
        if group >= 0:
            t.group_left[group] -= 1
            if t.group_left[group] == 0:
                t.ended[2 * num_ended], t.ended[2 * num_ended + 1] = t.done[i].whole_ns, group
                num_ended += 1
    return num_ended


@compiled
def step(
    t: FlowTables,
    now_ns: float,
    dropped: Ints,
    new: Records,
    path_channels: Indices,
    num_new: int,
) -> tuple[int, int, int]:
    """Complete the flows that end by ``now_ns``, within the slack, then drop some and start some.

    Flows that end together leave together, with one solve; so do those dropped, and those started.
    If the last event lies a rounding error after ``now_ns``, drops and starts happen then.

    Args:
        t: the state. Its first entries of ``done`` will list the flows that ended by whole ns, then
            by start; ``ended`` the whole ns and number of each group that has no flow left, in the
            same order.
        now_ns: the instant.
        dropped: slots of active flows, which do not end by ``now_ns``.
        new: flows to start, as ``NEW_FLOW``.
        path_channels: what their paths point into.
        num_new: how many of ``new`` to start.

    Returns:
        Flows that ended, groups that ended, and the whole ns at which the next flow ends if nothing
        else happens (-1: there is none).
    """
    heap, state = t.heap, t.state[0]
    num_done: int = _ZERO
    while state.num_active > 0 and heap[0].key - _slack_ns(heap[0].key) <= now_ns:
        first = num_done
        num_done = _end_next(t, num_done)
        _resolve(t, _members_without(t, first, num_done), _ZERO, state.clock_ns)
    _order_done(t.done, t.flows, num_done)  # before their slots are used again
    num_ended = _count_ended(t, num_done)
    if len(dropped) > 0:
        state.clock_ns = max(now_ns, state.clock_ns)
        last = _drop(t, dropped, num_done)
        _resolve(t, _members_without(t, num_done, last), _ZERO, state.clock_ns)
    if num_new > 0:
        state.clock_ns = max(now_ns, state.clock_ns)
        _enter(t, new, path_channels, num_new)
        _resolve(t, num_new, num_new, state.clock_ns)
    next_ns = _whole_ns(heap[0].key) if state.num_active > 0 else -1
    return num_done, num_ended, next_ns


@compiled
def run_batch(
    t: FlowTables, new: Records, path_channels: Indices, start_ns: Floats, finish_ns: Floats
) -> None:
    """Run a whole list of flows in order of start and write down when each ends."""
    num_flows = len(start_ns)
    nothing = np.zeros(0, np.int64)
    begin = _ZERO
    while begin < num_flows or t.state[0].num_active > 0:
        now_ns = start_ns[begin] if begin < num_flows else math.inf
        end = begin
        while end < num_flows and start_ns[end] <= now_ns:
            end += 1
        num_done, _, _ = step(t, now_ns, nothing, new[begin:end], path_channels, end - begin)
        for i in range(num_done):
            finish_ns[t.done[i].serial] = t.done[i].instant_ns
        begin = end
