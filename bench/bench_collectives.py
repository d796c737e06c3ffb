"""Print the all-to-all of 64 GPUs over five fabrics beside the published times.

    python bench/bench_collectives.py

The assumptions are printed with it. The second half of the table is the same with 8 GPUs per
domain, the third with plain hashing over all shortest paths where the first has a rule of its own.
"""

import time  # noqa: TID251 — a bench reads a clock
from dataclasses import replace

from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.plan.validation.all_to_all_cases import ASSUMPTIONS, CASES, Case, all_to_all_ms


def hashed(case: Case) -> Case:
    """Return the case with ECMP over all shortest paths and both ports."""
    return replace(
        case, balance=lambda topology, seed: make_load_balancer("ecmp", topology, seed=seed)
    )


def print_table(title: str, cases: tuple[Case, ...], *, domain: int) -> None:
    """Print one line per fabric."""
    print(f"\n{title}")
    for case in cases:
        start = time.process_time()
        time_ms = all_to_all_ms(case, domain=domain)
        used = time.process_time() - start
        error = time_ms / case.published_ms - 1
        print(
            f"  {case.name:11} {time_ms:6.3f} ms  published {case.published_ms:.3f}  {error:+6.1%}"
            f"  ({used:.1f} CPU s)"
        )


def main() -> None:
    """Print all tables."""
    print(ASSUMPTIONS)
    print_table("16 GPUs per domain", CASES, domain=16)
    print_table("8 GPUs per domain", CASES, domain=8)
    print_table("16 GPUs per domain, ECMP everywhere", tuple(map(hashed, CASES)), domain=16)


if __name__ == "__main__":
    main()
