"""Compiled kernels of the max-min flow engine; ``maxmin`` is the way in.

Only the flows whose rate can change are solved again (the *members*); all others count as used
capacity. This is exact, because an allocation is max-min fair if and only if every flow has a
bottleneck: a saturated channel on which no flow is faster. After the members are solved, each
outsider whose bottleneck no longer holds, and each that is faster than a member at that member's
bottleneck, becomes a member too, and the set is solved again until nothing joins.

All compiled functions stand in this one file, since numba's cache on disk notices changes only in
the file of the function itself.

Source: bottleneck theorem, Bertsekas and Gallager, Data Networks, 2nd ed. 1992, section 6.5.2.
"""

# ruff: noqa: PLR0917 — compiled functions take their arrays one by one

import math
from typing import Any

import numpy as np
from numba import njit

from kvfabric.fabric.maxmin_tables import Floats, Indices, Ints, Records

compiled = njit(cache=True, error_model="numpy")

# Typed, because numba would compile a callee once for a literal 0 and again for any other integer.
_ZERO: Any = np.int64(0)

SAME = 1e-12  # relative difference of two rates that counts as none; above the noise of their sums


@compiled
def slack_ns(now_ns: float) -> float:
    """Return how far apart two instants may lie and still be one: above the rounding of float64."""
    return 1e-6 + 1e-14 * now_ns


@compiled
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


@compiled
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


@compiled
def _heap_remove(heap: Records, flows: Records, slot: int, length: int) -> None:
    """Take one flow out of a heap of ``length`` entries."""
    idx, last = flows[slot].heap_idx, length - 1
    flows[slot].heap_idx = -1
    if idx < last:
        moved = heap[last].item
        heap[idx].key, heap[idx].item = heap[last].key, moved
        _sift_up(heap, flows, idx)
        _sift_down(heap, flows, flows[moved].heap_idx, last)


@compiled
def _link(hops: Records, channels: Records, hop: int) -> None:
    """Put a hop at the head of its channel's list."""
    channel = channels[hops[hop].channel]
    head = channel.first_hop
    hops[hop].next, hops[hop].previous = head, -1
    if head >= 0:
        hops[head].previous = hop
    channel.first_hop = hop


@compiled
def _unlink(hops: Records, channels: Records, hop: int) -> None:
    """Take a hop out of its channel's list."""
    before, after = hops[hop].previous, hops[hop].next
    if before >= 0:
        hops[before].next = after
    else:
        channels[hops[hop].channel].first_hop = after
    if after >= 0:
        hops[after].previous = before


@compiled
def _remove_flow(
    flows: Records,
    hops: Records,
    channels: Records,
    heap: Records,
    unused: Indices,
    state: Records,
    slot: int,
    carried_bytes: float,
) -> None:
    """Free a slot and credit what its flow carried; the row of hops stays readable."""
    stride = len(hops) // len(flows)
    for hop in range(slot * stride, slot * stride + flows[slot].num_hops):
        _unlink(hops, channels, hop)
        channels[hops[hop].channel].carried_bytes += carried_bytes
    _heap_remove(heap, flows, slot, state[0].num_active)
    flows[slot].rate = 0.0
    state[0].num_active -= 1
    unused[len(flows) - state[0].num_active - 1] = slot


@compiled
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


@compiled
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


@compiled
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


@compiled
def _fill(
    flows: Records,
    hops: Records,
    channels: Records,
    touched: Indices,
    shares: Records,
    num_touched: int,
    num_members: int,
    stamp: int,
) -> None:
    """Fill the free capacity: freeze the channel with the least share, over and over.

    The heap is lazy: an outdated entry is too low, and is put right when it comes to the top.
    """
    for i in range(num_touched):
        channel = channels[touched[i]]
        channel.residual, channel.num_unfrozen = channel.free, channel.num_members
        channel.level, channel.has_frozen = 0.0, 0
        shares[i].key = channel.free / channel.num_members
        shares[i].item = touched[i]
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
            num_left -= _freeze(flows, hops, channels, idx, share, stamp)
        length -= 1
        shares[0].key, shares[0].item = shares[length].key, shares[length].item
        _settle(shares, _ZERO, length)


@compiled
def _join(
    flows: Records,
    hops: Records,
    channels: Records,
    members: Indices,
    touched: Indices,
    num_touched: int,
    num_members: int,
    stamp: int,
) -> int:
    """Add the outsiders that can no longer keep their rate; return the new number of members."""
    for i in range(num_touched):
        idx = touched[i]
        channel = channels[idx]
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
            flow = flows[slot]
            if flow.stamp < stamp:
                is_slow = flow.bottleneck == idx and flow.rate < least
                if is_slow or flow.rate > most:
                    flow.stamp = stamp
                    members[num_members] = slot
                    num_members += 1
            hop = hops[hop].next
    return num_members


