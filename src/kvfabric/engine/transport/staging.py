"""Room for KV blocks on their way, in one buffer that is registered with a network once."""

import threading

import numpy as np


class StagingFullError(Exception):
    """No room of that size is free."""


class StagingArea:
    """Hands out parts of one buffer, first fit.

    Attributes:
        buffer: flat, writable bytes.
        address: of its first byte.
    """

    def __init__(self, num_bytes: int) -> None:
        """Reserve address space; pages are taken as they are used."""
        self._array = np.empty(num_bytes, np.uint8)
        self.buffer = memoryview(self._array.data)
        self.address: int = self._array.ctypes.data
        self._lock = threading.Lock()
        self._taken: dict[int, int] = {}  # sizes by offset

    @property
    def num_taken(self) -> int:
        """Return how many parts are out."""
        return len(self._taken)

    def take(self, num_bytes: int) -> int:
        """Return the offset of a part that nobody else has.

        Raises:
            StagingFullError: there is none.
        """
        with self._lock:
            offset = 0
            for start in sorted(self._taken):
                if start - offset >= num_bytes:
                    break
                offset = start + self._taken[start]
            if offset + num_bytes > len(self.buffer):
                raise StagingFullError(
                    f"{num_bytes} bytes do not fit into the {len(self.buffer)} of staging"
                )
            self._taken[offset] = max(1, num_bytes)
            return offset

    def give_back(self, offset: int) -> None:
        """Let others have a part."""
        with self._lock:
            del self._taken[offset]
