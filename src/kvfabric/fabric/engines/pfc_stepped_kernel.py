"""Compiled kernels of the time-stepped engine with priority flow control (PFC).

One step moves every flow one hop. All that waits for a channel is served in proportion to its
bytes, as a well-mixed FIFO, except that the last byte of a flow leaves when what stood before it
has. A switch counts what each ingress channel has in it and asks for a pause above XOFF, for its
end below XON; either acts ``delay_steps`` later.

Flows that share no channel, directly or through others, with a queue or a pause run at the rate of
their NIC and are moved in one go, to the same bytes as step by step. All others are *hot*.

All functions that call each other stand in this one file, since numba's cache on disk notices
changes only in the file of the function itself. ``pfc_stepped_reference`` is the readable twin.
"""

import math

import numpy as np

from kvfabric.fabric.engines.compiled import compiled, inner
from kvfabric.fabric.engines.pfc_stepped_tables import (
    MAX_DELAY_STEPS,
    Floats,
    Indices,
    SteppedTables,
)

SORT_EVERY = 64  # steps after which hot flows may turn out to have calmed down
WINDOW = 64  # steps over which loads and rates are averaged: several cycles of pause and resume
STUCK_AFTER = 256  # steps without a move: more than any pause is delayed, so none will come
_SAME = 1e-9
_CRUMB_BYTES = 1e-3


@inner
def _settle(t: SteppedTables) -> None:
    """Bring the flows outside the hot set up to the present step."""
    state = t.state[0]
    stride = len(t.path) // len(t.flows)
    for place in range(state.num_hot, state.num_active):
        slot = t.active[place]
        flow = t.flows[slot]
        num_steps = state.step - flow.since
        if num_steps <= 0:
            continue
        flow.since = state.step
        row = slot * stride
        nic = t.channels[t.path[row]]
        per_step = nic.capacity / nic.num_sources
        flow.left_bytes -= num_steps * per_step
        for hop in range(flow.num_hops - 1, 0, -1):
            t.queued[row + hop] = per_step if num_steps >= hop else t.queued[row + hop - num_steps]


@inner
def _root(t: SteppedTables, channel: int) -> int:
    """Return the channel that stands for all that share flows with this one."""
    while t.channels[channel].parent != channel:
        above = t.channels[channel].parent
        t.channels[channel].parent = t.channels[above].parent
        channel = above
    return channel


@inner
def _gather(t: SteppedTables) -> None:
    """Join the channels of every path, and add up what is asked of each channel."""
    stride = len(t.path) // len(t.flows)
    for place in range(t.state[0].num_active):
        slot = t.active[place]
        for hop in range(slot * stride, slot * stride + t.flows[slot].num_hops):
            channel = t.channels[t.path[hop]]
            channel.parent = t.path[hop]
            channel.demand, channel.backlog, channel.is_hot = 0.0, 0.0, 0
    for place in range(t.state[0].num_active):
        slot = t.active[place]
        row = slot * stride
        flow, nic = t.flows[slot], t.channels[t.path[row]]
        rate = nic.capacity / nic.num_sources if flow.tail_hop == 0 else 0.0
        for hop in range(row, row + flow.num_hops):
            channel = t.channels[t.path[hop]]
            channel.demand += rate
            channel.backlog += t.queued[hop]
            t.channels[_root(t, t.path[hop])].parent = _root(t, t.path[row])