@compiled
def _apply(
    flows: Records,
    heap: Records,
    members: Indices,
    state: Records,
    num_members: int,
    now_ns: float,
) -> None:
    """Let the members run at their new rates from ``now_ns`` on; new flows enter the heap."""
    for i in range(num_members):
        slot = members[i]
        flow = flows[slot]
        is_new = flow.heap_idx < 0
        if not is_new and abs(flow.new_rate - flow.rate) <= 1e-13 * flow.new_rate:
            continue
        left = flow.remaining_bytes - flow.rate * (now_ns - flow.updated_ns)
        flow.remaining_bytes, flow.updated_ns = max(left, 0.0), now_ns
        flow.rate = flow.new_rate
        if is_new:
            flow.heap_idx = state[0].num_active
            state[0].num_active += 1
        idx = flow.heap_idx
        heap[idx].key, heap[idx].item = now_ns + flow.remaining_bytes / flow.rate, slot
        _sift_up(heap, flows, idx)
        _sift_down(heap, flows, flow.heap_idx, state[0].num_active)


@compiled
def _resolve(
    flows: Records,
    hops: Records,
    channels: Records,
    heap: Records,
    members: Indices,
    touched: Indices,
    shares: Records,
    state: Records,
    num_members: int,
    num_new: int,
    now_ns: float,
) -> None:
    """Solve the members (the first ``num_new`` just started) and all flows that must join them."""
    stride = len(hops) // len(flows)
    first = stamp = state[0].stamp
    num_scanned = num_touched = _ZERO
    num_flows = state[0].num_active + num_new
    most = state[0].full_solve_above * num_flows
    while num_members > num_scanned:
        if num_members > most and num_members < num_flows:
            for i in range(state[0].num_active):
                members[num_new + i] = heap[i].item
            num_members, num_scanned = num_flows, 0
        for i in range(num_members):
            flows[members[i]].stamp = stamp
        for i in range(num_scanned, num_members):
            start = members[i] * stride
            for hop in range(start, start + flows[members[i]].num_hops):
                idx = hops[hop].channel
                if channels[idx].stamp < first:
                    touched[num_touched] = idx
                    num_touched += 1
                if channels[idx].stamp < stamp:
                    _scan(flows, hops, channels, idx, stamp)
        num_scanned = num_members
        _fill(flows, hops, channels, touched, shares, num_touched, num_members, stamp)
        num_members = _join(
            flows, hops, channels, members, touched, num_touched, num_members, stamp
        )
        stamp += 2
        state[0].num_rounds += 1
    state[0].stamp = stamp
    state[0].num_solves += 1
    state[0].num_full_solves += num_members == num_flows
    state[0].num_flows_solved += num_members
    _apply(flows, heap, members, state, num_members, now_ns)


@compiled
def _release_members(
    flows: Records,
    hops: Records,
    channels: Records,
    members: Indices,
    slot: int,
    stamp: int,
    num_members: int,
) -> int:
    """Add the flows whose bottleneck a departed flow shared; return the new number of members."""
    stride = len(hops) // len(flows)
    for own in range(slot * stride, slot * stride + flows[slot].num_hops):
        idx = hops[own].channel
        hop = channels[idx].first_hop
        while hop >= 0:
            flow = flows[hops[hop].flow]
            if flow.bottleneck == idx and flow.stamp < stamp:
                flow.stamp = stamp
                members[num_members] = hops[hop].flow
                num_members += 1
            hop = hops[hop].next
    return num_members


