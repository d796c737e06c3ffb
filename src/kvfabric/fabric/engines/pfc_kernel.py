"""Compiled kernels of the event-driven PFC engine; ``pfc_flows`` is the way in.

Between two events all rates are constant: those of the stationary state of FIFO egress queues with
a budget B per ingress port, where a pause stops a NIC port as a whole. By Little's law a flow of
rate y holds y * d bytes in a queue of delay d, so with the *price* u = d / B of each queue:

    y    = 1 / max(n / C, sum of (u of the next queue + loop) over the n flows of the NIC port)
    used = sum of y / C,  held = sum of y * (u of the next queue + loop)     (of each queue)
    max(used, held) <= 1, and = 1 wherever u > 0

where loop = tau / B prices the bytes under way in the pause loop of delay tau. A queue is therefore
full because its channel is (used = 1), or because the ingress port at the far end is (held = 1).

A solve redoes only queues whose inputs moved by more than ``cut``, in sweeps: down the paths each
queue passes on what fits (which keeps prices from winding up), up the paths each price takes a
step, and hands its relative change at once to the queues held by it (without which the chain of
prices oscillates). What a solve leaves undone goes on with the next one. Neither convergence nor
uniqueness is proven, so rates are finally scaled to fit every channel.

All functions that call each other stand in this one file, since numba's cache on disk notices
changes only in the file of the function itself.

Source of the terms: J. D. C. Little, Operations Research 9 (1961); IEEE 802.1Qbb-2011, 36.
"""

import math
from typing import Any

import numpy as np

from kvfabric.fabric.engines.compiled import compiled, inner
from kvfabric.fabric.engines.maxmin_tables import Floats, Records
from kvfabric.fabric.engines.pfc_tables import NUM_LEVELS, PfcTables

_ZERO: Any = np.int64(0)

FIRST_GAIN = 1.0  # exponent of a price step; halved as a solve drags on
HALVED_AT = (60, 120)  # iterations
MOST_PRICE = 1e9  # over 1 / capacity: keeps rates above 0 where routes form a cycle
FULL = 0.98  # share of a channel or a budget from which it counts as full


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
def _touch(t: PfcTables, idx: int) -> None:
    """Note that the solve under way has visited a queue."""
    queue, state = t.queues[idx], t.state[0]
    if queue.stamp != state.stamp:
        queue.stamp = state.stamp
        t.touched[state.num_touched] = idx
        state.num_touched += 1


@inner
def _await_forward(t: PfcTables, idx: int) -> None:
    """Let a queue be visited by the next sweep down the paths."""
    queue = t.queues[idx]
    if queue.is_forward == 0:
        queue.is_forward, queue.next_forward = 1, t.forward[queue.level]
        t.forward[queue.level] = idx
        t.state[0].num_waiting += 1


@inner
def _await_backward(t: PfcTables, idx: int) -> None:
    """Let a queue be visited by the next sweep up the paths."""
    queue = t.queues[idx]
    if queue.is_backward == 0:
        queue.is_backward, queue.next_backward = 1, t.backward[queue.level]
        t.backward[queue.level] = idx
        t.state[0].num_waiting += 1


@inner
def _mark_changed(t: PfcTables, slot: int) -> None:
    """Note that the solve under way has moved a flow."""
    flow, state = t.flows[slot], t.state[0]
    if flow.stamp != state.stamp:
        flow.stamp = state.stamp
        t.changed[state.num_changed] = slot
        state.num_changed += 1


@inner
def _send(t: PfcTables, hop: int, rate: float) -> None:
    """Let a flow leave the queue of a hop at a rate, if that differs from what was known."""
    ahead = t.hops[hop + 1]
    if abs(rate - ahead.rate) > t.state[0].cut * rate:
        ahead.rate = rate
        _await_forward(t, ahead.queue)


