"""Print how fast KV blocks move between two processes, beside raw sockets and iperf3 in one run.

    python bench/bench_transfer.py [--repeats 8] [--prefill-tokens-per-s 1900] [--with nixl]

- ours: 64 MiB in blocks of 64 KiB per layer (16 tokens of 8 heads of 128 in bf16), scattered at
  the source and put in reverse at the destination, from ``send`` to the acknowledgement;
- raw: a loop of sendmsg and recvmsg_into over the same list of segments, one byte as answer;
- shared: ours, where the receiver maps the sender's pool and copies the same blocks from it;
- memcpy: one copy of as many bytes between two mappings of one process, the bound of the latter;
- nixl, mooncake: ours through that library, if asked for and installed;
- iperf3, where it is installed: TCP loopback, 1 MiB writes, 2 s;
- hand-off: 512 tokens of SmolLM2-135M (30 layers, 3 KV heads of 64, bf16), 11.8 MB, against the
  time its prefill takes at a stated rate. "neighbours": the blocks are consecutive at either end,
  as those of a prompt that nobody shares are in a fresh pool.

Rounds alternate between the cases; the best and the median of the rounds are printed, with the load
average. On a busy machine the clock measures the others; the CPU time of the busier end is then the
better figure: it bounds the rate on two free cores.
"""

import argparse
import json
import mmap
import multiprocessing
import os
import queue
import shutil
import socket
import statistics
import subprocess
import sys
import time  # noqa: TID251
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.transport.address import parse_address
from kvfabric.engine.transport.block_memory import CopiedBlocks, PooledBlocks
from kvfabric.engine.transport.choose import SHARED, SOCKETS, make_transport
from kvfabric.engine.transport.handshake import Identity
from kvfabric.engine.transport.pool_shape import pool_shape_of
from kvfabric.engine.transport.port import (
    BlockMemory,
    Deadlines,
    KvTransport,
    Piece,
    TransferDone,
)
from kvfabric.engine.transport.scatter_list import ScatterList
from kvfabric.engine.transport.shared_pool import SharedPool, make_shared_pool

LARGE = KvLayout(num_layers=16, block_size=16, num_kv_heads=8, head_dim=128, kv_dtype="bfloat16")
SMOLLM2 = KvLayout(num_layers=30, block_size=16, num_kv_heads=3, head_dim=64, kv_dtype="bfloat16")
_CONTEXT = multiprocessing.get_context("spawn")  # a fork would hold the others' sockets open
NUM_SENT = {LARGE: 64, SMOLLM2: 32}  # blocks: 64 MiB, 512 tokens
BOUNDS = {
    "unix, ours, 64 MiB": "unix, raw sockets, 64 MiB",
    "tcp, ours, 64 MiB": "tcp, raw sockets, 64 MiB",
    "shared, ours, 64 MiB": "memcpy, 64 MiB",
    "nixl, ours, 64 MiB": "memcpy, 64 MiB",
    "mooncake, ours, 64 MiB": "tcp, raw sockets, 64 MiB",
    "shared, ours, hand-off": "memcpy, as a hand-off",
    "shared, ours, hand-off, neighbours": "memcpy, as a hand-off",
}


