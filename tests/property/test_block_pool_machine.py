"""The pool and its prefix cache against a naive model: INV-4, the same blocks in the same order."""

from collections import Counter, OrderedDict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvfabric.kvcache.block_pool import BlockPool


class NaivePool:
    """The rules, one block at a time: an ordered dict of free blocks, next one first."""

    def __init__(self, num_blocks: int) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.refs: Counter[int] = Counter()
        self.block_by_key: dict[int, int] = {}

    def allocate(self, count: int) -> list[int] | None:
        if count > len(self.free):
            return None
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        self.refs.update(taken)
        self.block_by_key = {k: b for k, b in self.block_by_key.items() if b not in taken}
        return taken

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            self.free.pop(block, None)
        self.refs.update(blocks)

    def release(self, blocks: list[int]) -> int:
        freed = 0
        for block in blocks:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free[block] = None
                freed += 1
        return freed

    def put(self, key: int, block: int) -> None:
        if key not in self.block_by_key and block not in self.block_by_key.values():
            self.block_by_key[key] = block


class PoolMachine(RuleBasedStateMachine):
    """Requests come, hit prefixes, leave in any order; both pools must agree on everything."""

    def __init__(self) -> None:
        super().__init__()
        self.num_blocks = 9
        self.pool, self.naive = BlockPool(self.num_blocks), NaivePool(self.num_blocks)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, 9))
    def allocate(self, count: int) -> None:
        blocks = self.pool.allocate(count)
        assert blocks == self.naive.allocate(count)
        if blocks:
            self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), first_key=st.integers(0, 12))
    def remember(self, data: st.DataObject, first_key: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        keys = list(range(first_key, first_key + len(table)))
        self.pool.prefix_cache.put(keys, table)
        for key, block in zip(keys, table, strict=True):
            self.naive.put(key, block)

    @rule(first_key=st.integers(0, 12), count=st.integers(1, 5))
    def hit(self, first_key: int, count: int) -> None:
        keys = range(first_key, first_key + count)
        found = [self.pool.prefix_cache.get(key) for key in keys]
        assert found == [self.naive.block_by_key.get(key) for key in keys]
        hits = [block for block in found if block is not None]
        assert self.pool.count_free(hits) == sum(block in self.naive.free for block in hits)
        if hits:
            self.pool.share(hits)
            self.naive.share(hits)
            self.tables.append(hits)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        tail_first = table[::-1]
        assert self.pool.release(tail_first) == self.naive.release(tail_first)

    @precondition(lambda self: self.tables)
    @rule(times=st.integers(1, 30))
    def hit_and_release(self, times: int) -> None:
        """Age the queue: every round leaves outdated entries behind."""
        table = self.tables[-1]
        for _ in range(times):
            assert self.pool.release(table) == self.naive.release(table)
            self.pool.share(table)
            self.naive.share(table)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_invariants()
        assert self.pool.num_free == len(self.naive.free)
        assert self.pool.num_used == self.num_blocks - 1 - len(self.naive.free)
        for block in range(1, self.num_blocks):
            assert self.pool.is_free(block) == (block in self.naive.free)

    def teardown(self) -> None:
        """Give everything back: no block is lost, and all go out in the model's order."""
        for table in self.tables:
            assert self.pool.release(table) == self.naive.release(table)
        assert self.pool.num_used == 0
        assert self.pool.allocate(self.num_blocks - 1) == self.naive.allocate(self.num_blocks - 1)
        self.pool.check_invariants()


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestPoolMachine = PoolMachine.TestCase