@inner
def _free_share(t: PfcTables, idx: int) -> float:
    """Return the rate of the unpaused queue pairs of a NIC port when pauses stop queue pairs."""
    queue = t.queues[idx]
    share: float = queue.capacity / queue.num_sources
    for _ in range(8):
        left, num_free = queue.capacity, 0
        hop = queue.first_hop
        while hop >= 0:
            own = _own_limit(t, idx, hop)
            if own < share:
                left -= own
            else:
                num_free += 1
            hop = t.hops[hop].after
        if num_free == 0 or left / num_free <= share:
            break
        share = left / num_free
    return share


@inner
def _own_limit(t: PfcTables, idx: int, hop: int) -> float:
    """Return the rate at which one queue pair fills its part of the budget."""
    ahead = t.hops[hop].next_queue
    if ahead < 0:
        return math.inf
    queue = t.queues[idx]
    price = t.queues[ahead].told_price + queue.loop_price
    return 1.0 / (queue.num_sources * price) if price > 0.0 else math.inf


@inner
def _set_source(t: PfcTables, hop: int, rate: float) -> None:
    """Set the rate of a flow at its source."""
    if rate != t.hops[hop].rate:
        t.hops[hop].rate = rate
        _mark_changed(t, t.hops[hop].flow)
    if t.hops[hop].next_queue >= 0:
        _send(t, hop, rate)


@inner
def _offer(t: PfcTables, idx: int) -> None:
    """Give the flows of a NIC port their rates: equal ones, bound by port and budget."""
    queue, hops = t.queues[idx], t.hops
    price = 0.0
    hop = queue.first_hop
    while hop >= 0:
        ahead = hops[hop].next_queue
        if ahead >= 0:
            price += t.queues[ahead].told_price + queue.loop_price
        hop = hops[hop].after
    rate = queue.capacity / queue.num_sources
    if price * rate > 1.0:
        rate = 1.0 / price
    queue.load, queue.held = rate * queue.num_sources, rate * price
    queue.price, queue.told_price = 0.0, 0.0
    hop = queue.first_hop
    while hop >= 0:
        _set_source(t, hop, rate)
        hop = hops[hop].after
    t.state[0].num_visits += queue.num_hops


@inner
def _offer_queue_pairs(t: PfcTables, idx: int) -> None:
    """Give the flows of a NIC port their rates when a pause stops a queue pair alone."""
    queue, hops = t.queues[idx], t.hops
    share = _free_share(t, idx)
    queue.load, queue.held = 0.0, 1.0  # below the capacity, some queue pair is paused
    queue.price, queue.told_price = 0.0, 0.0
    hop = queue.first_hop
    while hop >= 0:
        rate = min(share, _own_limit(t, idx, hop))
        queue.load += rate
        _set_source(t, hop, rate)
        hop = hops[hop].after
    t.state[0].num_visits += queue.num_hops


@inner
def _admit(t: PfcTables, idx: int) -> None:
    """Let flows that start at a queue others pass through enter like those of one ingress port."""
    queue, hops = t.queues[idx], t.hops
    rate = queue.capacity / queue.num_sources
    price = (queue.told_price + queue.loop_price) * queue.num_sources
    if price * rate > 1.0:
        rate = 1.0 / price
    hop = queue.first_hop
    while hop >= 0:
        if hops[hop].place == 0 and rate != hops[hop].rate:
            hops[hop].rate = rate
            _mark_changed(t, hops[hop].flow)
        hop = hops[hop].after


@inner
def _pass_on(t: PfcTables, idx: int) -> None:
    """Pass on what arrives at a switch queue, cut to what channel and far end can take."""
    queue, hops, state = t.queues[idx], t.hops, t.state[0]
    if queue.num_sources > 0:
        _admit(t, idx)
    load, held = 0.0, 0.0
    hop = queue.first_hop
    while hop >= 0:
        rate, ahead = hops[hop].rate, hops[hop].next_queue
        load += rate
        if ahead >= 0:
            held += rate * (t.queues[ahead].told_price + queue.loop_price)
        hop = hops[hop].after
    state.num_visits += queue.num_hops
    queue.load, queue.held = load, held
    excess = max(load / queue.capacity, held)
    cut = 1.0 / excess if excess > 1.0 else 1.0
    hop = queue.first_hop
    while hop >= 0:
        if hops[hop].next_queue >= 0:
            _send(t, hop, hops[hop].rate * cut)
        hop = hops[hop].after
    _await_backward(t, idx)