class Case(NamedTuple):
    """What is measured: blocks of one shape, in place or by copies, over one transport."""

    layout: KvLayout
    is_copied: bool = False
    transport: str = SOCKETS
    are_neighbours: bool = False

    @property
    def num_blocks(self) -> int:
        """Return the blocks of a pool: twice what is sent."""
        return 2 * NUM_SENT[self.layout]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of a transfer."""
        return NUM_SENT[self.layout] * self.layout.block_bytes

    def sent(self) -> list[Piece]:
        """Return every second block, or the first ones."""
        if self.are_neighbours:
            return [Piece(tuple(range(NUM_SENT[self.layout])), 0, self.layout.num_layers)]
        return [Piece(tuple(range(0, self.num_blocks, 2)), 0, self.layout.num_layers)]

    def put(self) -> list[Piece]:
        """Return every second block, from the last, or the last ones."""
        if self.are_neighbours:
            last = tuple(range(NUM_SENT[self.layout], self.num_blocks))
            return [Piece(last, 0, self.layout.num_layers)]
        return [Piece(tuple(range(self.num_blocks - 1, 0, -2)), 0, self.layout.num_layers)]


class Took(NamedTuple):
    """What one transfer took, in ns: by the clock, and of CPU at either end."""

    wall_ns: int
    sender_cpu_ns: int
    receiver_cpu_ns: int

    @property
    def cpu_ns(self) -> int:
        """Return the CPU time of the busier end: the bound on a machine with two free cores."""
        return max(self.sender_cpu_ns, self.receiver_cpu_ns)


class NumpyStore:
    """A pool that copies blocks out and in, as an executor does."""

    def __init__(self, pool: np.ndarray) -> None:
        """Serve a pool ``[layers, 2, blocks, bytes]``."""
        self._pool = pool

    def read_blocks(self, block_ids: Sequence[int], first_layer: int, end_layer: int) -> memoryview:
        """Return a copy of blocks."""
        return self._pool[first_layer:end_layer].take(list(block_ids), axis=2).data.cast("B")

    def write_blocks(
        self, block_ids: Sequence[int], first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Store blocks."""
        part = self._pool[first_layer:end_layer]
        ids = np.asarray(block_ids)
        part[:, :, ids] = np.frombuffer(data, np.uint8).reshape(part.shape[0], 2, len(ids), -1)


def make_memory(case: Case, seed: int) -> tuple[np.ndarray, BlockMemory, SharedPool | None]:
    """Return a pool of random bytes, the memory over it, and what peers map of it."""
    shape = pool_shape_of(case.layout, case.num_blocks)
    shared = make_shared_pool(shape) if case.transport == SHARED else None
    memory = bytearray(shape.num_bytes) if shared is None else shared.memory
    (pool,) = shape.arrays(memoryview(memory))
    pool[:] = np.random.default_rng(seed).integers(0, 256, pool.shape, np.uint8)
    if case.is_copied:
        return pool, CopiedBlocks(NumpyStore(pool), case.layout), None
    return pool, PooledBlocks(memoryview(memory), shape), shared


def check_done(event: object) -> None:
    """End the run if a transfer failed."""
    if not isinstance(event, TransferDone):
        raise SystemExit(f"a transfer failed: {event}")


# ---------------------------------------------------------------------- ours


def make_end(
    case: Case,
    memory: BlockMemory,
    events: "queue.SimpleQueue[object]",
    listen_on: str,
    pool: SharedPool | None,
) -> KvTransport:
    """Return one end of a transport."""
    who = Identity(model="bench", layout=case.layout)
    return make_transport(
        case.transport,
        who,
        memory,
        events.put,
        listen_on=listen_on,
        deadlines=Deadlines(),
        pool=pool,
    )


def receive_ours(pipe: Connection, listen_on: str, case: Case) -> None:
    """Expect what the other process asks for, and answer a checksum when that is wanted."""
    pool, memory, shared = make_memory(case, 1)
    events: queue.SimpleQueue[object] = queue.SimpleQueue()
    transport = make_end(case, memory, events, listen_on, shared)
    pipe.send(transport.address)
    while (transfer_id := pipe.recv()) is not None:
        start_ns = time.process_time_ns()
        transport.expect(transfer_id, case.put())
        pipe.send("expected")
        done = events.get()
        check_done(done)
        pipe.send(time.process_time_ns() - start_ns)
    pipe.send(pool[:, :, case.put()[0].block_ids].sum())
    transport.close()


def ours(case: Case, listen_on: str) -> tuple[Callable[[], Took], Callable[[], None]]:
    """Return a function that moves blocks once, and one that ends."""
    pipe, process = spawn(receive_ours, listen_on, case)
    address = pipe.recv()
    pool, memory, shared = make_memory(case, 2)
    events: queue.SimpleQueue[object] = queue.SimpleQueue()
    transport = make_end(case, memory, events, "tcp:127.0.0.1:0", shared)
    ids = iter(range(10**6))

    def move() -> Took:
        transfer_id = next(ids)
        pipe.send(transfer_id)
        pipe.recv()
        start_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        transport.send(transfer_id, address, case.sent())
        done = events.get()
        check_done(done)
        wall_ns = time.perf_counter_ns() - start_ns
        return Took(wall_ns, time.process_time_ns() - cpu_ns, pipe.recv())

    def end() -> None:
        pipe.send(None)
        if pipe.recv() != pool[:, :, case.sent()[0].block_ids].sum():
            raise SystemExit("bytes got lost")
        transport.close()
        process.join()

    return move, end


