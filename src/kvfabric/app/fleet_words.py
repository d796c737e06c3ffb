"""Workers of a fleet in words."""

from kvfabric.plan.request import WorkerRequest


def roles(workers: WorkerRequest) -> str:
    """Return how many workers of which size a fleet has."""
    prefill, decode = f"{workers.num_prefill:,}", f"{workers.num_decode:,}"
    if not workers.num_decode:
        return f"{prefill} worker{'s' if workers.num_prefill > 1 else ''} of TP{workers.tp}"
    size = f"TP{workers.tp}"
    if workers.prefill_cp > 1:
        size = f"CP{workers.prefill_cp} x TP{workers.tp} ({workers.cp_exchange.value})"
    if size == f"TP{workers.decode_gpus}":
        return f"{prefill} prefill + {decode} decode workers of {size}"
    return (
        f"{prefill} prefill workers of {size} + {decode} decode workers of TP{workers.decode_gpus}"
    )
