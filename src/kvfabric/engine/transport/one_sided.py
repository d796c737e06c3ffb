"""The port of libraries that read a peer's memory without its help: NIXL, Mooncake.

One buffer is registered once, at the start; what lies where in it is agreed by other means.
"""

from typing import Protocol


class PullError(Exception):
    """Bytes could not be read from a peer; the text says why."""


class OneSidedReader(Protocol):
    """Reads from peers' registered buffers into its own."""

    @property
    def descriptor(self) -> str:
        """Return what a peer needs to read from here; at most a few KiB of text."""
        ...

    def read(
        self, descriptor: str, remote_offset: int, offset: int, num_bytes: int, deadline_ns: int
    ) -> None:
        """Copy bytes from a peer's buffer to this one's; returns when they are there.

        Raises:
            PullError: the peer is gone, or the deadline passed.
        """
        ...

    def progress(self) -> None:
        """Let peers read from here; called again and again while they may."""
        ...

    def close(self) -> None:
        """Let go of the buffer."""
        ...