@inner
def _tell(t: PfcTables, idx: int, old_price: float) -> None:
    """Tell the queues before this one its new price."""
    queue, hops = t.queues[idx], t.hops
    queue.told_price = queue.price
    change = 0.0
    if old_price > 0.0:
        change = min(queue.price - old_price, old_price)
    hop = queue.first_hop
    while hop >= 0:
        if hops[hop].place > 0:
            before = hops[hop - 1].queue
            if t.queues[before].num_sources < t.queues[before].num_hops:
                t.queues[before].feed += hops[hop - 1].rate * change
                _await_backward(t, before)
            _await_forward(t, before)
        hop = hops[hop].after


@inner
def _reprice(t: PfcTables, idx: int, gain: float) -> None:
    """Move the price of a switch queue towards the point where its load fits."""
    queue, state = t.queues[idx], t.state[0]
    used = queue.load / queue.capacity
    excess = max(used, queue.held)
    feed, old = queue.feed, queue.price
    queue.feed = 0.0
    if old == 0.0 and excess <= 1.0 and feed <= 0.0:
        return
    # exponent gain * log(excess), by Pade approximants: the fixed point is the same
    step = gain * max(-1.0, 2.0 * (excess - 1.0) / (excess + 1.0))
    step = min(step, gain)
    if queue.held > used:
        step += feed / queue.held
    step = max(-1.0, min(1.0, step))
    factor = (12.0 + step * (6.0 + step)) / (12.0 - step * (6.0 - step))
    offset = 0.3 / queue.capacity
    price = min(max(0.0, (old + offset) * factor - offset), MOST_PRICE / queue.capacity)
    queue.price = price
    scale = max(1.0 / queue.capacity, old)
    if abs(price - old) > state.cut * scale or (old == 0.0) != (price == 0.0):
        _await_forward(t, idx)
    if abs(price - queue.told_price) > state.cut * (queue.told_price + 0.8 / queue.capacity):
        _tell(t, idx, old)


@inner
def _sweep_forward(t: PfcTables) -> None:
    """Visit the waiting queues down the paths."""
    state = t.state[0]
    for level in range(state.top_level, -1, -1):
        idx = t.forward[level]
        t.forward[level] = -1
        while idx >= 0:
            queue = t.queues[idx]
            following = queue.next_forward
            queue.is_forward = 0
            state.num_waiting -= 1
            if queue.first_hop >= 0:
                _touch(t, idx)
                if queue.num_sources < queue.num_hops:
                    _pass_on(t, idx)
                elif state.pauses_queue_pair == 0:
                    _offer(t, idx)
                else:
                    _offer_queue_pairs(t, idx)
            idx = following


@inner
def _sweep_backward(t: PfcTables, gain: float) -> None:
    """Visit the waiting queues up the paths."""
    state = t.state[0]
    for level in range(state.top_level + 1):
        idx = t.backward[level]
        t.backward[level] = -1
        while idx >= 0:
            queue = t.queues[idx]
            following = queue.next_backward
            queue.is_backward = 0
            state.num_waiting -= 1
            if queue.num_sources < queue.num_hops:
                _touch(t, idx)
                _reprice(t, idx, gain)
            idx = following


