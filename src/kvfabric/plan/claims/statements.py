"""The published claims, word for word in numbers, with where they stand."""

from dataclasses import dataclass

POST = "z.ai/blog/zcube, 2026-05-20"
PAPER = "From ATOP to ZCube, SIGCOMM 2025, DOI 10.1145/3718958.3750503"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One published number.

    Attributes:
        key: for programs.
        text: what is claimed, with its conditions.
        source: where.
        low: the claimed change as a share; the end of a range nearer to 0.
        high: the other end.
    """

    key: str
    text: str
    source: str
    low: float
    high: float

    @property
    def range_text(self) -> str:
        """Return the number or range in percent."""
        if self.low == self.high:
            return f"{self.low:+.1%}"
        return f"{self.low:+.0%} to {self.high:+.0%}"


def _claim(key: str, text: str, source: str, low: float, high: float | None = None) -> Claim:
    return Claim(key=key, text=text, source=source, low=low, high=low if high is None else high)


SWITCHES_2 = _claim("switches-two-tiers", "switches, against a two-tier RoFT", POST, -1 / 3)
OPTICS_SWITCH = _claim("optics-switch-side", "optics at switches, against two tiers", POST, -1 / 3)
OPTICS_ALL = _claim("optics-all", "all optics, against two tiers", PAPER, -0.25)
OPTICS_COPPER = _claim(
    "optics-copper", "all optics, against two tiers, copper on the single-rail port", PAPER, -0.5
)
SWITCHES_3 = _claim("switches-three-tiers", "switches, against a three-tier RoFT", PAPER, -0.6)
NETWORK_COST = _claim(
    "network-cost",
    "network cost, against RoFT, Rail-only and HPN at 1,024, 4,096 and 16,384 GPUs",
    PAPER, -0.26, -0.46,
)  # fmt: skip
TTFT_P99 = _claim(
    "ttft-p99", "TTFT p99, about 1,000 GPUs, coding traffic, prefill and decode apart", POST, -0.406
)
THROUGHPUT = _claim("throughput", "throughput, the same cluster", POST, 0.15)
TRAINING = _claim("training", "speed of training, GPT-3-175B and a MoE-GPT", PAPER, 0.03, 0.07)
NIC_THROUGHPUT = _claim(
    "nic-cap-throughput", "throughput, NICs of 32 GPUs from 100 to 200 Gbit/s", POST, 0.19
)
NIC_TTFT = _claim("nic-cap-ttft", "TTFT, NICs of 32 GPUs from 100 to 200 Gbit/s", POST, -0.22)
