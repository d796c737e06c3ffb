"""Pauses, queues and victims of a run in a few figures."""

from collections.abc import Callable
from dataclasses import dataclass

from kvfabric.fabric.engines.choice import back_pressure_of, unconverged_share_of
from kvfabric.fabric.engines.flow_engine import FlowEngine
from kvfabric.units import NS_PER_S, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureReport:
    """What priority flow control did to a run.

    Attributes:
        paused_ns: time that senders were held back, summed over all channels.
        num_paused_channels: channels that were held back at all.
        longest_paused_link: the channel held back longest; empty if none was.
        longest_paused_ns: for how long.
        num_victims: ended flows slowed though none of their own links was full; see
            ``BackPressure``.
        worst_queue_bytes: the longest queue.
        worst_queue_link: the channel it waited for; empty if nothing waited.
        unconverged_share: solves of the engine that ended without an answer within its tolerance;
            None for engines that do not iterate.
    """

    paused_ns: int
    num_paused_channels: int
    longest_paused_link: str
    longest_paused_ns: int
    num_victims: int
    worst_queue_bytes: int
    worst_queue_link: str
    unconverged_share: float | None

    def sentence(self) -> str:
        """Return the figures as text."""
        paused = "no pauses"
        if self.paused_ns:
            paused = (
                f"ports paused for {self.paused_ns / NS_PER_S:,.3g} s in all on"
                f" {self.num_paused_channels:,} links, longest {self.longest_paused_link}"
                f" ({self.longest_paused_ns / NS_PER_S:,.3g} s)"
            )
        queue = f"worst queue {format_bytes(self.worst_queue_bytes)}"
        if self.worst_queue_link:
            queue += f" for {self.worst_queue_link}"
        solves = ""
        if self.unconverged_share is not None:
            solves = f"; {self.unconverged_share:.1%} of the solves not converged"
        return f"{paused}; {self.num_victims:,} victim flows; {queue}{solves}"


def report_pressure(
    engine: FlowEngine, channel_name: Callable[[int], str]
) -> PressureReport | None:
    """Return what an engine has counted since the start; None if it knows no pauses."""
    pressure = back_pressure_of(engine)
    if pressure is None:
        return None
    paused, peak = pressure.paused_ns(), pressure.peak_queue_bytes()
    longest, worst = int(paused.argmax()), int(peak.argmax())
    return PressureReport(
        paused_ns=round(float(paused.sum())),
        num_paused_channels=int((paused > 0).sum()),
        longest_paused_link=channel_name(longest) if paused[longest] > 0 else "",
        longest_paused_ns=round(float(paused[longest])),
        num_victims=pressure.num_victims(),
        worst_queue_bytes=round(float(peak[worst])),
        worst_queue_link=channel_name(worst) if peak[worst] > 0 else "",
        unconverged_share=unconverged_share_of(engine),
    )