@inner
def _left_by_others(t: PfcTables, idx: int) -> float:
    """Return what the other priorities leave of the channel of a queue.

    Priorities that want more than they get share a channel equally; the others get what they want.
    """
    num_channels, num_priorities = len(t.channels), t.state[0].num_priorities
    channel = idx % num_channels
    capacity = t.channels[channel].capacity
    level = 0.0
    for _ in range(num_priorities):
        left, num_greedy = capacity, 1
        for priority in range(num_priorities):
            other = priority * num_channels + channel
            if other == idx or t.queues[other].num_hops == 0:
                continue
            if t.queues[other].demand <= max(level, capacity / num_priorities):
                left -= t.queues[other].demand
            else:
                num_greedy += 1
        if left / num_greedy <= level:
            break
        level = left / num_greedy
    return level


@inner
def _demand(t: PfcTables, idx: int) -> float:
    """Return what a queue wants of its channel: all it can get, unless its far end stops it."""
    queue = t.queues[idx]
    if queue.num_hops == 0:
        return 0.0
    load: float = queue.load
    used = load / queue.capacity
    if queue.num_sources == queue.num_hops:
        return load if used < 1.0 - t.state[0].cut else math.inf
    if used >= queue.held and (queue.price > 0.0 or used > 1.0):
        return math.inf
    capacity: float = queue.capacity
    return min(load, capacity)


@inner
def _share_channels(t: PfcTables) -> None:
    """Divide the channels of the queues this solve has visited among their priorities anew."""
    state, num_channels = t.state[0], len(t.channels)
    for i in range(state.num_touched):
        idx = t.touched[i]
        demand, known = _demand(t, idx), t.queues[idx].demand
        if demand != known and not abs(demand - known) <= state.cut * known < math.inf:
            t.queues[idx].demand = demand
            for priority in range(state.num_priorities):
                other = priority * num_channels + idx % num_channels
                if t.queues[other].num_hops > 0:
                    _touch(t, other)
    for i in range(state.num_touched):
        idx = t.touched[i]
        capacity = _left_by_others(t, idx)
        if abs(capacity - t.queues[idx].capacity) > state.cut * capacity:
            t.queues[idx].capacity = capacity
            _await_forward(t, idx)


@inner
def _relax(t: PfcTables) -> None:
    """Sweep until nothing waits, or for as long as a solve may take."""
    state = t.state[0]
    gain = FIRST_GAIN
    iteration: int = _ZERO
    while state.num_waiting > 0 and iteration < state.max_iterations:
        iteration += 1
        if iteration in HALVED_AT:
            gain *= 0.5
        _sweep_forward(t)
        if state.num_priorities > 1:
            _share_channels(t)
        _sweep_backward(t, gain)
    state.num_solves += 1
    state.num_iterations += iteration
    state.num_unconverged += state.num_waiting > 0


@inner
def _set_offered(t: PfcTables, slot: int, offered: float) -> None:
    """Set the offered rate of a flow and the sums of its channels."""
    flow, hops, state = t.flows[slot], t.hops, t.state[0]
    stride = len(hops) // len(t.flows)
    change = offered - flow.offered
    flow.offered = offered
    for hop in range(slot * stride, slot * stride + flow.num_hops):
        idx = hops[hop].channel
        channel = t.channels[idx]
        channel.offered += change
        if channel.stamp != state.stamp:
            channel.stamp = state.stamp
            t.touched_channels[state.num_touched_channels] = idx
            state.num_touched_channels += 1


@inner
def _fit_channels(t: PfcTables) -> None:
    """Work out by how much flows must slow down for every channel to fit; mark those that do."""
    state, num_channels = t.state[0], len(t.channels)
    for i in range(state.num_touched_channels):
        idx = t.touched_channels[i]
        channel = t.channels[idx]
        fit = 1.0
        if channel.offered > channel.capacity:
            fit = channel.capacity / channel.offered
        is_full = channel.offered >= state.full_share * channel.capacity
        if is_full != channel.is_full:
            _fill_channel(t, idx, is_full)
        if fit == channel.fit:
            continue
        channel.fit = fit
        for priority in range(state.num_priorities):
            hop = t.queues[priority * num_channels + idx].first_hop
            while hop >= 0:
                _mark_changed(t, t.hops[hop].flow)
                hop = t.hops[hop].after


