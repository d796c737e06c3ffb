"""A list of memory segments that is sent or filled bit by bit, without joining them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

MAX_SEGMENTS = 1024  # IOV_MAX of Linux
_ZEROS = memoryview(bytes(1 << 20))
_NOTHING = memoryview(b"")


class ScatterList:
    """Segments of bytes, one of their positions ``at``, and an end; perhaps a header in front.

    Parts share the segments: cutting one off, looking ahead and going on cost a search each,
    whatever the number of segments.
    """

    __slots__ = ("_at", "_ends", "_header", "_stop", "_views")

    def __init__(self, views: Iterable[memoryview]) -> None:
        """Start at the first byte; items of the views are bytes."""
        self._views = list(views)
        self._ends = list(accumulate(map(len, self._views)))
        self._at, self._stop = 0, self._ends[-1] if self._ends else 0
        self._header = _NOTHING

    @property
    def num_bytes(self) -> int:
        """Return how many bytes are left."""
        return len(self._header) + self._stop - self._at

    def peek(self, max_bytes: int) -> list[memoryview]:
        """Return the next segments: together at most ``max_bytes``, and no more than fit one call.

        The first and the last one are cut.
        """
        if self._header:
            header = self._header[:max_bytes]
            return [header, *self._segments(max_bytes - len(header), MAX_SEGMENTS - 1)]
        return self._segments(max_bytes, MAX_SEGMENTS)

    def _segments(self, max_bytes: int, max_segments: int) -> list[memoryview]:
        start, end = self._at, min(self._at + max_bytes, self._stop)
        if start == end:
            return []
        first = bisect_right(self._ends, start)
        last = bisect_left(self._ends, end, first)
        if last >= first + max_segments:
            last = first + max_segments - 1
            end = self._ends[last]
        found = self._views[first : last + 1]
        num_cut = self._ends[last] - end
        if num_cut:
            found[-1] = found[-1][: len(found[-1]) - num_cut]
        num_passed = start - (self._ends[first - 1] if first else 0)
        if num_passed:
            found[0] = found[0][num_passed:]
        return found

    def advance(self, num_bytes: int) -> None:
        """Leave behind the next bytes."""
        if self._header:
            num_header = min(num_bytes, len(self._header))
            self._header = self._header[num_header:]
            num_bytes -= num_header
        self._at += num_bytes

    def take(self, max_bytes: int) -> "ScatterList":
        """Cut off the next bytes, at most ``max_bytes``, as a list of its own."""
        part = ScatterList(())
        part._views, part._ends = self._views, self._ends
        part._at, part._stop = self._at, min(self._at + max_bytes, self._stop)
        self._at = part._stop
        return part

    def put_before(self, header: memoryview) -> None:
        """Put a header before what is left."""
        self._header = header

    def blank(self) -> None:
        """Put zeros in the place of all but the header: as many, of nobody's memory."""
        left = self._stop - self._at
        sizes = [len(_ZEROS)] * (left // len(_ZEROS)) + [left % len(_ZEROS)]
        self._views = [_ZEROS[:size] for size in sizes]
        self._ends = list(accumulate(sizes))
        self._at, self._stop = 0, left
