"""Workers that die, and may come back, at given instants of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.units import format_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """A worker dies with all it holds.

    Attributes:
        worker: its name, such as ``prefill-0``; see ``worker_layout.worker_names``.
        at_ns: when.
        back_after_ns: time until it is back, empty; None: never.
    """

    worker: str
    at_ns: int
    back_after_ns: int | None = None

    @property
    def back_ns(self) -> int | None:
        """Return when the worker is back."""
        return None if self.back_after_ns is None else self.at_ns + self.back_after_ns

    def sentence(self) -> str:
        """Return what happens, in words."""
        back_ns = self.back_ns
        back = "never back" if back_ns is None else f"back at {format_ns(back_ns)}"
        return f"{self.worker} at {format_ns(self.at_ns)}, {back}"


def check_failures(failures: Sequence[WorkerFailure], names: Sequence[str]) -> None:
    """Refuse failures of workers that are not there.

    Raises:
        ConfigError: names the failure and what to write instead.
    """
    known = frozenset(names)
    for position, failure in enumerate(failures):
        if failure.worker not in known:
            raise ConfigError(
                f"no worker {failure.worker!r} in the fleet",
                where=f"failures.{position}.worker",
                hint=f"Write one of {_ranges(names)}",
            )


def _ranges(names: Sequence[str]) -> str:
    """Return names as ``prefill-0 to prefill-4, decode-0``."""
    last: dict[str, str] = {}
    first: dict[str, str] = {}
    for name in names:
        kind = name.partition("-")[0]
        first.setdefault(kind, name)
        last[kind] = name
    return ", ".join(
        first[kind] if first[kind] == last[kind] else f"{first[kind]} to {last[kind]}"
        for kind in first
    )