@inner
def _is_calm(t: SteppedTables, slot: int) -> bool:
    """Return whether a flow goes on at its NIC's rate, as far as its own path says.

    Nothing of it may be under way at a higher rate, which could meet others further on.
    """
    row = slot * (len(t.path) // len(t.flows))
    flow, nic = t.flows[slot], t.channels[t.path[row]]
    if flow.tail_hop != 0 or flow.pause_bits != 0:
        return False
    per_step = nic.capacity / nic.num_sources
    if flow.left_bytes <= per_step + _CRUMB_BYTES:
        return False
    for hop in range(row, row + flow.num_hops):
        if t.queued[hop] > per_step * (1 + _SAME):
            return False
        channel = t.channels[t.path[hop]]
        most = channel.capacity * (1 + _SAME)
        if channel.demand > most or channel.backlog > most or channel.pause_bits != 0:
            return False
    return True


@inner
def _open_window(t: SteppedTables, slot: int) -> None:
    """Begin to watch what a hot flow that still sends gets."""
    flow = t.flows[slot]
    flow.window_step, flow.window_left = t.state[0].step, flow.left_bytes
    flow.window_fair = t.channels[t.path[slot * (len(t.path) // len(t.flows))]].fair_bytes


@inner
def _close_window(t: SteppedTables, slot: int, end_step: int) -> None:
    """Note whether a flow was held back in its window, and whether it then had a full channel."""
    flow, state = t.flows[slot], t.state[0]
    row = slot * (len(t.path) // len(t.flows))
    num_steps = end_step - flow.window_step
    fair_bytes = t.channels[t.path[row]].fair_bytes - flow.window_fair
    sent_bytes = flow.window_left - flow.left_bytes
    if num_steps == 0 or sent_bytes >= state.full_share * fair_bytes:
        return
    flow.held_steps += num_steps
    for hop in range(row, row + flow.num_hops):
        channel = t.channels[t.path[hop]]
        full_bytes = state.full_share * channel.window_steps * channel.capacity
        if channel.window_bytes >= full_bytes > 0.0:
            flow.bound_steps += num_steps
            return


@inner
def _watch(t: SteppedTables) -> None:
    """Begin new windows for the hot flows that still send."""
    state = t.state[0]
    for place in range(state.num_hot):
        slot = t.active[place]
        if t.flows[slot].tail_hop == 0:
            _close_window(t, slot, state.step)
            _open_window(t, slot)
    state.window += 1


@inner
def _sort(t: SteppedTables) -> None:
    """Part the active flows into hot ones and others, and list the channels of the hot ones."""
    state = t.state[0]
    stride = len(t.path) // len(t.flows)
    _gather(t)
    for place in range(state.num_active):
        slot = t.active[place]
        if not _is_calm(t, slot):
            t.channels[_root(t, t.path[slot * stride])].is_hot = 1
    num_hot, num_calm = 0, 0
    wake = np.int64(1) << 62
    for place in range(state.num_active):
        slot = t.active[place]
        row = slot * stride
        flow = t.flows[slot]
        flow.since = state.step
        is_hot = t.channels[_root(t, t.path[row])].is_hot
        if flow.is_hot and not is_hot:
            _close_window(t, slot, state.step)
        elif is_hot and not flow.is_hot:
            _open_window(t, slot)
        flow.is_hot = is_hot
        if flow.is_hot:
            t.active[num_hot] = slot
            num_hot += 1
        else:
            t.scratch[num_calm] = slot
            num_calm += 1
            nic = t.channels[t.path[row]]
            per_step = nic.capacity / nic.num_sources
            num_whole = max(1, math.ceil((flow.left_bytes - _CRUMB_BYTES) / per_step) - 1)
            wake = min(wake, state.step + num_whole)
    for place in range(num_calm):
        t.active[num_hot + place] = t.scratch[place]
    state.num_hot, state.wake_step, state.sorted_step = num_hot, wake, state.step
    _list_channels(t)


@inner
def _list_channels(t: SteppedTables) -> None:
    state = t.state[0]
    stride = len(t.path) // len(t.flows)
    state.stamp += 1
    num_channels = 0
    for place in range(state.num_hot):
        slot = t.active[place]
        for hop in range(slot * stride, slot * stride + t.flows[slot].num_hops):
            channel = t.channels[t.path[hop]]
            if channel.stamp != state.stamp:
                channel.stamp = state.stamp
                t.hot_channels[num_channels] = t.path[hop]
                num_channels += 1
    state.num_hot_channels = num_channels


@inner
def _count_bytes(t: SteppedTables) -> None:
    """Add up what waits for each hot channel, and what each has brought into a switch."""
    state, channels = t.state[0], t.channels
    stride = len(t.path) // len(t.flows)
    for place in range(state.num_hot_channels):
        channel = channels[t.hot_channels[place]]
        channel.backlog, channel.ingress, channel.weight = 0.0, 0.0, 0.0
    for place in range(state.num_hot):
        slot = t.active[place]
        row = slot * stride
        for hop in range(row + 1, row + t.flows[slot].num_hops):
            num_bytes = t.queued[hop]
            channels[t.path[hop]].backlog += num_bytes
            channels[t.path[hop - 1]].ingress += num_bytes
    for place in range(state.num_hot):
        slot = t.active[place]
        flow = t.flows[slot]
        if flow.tail_hop > 0:
            hop = slot * stride + flow.tail_hop
            channel = channels[t.path[hop]]
            ahead = max(flow.tail_ahead, t.queued[hop])
            if channel.backlog > ahead > 0.0:
                channel.weight += t.queued[hop] * (channel.backlog / ahead - 1.0)


@inner
def _set_pauses(t: SteppedTables) -> None:
    """Compare every ingress with its thresholds and set what each hot channel serves."""
    state = t.state[0]
    delay = np.uint64(state.delay_steps)
    for place in range(state.num_hot_channels):
        channel = t.channels[t.hot_channels[place]]
        if channel.ingress > state.xoff_bytes:
            channel.wants_pause = 1
        elif channel.ingress < state.xon_bytes:
            channel.wants_pause = 0
        if state.pauses_queue_pair and channel.is_nic:
            channel.wants_pause = 0
        channel.pause_bits = (channel.pause_bits << np.uint64(1)) | np.uint64(channel.wants_pause)
        if channel.window != state.window:
            channel.window, channel.window_bytes, channel.window_steps = state.window, 0.0, 0
        if channel.backlog > 0.0 or channel.num_sources > 0 or channel.window_steps > 0:
            channel.window_steps += 1  # from the first byte on: flows take a step per hop to come
        served = min(channel.backlog, channel.capacity)
        weight = channel.backlog + channel.weight
        channel.peak_bytes = max(channel.peak_bytes, channel.backlog - served)
        channel.ratio = served / weight if weight > 0.0 else 0.0
        channel.share = channel.capacity / channel.num_sources if channel.num_sources else 0.0
        channel.fair_bytes += channel.share
        if (channel.pause_bits >> delay) & np.uint64(1):
            channel.ratio, channel.share = 0.0, 0.0
            channel.paused_steps += 1
        elif channel.ratio > 0.0:
            channel.window_bytes += served
        if channel.ratio > 0.0:
            state.idle_steps = 0


@inner
def _source_share(t: SteppedTables, slot: int, row: int) -> float:
    """Return what a flow may send in this step; its queue pair alone may be paused."""
    state, flow = t.state[0], t.flows[slot]
    nic = t.channels[t.path[row]]
    share: float = nic.share
    if not state.pauses_queue_pair or flow.num_hops == 1 or share <= 0.0:
        return share
    held = t.queued[row + 1] * (nic.capacity / share)  # times the flows of the NIC
    if held > state.xoff_bytes:
        flow.wants_pause = 1
    elif held < state.xon_bytes:
        flow.wants_pause = 0
    flow.pause_bits = (flow.pause_bits << np.uint64(1)) | np.uint64(flow.wants_pause)
    if (flow.pause_bits >> np.uint64(state.delay_steps)) & np.uint64(1):
        return 0.0
    return share


@inner
def _move_queued(t: SteppedTables, slot: int, row: int) -> None:
    """Move what waits in switches, last hop first."""
    flow = t.flows[slot]
    tail = flow.tail_hop
    for hop in range(flow.num_hops - 1, max(tail, 1) - 1, -1):
        channel = t.channels[t.path[row + hop]]
        ratio = channel.ratio
        if ratio == 0.0:
            continue
        num_bytes = t.queued[row + hop]
        if hop == tail:
            ahead = max(flow.tail_ahead, num_bytes)
            if channel.backlog > ahead > 0.0:
                ratio *= channel.backlog / ahead
            flow.tail_ahead -= min(channel.backlog, channel.capacity)
        if ratio < 1.0:
            num_bytes *= ratio
        t.queued[row + hop] -= num_bytes
        if hop + 1 < flow.num_hops:
            t.queued[row + hop + 1] += num_bytes


@inner
def _send(t: SteppedTables, slot: int, row: int) -> None:
    """Send from memory; note where the last byte stands once all is sent."""
    flow = t.flows[slot]
    share = _source_share(t, slot, row)
    if share <= 0.0:
        return
    sent = share
    if sent + _CRUMB_BYTES >= flow.left_bytes:
        sent = flow.left_bytes
        t.channels[t.path[row]].num_sources -= 1
        flow.tail_hop = 1
        if flow.num_hops > 1:
            flow.tail_ahead = t.channels[t.path[row + 1]].backlog + sent
    t.state[0].idle_steps = 0
    flow.left_bytes -= sent
    t.channels[t.path[row]].window_bytes += sent
    if flow.tail_hop > 0:
        _close_window(t, slot, t.state[0].step + 1)
    if flow.num_hops > 1:
        t.queued[row + 1] += sent


@inner
def _end_of(t: SteppedTables, slot: int, row: int) -> float:
    """Return the share of this step after which a flow has ended, or -1 if it goes on.

    Its last byte moves on to the next queue once only a crumb is left in this one.
    """
    flow = t.flows[slot]
    tail = flow.tail_hop
    if flow.num_hops == 1:
        return 1.0 if tail else -1.0
    if tail == 0 or t.queued[row + tail] > _CRUMB_BYTES:
        return -1.0
    channel = t.channels[t.path[row + tail]]
    if tail + 1 == flow.num_hops:
        in_step: float = channel.backlog / channel.capacity
        return min(1.0, in_step)
    t.queued[row + tail + 1] += t.queued[row + tail]
    t.queued[row + tail] = 0.0
    flow.tail_hop = tail + 1
    flow.tail_ahead = t.channels[t.path[row + tail + 1]].backlog + t.queued[row + tail + 1]
    return -1.0


@inner
def _run_step(t: SteppedTables) -> int:
    """Run one step of the hot flows; return how many ended, listed in ``done``."""
    state = t.state[0]
    stride = len(t.path) // len(t.flows)
    if state.step % WINDOW == 0:
        _watch(t)
    _count_bytes(t)
    _set_pauses(t)
    num_done = 0
    state.idle_steps += 1
    for place in range(state.num_hot):
        slot = t.active[place]
        row = slot * stride
        _move_queued(t, slot, row)
        if t.flows[slot].tail_hop == 0:
            _send(t, slot, row)
            if t.flows[slot].num_hops > 1:
                continue
        share = _end_of(t, slot, row)
        if share >= 0.0:
            done = t.done[num_done]
            done.instant_ns = (state.step + share) * state.step_ns
            done.serial, done.slot = t.flows[slot].serial, slot
            num_done += 1
    state.num_flow_steps += state.num_hot
    state.step += 1
    return num_done


@inner
def _forget(t: SteppedTables, slot: int) -> None:
    """Free a slot; credit every channel with what it carried of the flow."""
    state, flow = t.state[0], t.flows[slot]
    row = slot * (len(t.path) // len(t.flows))
    passed = flow.size_bytes - flow.left_bytes
    for hop in range(row, row + flow.num_hops):
        if hop > row:
            passed -= t.queued[hop]
        channel = t.channels[t.path[hop]]
        channel.carried_bytes += passed
        channel.num_flows -= 1
        if channel.num_flows == 0:
            channel.left_step = state.step
    if flow.tail_hop == 0:
        t.channels[t.path[row]].num_sources -= 1
    num_left = 0
    for place in range(state.num_active):
        if t.active[place] != slot:
            t.active[num_left] = t.active[place]
            num_left += 1
    state.num_hot -= flow.is_hot
    state.num_active = num_left
    t.unused[len(t.flows) - num_left - 1] = slot


@inner
def _age_pause(t: SteppedTables, idx: int) -> None:
    """Let a channel forget what was wanted of it while no flow crossed it."""
    channel = t.channels[idx]
    num_steps = t.state[0].step - channel.left_step
    channel.wants_pause = 0
    if num_steps > MAX_DELAY_STEPS:
        channel.pause_bits = 0
    else:
        channel.pause_bits = channel.pause_bits << np.uint64(num_steps)


@inner
def _is_victim(t: SteppedTables, slot: int) -> bool:
    flow, state = t.flows[slot], t.state[0]
    few = state.victim_share * (state.step - flow.start_step)
    is_victim: bool = flow.held_steps > few and flow.bound_steps < few
    return is_victim


@inner
def _drop_crumbs(t: SteppedTables, slot: int) -> None:
    """Let what an ended flow has left in its last queue count as delivered."""
    row = slot * (len(t.path) // len(t.flows))
    for hop in range(row, row + t.flows[slot].num_hops):
        t.queued[hop] = 0.0


@compiled
def run(t: SteppedTables, until_step: int) -> int:
    """Run the steps before ``until_step``, at most to the first in which flows end.

    Returns:
        How many flows ended, listed in ``done``.
    """
    state = t.state[0]
    num_done = 0
    while state.step < until_step and num_done == 0:
        is_due = state.step % SORT_EVERY == 0 or state.step >= state.wake_step
        if state.num_active and is_due and state.sorted_step != state.step:
            _settle(t)
            _sort(t)
        if state.num_hot == 0 or state.idle_steps > STUCK_AFTER:
            state.step = until_step
            if state.num_active > state.num_hot:
                state.step = min(until_step, state.wake_step)
            state.idle_steps = 0
            continue
        num_done = _run_step(t)
        if num_done:
            _settle(t)
            for place in range(num_done):
                slot = t.done[place].slot
                state.num_victims += _is_victim(t, slot)
                _drop_crumbs(t, slot)
                _forget(t, slot)
            _sort(t)
    return num_done


@compiled
def start(
    t: SteppedTables, sizes_bytes: Floats, path: Indices, path_start: Indices, first_serial: int
) -> None:
    """Start flows at the present step; there must be room for them."""
    state = t.state[0]
    stride = len(t.path) // len(t.flows)
    _settle(t)
    for i in range(len(sizes_bytes)):
        slot = t.unused[len(t.flows) - state.num_active - 1]
        t.active[state.num_active] = slot
        state.num_active += 1
        flow = t.flows[slot]
        flow.size_bytes, flow.left_bytes = sizes_bytes[i], sizes_bytes[i]
        flow.tail_ahead, flow.tail_hop = 0.0, 0
        flow.since, flow.start_step, flow.serial = state.step, state.step, first_serial + i
        flow.pause_bits, flow.wants_pause = 0, 0
        flow.held_steps, flow.bound_steps, flow.is_hot = 0, 0, 0
        flow.num_hops = path_start[i + 1] - path_start[i]
        for hop in range(flow.num_hops):
            t.path[slot * stride + hop] = path[path_start[i] + hop]
            t.queued[slot * stride + hop] = 0.0
            channel = t.channels[path[path_start[i] + hop]]
            if channel.num_flows == 0:
                _age_pause(t, path[path_start[i] + hop])
            channel.num_flows += 1
        nic = t.channels[path[path_start[i]]]
        nic.num_sources += 1
        nic.is_nic = 1
    _sort(t)


@compiled
def drop(t: SteppedTables, slots: Indices) -> None:
    """Drop flows at the present step; what waits in queues is lost."""
    _settle(t)
    for slot in slots:
        _forget(t, slot)
    _sort(t)


@compiled
def save(t: SteppedTables, to: SteppedTables) -> None:
    """Copy what steps can change into tables of the same size."""
    stride = len(t.path) // len(t.flows)
    num_active = t.state[0].num_active
    to.state[0] = t.state[0]
    for place in range(num_active):
        slot = t.active[place]
        to.active[place] = slot
        to.flows[slot] = t.flows[slot]
        for hop in range(slot * stride, slot * stride + t.flows[slot].num_hops):
            to.path[hop], to.queued[hop] = t.path[hop], t.queued[hop]
            to.channels[t.path[hop]] = t.channels[t.path[hop]]
    for place in range(t.state[0].num_hot_channels):
        to.hot_channels[place] = t.hot_channels[place]
    for place in range(len(t.flows) - num_active):
        to.unused[place] = t.unused[place]


@compiled
def passed_bytes(t: SteppedTables, carried: Floats) -> None:
    """Add to ``carried`` what each channel has carried of the active flows; settles ``t``."""
    _settle(t)
    stride = len(t.path) // len(t.flows)
    for place in range(t.state[0].num_active):
        slot = t.active[place]
        row = slot * stride
        passed = t.flows[slot].size_bytes - t.flows[slot].left_bytes
        for hop in range(row, row + t.flows[slot].num_hops):
            if hop > row:
                passed -= t.queued[hop]
            carried[t.path[hop]] += passed
