"""What surrounds the bytes of a hand-off: its fixed set-up time, and the frames on the wire."""

from typing import Final

from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import NS_PER_S, ceil_div

HANDOFF_SETUP_NS: Final = 380_000
"""Time of a hand-off beside the bytes: connection, descriptors, notification."""

HANDOFF_SETUP_SOURCE: Final = Source(
    SourceKind.DERIVED,
    "fit t = 0.38 ms + bytes / 146.1 GB/s to Mooncake's vLLM prefill-decode table (docs at"
    " 3b5a594): Qwen3-8B, 2 nodes of 8 H800, 8 CX-7 RoCE, one request at a time; within 7 %",
    "2026-11-30",
)

ROCE_PAYLOAD_BYTES: Final = 4_096
ROCE_FRAME_BYTES: Final = 4_160
ROCE_FRAME_SOURCE: Final = Source(
    SourceKind.DERIVED,
    "RoCEv2 at path MTU 4096: 4,096 bytes of payload in a frame counted as 4,160 (Ethernet, IP,"
    " UDP, transport header and checks, rounded to 64)",
)


def payload_rate_bps(line_rate_bps: int) -> int:
    """Return the rate of payload on a RoCE line, rounded down; see ``ROCE_FRAME_SOURCE``.

    >>> payload_rate_bps(400_000_000_000)
    393846153846
    """
    return line_rate_bps * ROCE_PAYLOAD_BYTES // ROCE_FRAME_BYTES


def estimate_handoff_ns(num_bytes: int, rate_bps: int) -> int:
    """Return the time of a lone hand-off, rounded up: set-up, then the bytes at a payload rate.

    Source: ``HANDOFF_SETUP_SOURCE``.
    """
    if num_bytes < 0 or rate_bps < 1:
        raise ConfigError(
            f"hand-off of {num_bytes} bytes at {rate_bps} bit/s", hint="Write a rate above 0"
        )
    return HANDOFF_SETUP_NS + ceil_div(num_bytes * 8 * NS_PER_S, rate_bps)