@compiled
def start_flows(
    flows: Records,
    hops: Records,
    channels: Records,
    heap: Records,
    unused: Indices,
    members: Indices,
    touched: Indices,
    shares: Records,
    done: Records,
    state: Records,
    path_start: Ints,
    path_channels: Indices,
    size_bytes: Floats,
    span: tuple[int, int],
    now_ns: float,
) -> None:
    """Start the flows ``[span[0], span[1])`` of a list and solve once; ``done`` lists their slots.

    Flow i of the list crosses ``path_channels[path_start[i]:path_start[i + 1]]``.
    """
    stride = len(hops) // len(flows)
    num_slots, num_new = len(flows), span[1] - span[0]
    for i in range(num_new):
        slot = unused[num_slots - state[0].num_active - 1 - i]
        first, last = path_start[span[0] + i], path_start[span[0] + i + 1]
        flow = flows[slot]
        flow.size_bytes = flow.remaining_bytes = size_bytes[span[0] + i]
        flow.updated_ns, flow.rate, flow.bottleneck = now_ns, 0.0, -1
        flow.num_hops, flow.heap_idx, flow.stamp = last - first, -1, state[0].stamp
        for place in range(last - first):
            hop = slot * stride + place
            hops[hop].channel, hops[hop].flow = path_channels[first + place], slot
            _link(hops, channels, hop)
        members[i] = slot
        done[i].item = slot
    state[0].clock_ns = now_ns
    _resolve(flows, hops, channels, heap, members, touched, shares, state, num_new, num_new, now_ns)


@compiled
def cancel_flows(
    flows: Records,
    hops: Records,
    channels: Records,
    heap: Records,
    unused: Indices,
    members: Indices,
    touched: Indices,
    shares: Records,
    done: Records,  # noqa: ARG001 — all entry points take the same tables
    state: Records,
    slots: Ints,
    now_ns: float,
) -> None:
    """Drop flows; what they carried so far stays counted."""
    for slot in slots:
        flow = flows[slot]
        left = flow.remaining_bytes - flow.rate * (now_ns - flow.updated_ns)
        carried = flow.size_bytes - max(left, 0.0)
        _remove_flow(flows, hops, channels, heap, unused, state, slot, carried)
    num_members = _ZERO
    for slot in slots:
        num_members = _release_members(
            flows, hops, channels, members, slot, state[0].stamp, num_members
        )
    state[0].clock_ns = now_ns
    _resolve(
        flows, hops, channels, heap, members, touched, shares, state, num_members, _ZERO, now_ns
    )


@compiled
def run_until(
    flows: Records,
    hops: Records,
    channels: Records,
    heap: Records,
    unused: Indices,
    members: Indices,
    touched: Indices,
    shares: Records,
    done: Records,
    state: Records,
    until_ns: float,
) -> int:
    """Complete all flows that end by ``until_ns``, within the slack; return how many there are.

    ``done`` lists them, each with its instant.
    Flows that end together leave together, with one solve.
    """
    num_done: int = _ZERO
    while state[0].num_active > 0 and heap[0].key - slack_ns(heap[0].key) <= until_ns:
        now_ns = heap[0].key
        together_ns = now_ns + slack_ns(now_ns)
        first = num_done
        while state[0].num_active > 0 and heap[0].key <= together_ns:
            slot = heap[0].item
            _remove_flow(flows, hops, channels, heap, unused, state, slot, flows[slot].size_bytes)
            done[num_done].key, done[num_done].item = now_ns, slot
            num_done += 1
        num_members = _ZERO
        for i in range(first, num_done):
            num_members = _release_members(
                flows, hops, channels, members, done[i].item, state[0].stamp, num_members
            )
        state[0].clock_ns = now_ns
        _resolve(
            flows, hops, channels, heap, members, touched, shares, state, num_members, _ZERO, now_ns
        )
    return num_done


@compiled
def run_batch(
    flows: Records,
    hops: Records,
    channels: Records,
    heap: Records,
    unused: Indices,
    members: Indices,
    touched: Indices,
    shares: Records,
    done: Records,
    state: Records,
    path_start: Ints,
    path_channels: Indices,
    size_bytes: Floats,
    start_ns: Floats,
    finish_ns: Floats,
    flow_of_slot: Ints,
) -> None:
    """Run a whole list of flows in order of start and write down when each ends."""
    num_flows = len(start_ns)
    begin = _ZERO
    while begin < num_flows or state[0].num_active > 0:
        now_ns = start_ns[begin] if begin < num_flows else math.inf
        num_done = run_until(
            flows, hops, channels, heap, unused, members, touched, shares, done, state, now_ns
        )
        for i in range(num_done):
            finish_ns[flow_of_slot[done[i].item]] = done[i].key
        end = begin
        while end < num_flows and start_ns[end] <= now_ns:
            end += 1
        if end > begin:
            start_flows(
                flows,
                hops,
                channels,
                heap,
                unused,
                members,
                touched,
                shares,
                done,
                state,
                path_start,
                path_channels,
                size_bytes,
                (begin, end),
                max(now_ns, state[0].clock_ns),
            )
        for i in range(end - begin):
            flow_of_slot[done[i].item] = begin + i
        begin = end