@inner
def _note_time(t: PfcTables, slot: int) -> None:
    """Count the time up to now as held back, or not, before that changes."""
    flow, now_ns = t.flows[slot], t.state[0].clock_ns
    if flow.is_held:
        flow.held_ns += now_ns - flow.seen_ns
        if flow.num_full > 0:
            flow.bound_ns += now_ns - flow.seen_ns
    flow.seen_ns = now_ns


@inner
def _is_victim(t: PfcTables, slot: int) -> bool:
    """Return whether pauses for others held back a flow that ends now."""
    _note_time(t, slot)
    flow = t.flows[slot]
    little_ns = t.state[0].victim_share * (t.state[0].clock_ns - flow.start_ns)
    is_victim: bool = flow.held_ns > little_ns and flow.bound_ns < little_ns
    return is_victim


@inner
def _fill_channel(t: PfcTables, idx: int, is_full: bool) -> None:
    """Let the flows of a channel know that it is full from now on, or no longer."""
    t.channels[idx].is_full = is_full
    change = 1 if is_full else -1
    for priority in range(t.state[0].num_priorities):
        hop = t.queues[priority * len(t.channels) + idx].first_hop
        while hop >= 0:
            slot = t.hops[hop].flow
            _note_time(t, slot)
            t.flows[slot].num_full += change
            hop = t.hops[hop].after


@inner
def _apply(t: PfcTables) -> None:
    """Let the changed flows run at their new rates from now on; new flows enter the heap."""
    flows, hops, heap, state = t.flows, t.hops, t.heap, t.state[0]
    stride, now_ns = len(hops) // len(flows), state.clock_ns
    for i in range(state.num_changed):
        slot = t.changed[i]
        _set_offered(t, slot, hops[slot * stride].rate)
    _fit_channels(t)
    for i in range(state.num_changed):
        slot = t.changed[i]
        flow = flows[slot]
        fit = 1.0
        for hop in range(slot * stride, slot * stride + flow.num_hops):
            fit = min(fit, t.channels[hops[hop].channel].fit)
        rate = flow.offered * fit
        source = t.queues[hops[slot * stride].queue]
        is_held = rate < state.full_share * source.capacity / source.num_sources
        if is_held != flow.is_held:
            _note_time(t, slot)
            flow.is_held = is_held
        is_new = flow.heap_idx < 0
        if not is_new and rate == flow.rate:
            continue
        left = flow.remaining_bytes - flow.rate * (now_ns - flow.updated_ns)
        flow.remaining_bytes, flow.updated_ns = max(left, 0.0), now_ns
        flow.rate = rate
        if is_new:
            flow.heap_idx = state.num_active
            state.num_active += 1
        idx = flow.heap_idx
        heap[idx].key, heap[idx].item = now_ns + flow.remaining_bytes / rate, slot
        _sift_up(heap, flows, idx)
        _sift_down(heap, flows, flow.heap_idx, state.num_active)


@inner
def _account(t: PfcTables) -> None:
    """Note which of the visited queues are paused from now on, and how long they are."""
    state = t.state[0]
    for i in range(state.num_touched):
        queue = t.queues[t.touched[i]]
        share = 0.0
        if queue.num_hops > 0 and queue.held >= FULL and queue.load < queue.capacity:
            share = 1.0 - queue.load / queue.capacity
        if share != queue.paused_share:
            queue.paused_ns += queue.paused_share * (state.clock_ns - queue.paused_since_ns)
            queue.paused_share, queue.paused_since_ns = share, state.clock_ns
        waiting = queue.price * state.budget_bytes * min(queue.load, queue.capacity)
        queue.peak_bytes = max(queue.peak_bytes, waiting)


