"""Runs of the sweep on a Ray cluster. Needs the extra ``ray``, and kvfabric on every node."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from kvfabric.errors import ConfigError
from kvfabric.plan.claims.settings import RunSettings
from kvfabric.plan.claims.sweep import Outcome, RunAll, Store, run_one


@contextmanager
def ray_runner(address: str, most_at_once: int | None) -> Iterator[tuple[RunAll, int]]:
    """Yield a way to run on a Ray cluster, and how many runs it has under way at once.

    Args:
        address: of the cluster; empty for the one that is found, or else a new local one.
        most_at_once: limit of the runs under way; None: one per CPU of the cluster.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """
    if find_spec("ray") is None:
        raise ConfigError(
            "ray is not installed",
            where="--ray",
            hint="Install kvfabric with its extra: pip install 'kvfabric[ray]'",
        )
    import ray

    try:
        ray.init(address=address or None, log_to_driver=False)
    except Exception as error:  # noqa: BLE001 - Ray raises plain ones when a start fails
        reason = str(error).splitlines()[0] if str(error) else "no answer"
        raise ConfigError(
            f"no Ray cluster at {address or 'hand'}: {reason}",
            where="--ray",
            hint="Start one with 'ray start --head', or leave the address out",
        ) from None
    try:
        num_cpus = int(ray.cluster_resources().get("CPU", 1))
        at_once = min(num_cpus, most_at_once or num_cpus)
        yield _on_ray(at_once), at_once
    finally:
        ray.shutdown()


def _on_ray(at_once: int) -> RunAll:
    import ray

    remote = ray.remote(num_cpus=1)(_run)

    def run_many(
        wanted: Sequence[RunSettings], store: Store, tell: Callable[[int], None]
    ) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = list(range(len(wanted)))[::-1]
        under_way: dict[object, int] = {}
        while waiting or under_way:
            while waiting and len(under_way) < at_once:
                index = waiting.pop()
                under_way[remote.remote(wanted[index])] = index
            ready, _ = ray.wait(list(under_way), num_returns=1)
            for reference in ready:
                index = under_way.pop(reference)
                try:
                    outcomes[index] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    raise _failed(error) from None
                store.save(wanted[index], outcomes[index])
                tell(len(outcomes))
        return [outcomes[index] for index in range(len(wanted))]

    return run_many


def _failed(error: Exception) -> ConfigError:
    """Return what a run that failed on a node says: the last line of it has the reason."""
    lines = [line.strip() for line in str(error).replace("\\n", "\n").splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if "Error" in line), type(error).__name__)
    return ConfigError(
        f"a run failed on the cluster: {reason}",
        where="--ray",
        hint="Install this version of kvfabric on every node; finished runs are kept",
    )


def _run(settings: RunSettings) -> Outcome:
    return run_one(settings, lambda _: None)