# ---------------------------------------------------------------------- raw sockets


def receive_raw(pipe: Connection, listen_on: str, case: Case) -> None:
    """Fill the blocks with what comes, as often as it comes."""
    _, memory, _ = make_memory(case, 1)
    where = parse_address(listen_on)
    with socket.socket(where.family, socket.SOCK_STREAM) as listener:
        listener.bind(where.for_socket)
        listener.listen()
        pipe.send(listener.getsockname())
        sock, _ = listener.accept()
    with sock:
        while True:
            start_ns = time.process_time_ns()
            left = ScatterList(memory.incoming(case.put()[0]))
            while left.num_bytes:
                num_bytes = sock.recvmsg_into(left.peek(1 << 18))[0]
                if not num_bytes:
                    return
                left.advance(num_bytes)
            sock.sendall(b"!")
            pipe.send(time.process_time_ns() - start_ns)


def raw(case: Case, listen_on: str) -> tuple[Callable[[], Took], Callable[[], None]]:
    """Return a function that moves blocks once, and one that ends."""
    pipe, process = spawn(receive_raw, listen_on, case)
    where = parse_address(listen_on)
    sock = socket.socket(where.family, socket.SOCK_STREAM)
    sock.connect(pipe.recv())
    _, memory, _ = make_memory(case, 2)

    def move() -> Took:
        start_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        left = ScatterList(memory.outgoing(case.sent()[0]))
        while left.num_bytes:
            left.advance(sock.sendmsg(left.peek(1 << 20)))
        sock.recv(1)
        wall_ns = time.perf_counter_ns() - start_ns
        return Took(wall_ns, time.process_time_ns() - cpu_ns, pipe.recv())

    def end() -> None:
        sock.close()
        process.join()

    return move, end


def memcpy(case: Case) -> tuple[Callable[[], Took], Callable[[], None]]:
    """Return a function that copies as many bytes at once, between mappings as two workers have."""
    shape = pool_shape_of(case.layout, case.num_blocks)
    source, target = make_shared_pool(shape), make_shared_pool(shape)
    if source is None or target is None:
        raise SystemExit("this system has no memory that two processes can map safely")
    source.arrays[0][:] = 1
    mapped = mmap.mmap(source.fd, shape.num_bytes, prot=mmap.PROT_READ)
    of = np.frombuffer(mapped, np.uint8, case.num_bytes)
    to = np.frombuffer(target.memory, np.uint8, case.num_bytes)

    def move() -> Took:
        start_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        to[:] = of
        wall_ns = time.perf_counter_ns() - start_ns
        return Took(wall_ns, 0, time.process_time_ns() - cpu_ns)

    return move, lambda: None


def spawn(
    target: Callable[[Connection, str, Case], None], listen_on: str, case: Case
) -> tuple[Connection, SpawnProcess]:
    """Start a process with a pipe to it."""
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=target, args=(there, listen_on, case), daemon=True)
    process.start()
    return here, process


# ---------------------------------------------------------------------- the run


def iperf3_gb_per_s() -> float | None:
    """Return what iperf3 moves over TCP loopback, or None where it is not installed."""
    iperf3 = shutil.which("iperf3")
    if iperf3 is None:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    address = ["-B", "127.0.0.1", "-p", port]
    command = [iperf3, "-s", "-1", *address]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
    time.sleep(0.5)
    client = [iperf3, "-c", "127.0.0.1", "-p", port, "-l", "1M", "-t", "2", "-J"]
    result = subprocess.run(client, capture_output=True, check=True)  # noqa: S603
    server.wait()
    return float(json.loads(result.stdout)["end"]["sum_received"]["bits_per_second"]) / 8e9