@inner
def _solve(t: PfcTables) -> None:
    """Find the rates after flows came or went, and let them run."""
    _relax(t)
    _apply(t)
    _account(t)


@inner
def _open_event(t: PfcTables) -> None:
    """Start the lists of what the coming solve moves."""
    state = t.state[0]
    state.stamp += 1
    state.num_changed = state.num_touched = state.num_touched_channels = 0


@inner
def _remove_flow(t: PfcTables, slot: int, carried_bytes: float) -> None:
    """Free a slot and credit what its flow carried."""
    flows, hops, state = t.flows, t.hops, t.state[0]
    stride = len(hops) // len(flows)
    _set_offered(t, slot, 0.0)
    for hop in range(slot * stride, slot * stride + flows[slot].num_hops):
        idx = hops[hop].queue
        queue, channel = t.queues[idx], t.channels[hops[hop].channel]
        before, after = hops[hop].before, hops[hop].after
        if before >= 0:
            hops[before].after = after
        else:
            queue.first_hop = after
        if after >= 0:
            hops[after].before = before
        queue.num_sources -= hops[hop].place == 0
        queue.num_hops -= 1
        channel.num_hops -= 1
        channel.carried_bytes += carried_bytes
        if channel.num_hops == 0:
            channel.offered = 0.0
        if queue.num_hops == 0:
            queue.price = queue.told_price = queue.load = queue.held = queue.feed = 0.0
        _touch(t, idx)
        _await_forward(t, idx)
    _heap_remove(t.heap, flows, slot, state.num_active)
    flows[slot].rate = 0.0
    state.num_active -= 1
    t.unused[len(flows) - state.num_active - 1] = slot


@inner
def _end_next(t: PfcTables, num_done: int) -> int:
    """Take out the flows that end next, which leave together; return the new length of ``done``."""
    heap, state = t.heap, t.state[0]
    state.clock_ns = heap[0].key
    together_ns = state.clock_ns + _slack_ns(state.clock_ns)
    while state.num_active > 0 and heap[0].key <= together_ns:
        slot = heap[0].item
        state.num_victims += _is_victim(t, slot)
        _remove_flow(t, slot, t.flows[slot].size_bytes)
        t.done[num_done].instant_ns, t.done[num_done].slot = state.clock_ns, slot
        num_done += 1
    return num_done


@inner
def _drop(t: PfcTables, num_dropped: int) -> None:
    """Take the flows told out midway; what they carried stays counted."""
    for i in range(num_dropped):
        slot = t.told[i]
        flow = t.flows[slot]
        left = flow.remaining_bytes - flow.rate * (t.state[0].clock_ns - flow.updated_ns)
        _remove_flow(t, slot, flow.size_bytes - max(left, 0.0))


@inner
def _is_sound(t: PfcTables, first_new: int, num_new: int) -> bool:
    """Return whether new flows have sizes, priorities and paths that there are."""
    for i in range(first_new, first_new + num_new):
        entry = t.new[i]
        if entry.size_bytes <= 0.0 or entry.num_hops < 1:
            return False
        if entry.priority < 0 or entry.priority >= t.state[0].num_priorities:
            return False
        for place in range(entry.first_hop, entry.first_hop + entry.num_hops):
            channel = t.told[place]
            if channel < 0 or channel >= len(t.channels):
                return False
            for before in range(entry.first_hop, place):
                if t.told[before] == channel:
                    return False
    return True


@inner
def _enter(t: PfcTables, first_new: int, num_new: int) -> None:
    """Give new flows their slots and let them wait for the next solve."""
    flows, hops, queues, state = t.flows, t.hops, t.queues, t.state[0]
    stride, num_slots, num_channels = len(hops) // len(flows), len(flows), len(t.channels)
    for i in range(num_new):
        slot = t.unused[num_slots - state.num_active - 1 - i]
        entry, flow = t.new[first_new + i], flows[slot]
        flow.size_bytes = flow.remaining_bytes = entry.size_bytes
        flow.updated_ns, flow.rate, flow.offered = state.clock_ns, 0.0, 0.0
        flow.num_hops, flow.heap_idx = entry.num_hops, -1
        flow.start_ns, flow.seen_ns = state.clock_ns, state.clock_ns
        flow.held_ns, flow.bound_ns = 0.0, 0.0
        flow.is_held, flow.num_full = 0, 0
        flow.serial = state.num_started + i
        _mark_changed(t, slot)
        ahead, level = -1, 0
        for place in range(entry.num_hops - 1, -1, -1):
            hop = hops[slot * stride + place]
            channel = t.told[entry.first_hop + place]
            idx = entry.priority * num_channels + channel
            queue = queues[idx]
            hop.channel = channel
            hop.queue, hop.next_queue, hop.flow, hop.place = idx, ahead, slot, place
            hop.rate, hop.before, hop.after = 0.0, -1, queue.first_hop
            if queue.first_hop >= 0:
                hops[queue.first_hop].before = slot * stride + place
            queue.first_hop = slot * stride + place
            queue.num_hops += 1
            queue.num_sources += place == 0
            t.channels[channel].num_hops += 1
            flow.num_full += t.channels[channel].is_full
            queue.level = min(max(queue.level, level), NUM_LEVELS - 1)
            state.top_level = max(state.top_level, queue.level)
            ahead, level = idx, queue.level + 1
            _await_forward(t, idx)
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


@compiled
def step(
    t: PfcTables, now_ns: float, num_dropped: int, first_new: int, num_new: int
) -> tuple[int, int, int, int]:
    """Complete the flows that end by ``now_ns``, within the slack, then drop some and start some.

    Flows that end together leave together, with one solve; so do those dropped, and those started.
    If the last event lies a rounding error after ``now_ns``, drops and starts happen then.

    Args:
        t: the state. ``told`` lists the slots to drop, which do not end by ``now_ns``, or the
            channels of new paths. The first entries of ``done`` will list the flows that ended by
            whole ns, then by start.
        now_ns: the instant.
        num_dropped: how many to drop; if any, none starts.
        first_new: where in ``new`` those begin that start.
        num_new: how many start.

    Returns:
        Flows that ended (-1: nothing was done, since what was told of new flows is unsound), the
        whole ns at which the next flow ends if nothing else happens (-1: there is none), and whole
        ns and serial number of the first one that ended.
    """
    heap, state = t.heap, t.state[0]
    num_done: int = _ZERO
    if not _is_sound(t, first_new, num_new):
        return -1, -1, -1, -1
    while state.num_active > 0 and heap[0].key - _slack_ns(heap[0].key) <= now_ns:
        _open_event(t)
        num_done = _end_next(t, num_done)
        _solve(t)
    _order_done(t.done, t.flows, num_done)  # before their slots are used again
    if num_dropped > 0 or num_new > 0:
        state.clock_ns = max(now_ns, state.clock_ns)
        _open_event(t)
        _drop(t, num_dropped)
        _enter(t, first_new, num_new)
        _solve(t)
    next_ns = _whole_ns(heap[0].key) if state.num_active > 0 else -1
    return num_done, next_ns, t.done[0].whole_ns, t.done[0].serial


@compiled
def run_batch(t: PfcTables, start_ns: Floats, finish_ns: Floats) -> None:
    """Run the whole list ``new`` in order of start and write down when each flow ends."""
    num_flows = len(start_ns)
    begin = _ZERO
    while begin < num_flows or t.state[0].num_active > 0:
        now_ns = start_ns[begin] if begin < num_flows else math.inf
        end = begin
        while end < num_flows and start_ns[end] <= now_ns:
            end += 1
        num_done = step(t, now_ns, _ZERO, begin, end - begin)[0]
        for i in range(num_done):
            finish_ns[t.done[i].serial] = t.done[i].instant_ns
        begin = end