def main() -> None:
    """Run all cases in turn and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--prefill-tokens-per-s", type=float, default=1900.0)
    parser.add_argument("--with", dest="libraries", choices=["nixl", "mooncake"], action="append")
    args = parser.parse_args()
    large, in_place, copied = Case(LARGE), Case(SMOLLM2), Case(SMOLLM2, is_copied=True)
    shared, handed = Case(LARGE, transport=SHARED), Case(SMOLLM2, transport=SHARED)
    neighbours = handed._replace(are_neighbours=True)
    with TemporaryDirectory() as folder:
        numbers = iter(range(100))

        def unix() -> str:
            return f"unix:{Path(folder) / str(next(numbers))}"

        tcp = "tcp:127.0.0.1:0"
        movers = {
            "unix, raw sockets, 64 MiB": (large, *raw(large, unix())),
            "unix, ours, 64 MiB": (large, *ours(large, unix())),
            "memcpy, 64 MiB": (large, *memcpy(large)),
            "shared, ours, 64 MiB": (shared, *ours(shared, unix())),
            "tcp, raw sockets, 64 MiB": (large, *raw(large, tcp)),
            "tcp, ours, 64 MiB": (large, *ours(large, tcp)),
            "memcpy, as a hand-off": (in_place, *memcpy(in_place)),
            "shared, ours, hand-off": (handed, *ours(handed, unix())),
            "shared, ours, hand-off, neighbours": (neighbours, *ours(neighbours, unix())),
            "unix, ours, hand-off in place": (in_place, *ours(in_place, unix())),
            "unix, ours, hand-off by copies": (copied, *ours(copied, unix())),
            "tcp, ours, hand-off in place": (in_place, *ours(in_place, tcp)),
            "tcp, ours, hand-off by copies": (copied, *ours(copied, tcp)),
        }
        for name in args.libraries or ():
            by_library = [Case(layout, transport=name) for layout in (LARGE, SMOLLM2)]
            for case, what in zip(by_library, ("64 MiB", "hand-off"), strict=True):
                movers[f"{name}, ours, {what}"] = (case, *ours(case, tcp))
        times: dict[str, list[Took]] = {name: [] for name in movers}
        for _, move, _ in movers.values():
            move()  # pages and connections
        for _ in range(args.repeats):
            for name, (_, move, _) in movers.items():
                times[name].append(move())
        for _, _, end in movers.values():
            end()
    report({name: case for name, (case, _, _) in movers.items()}, times, args.prefill_tokens_per_s)
    if args.libraries:
        sys.stdout.flush()
        os._exit(0)  # what NIXL loads crashes when it is unloaded


def report(cases: dict[str, Case], times: dict[str, list[Took]], prefill_rate: float) -> None:
    """Print the table and the ratios."""
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':36} {'':>6} {'by the clock':^24}   {'by CPU of the busier end':^26}")
    print(f"{'case':36} {'MB':>6}" + f" {'best ms':>8} {'median':>8} {'GB/s':>6}  " * 2)
    for name, case in cases.items():
        line = f"{name:36} {case.num_bytes / 1e6:6.1f}"
        for ns in ([t.wall_ns for t in times[name]], [t.cpu_ns for t in times[name]]):
            rate = case.num_bytes / min(ns)
            line += f" {min(ns) / 1e6:8.2f} {statistics.median(ns) / 1e6:8.2f} {rate:6.2f}  "
        print(line)
    for mine, bound in ((mine, bound) for mine, bound in BOUNDS.items() if mine in times):
        by_clock, by_cpu = (
            min(ns(took) for took in times[bound]) / min(ns(took) for took in times[mine])
            for ns in (lambda took: took.wall_ns, lambda took: took.cpu_ns)
        )
        print(f"{mine}: rate / {bound} {by_clock:.2f} by the clock, {by_cpu:.2f} by CPU")
    iperf3 = iperf3_gb_per_s()
    tcp_rate = cases["tcp, ours, 64 MiB"].num_bytes / min(
        took.wall_ns for took in times["tcp, ours, 64 MiB"]
    )
    if iperf3 is None:
        print("iperf3 is not installed")
    else:
        print(f"iperf3 {iperf3:.2f} GB/s: ours / iperf3 {tcp_rate / iperf3:.2f}")
    prefill_ms = 512 / prefill_rate * 1000
    for name in (name for name in times if "ours, hand-off" in name):
        shares = [min(ns) / 1e6 / prefill_ms for ns in zip(*times[name], strict=True)]
        print(
            f"{name}: best is {shares[0]:.1%} of a prefill of {prefill_ms:.0f} ms by the clock; "
            f"CPU {shares[1]:.1%} at the sender, {shares[2]:.1%} at the receiver"
        )


if __name__ == "__main__":
    main()
