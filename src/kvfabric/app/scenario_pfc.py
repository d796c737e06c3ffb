"""The part of a scenario that sets priority flow control (PFC)."""

from typing import Annotated

from pydantic import Field

from kvfabric.app.quantities import DurationNs, Section, SizeBytes
from kvfabric.fabric.engines.pfc_params import PfcParams

_DEFAULT = PfcParams()


class PfcSettings(Section):
    """Thresholds of every ingress port and the delay of a pause; see ``PfcParams``."""

    xoff: SizeBytes | None = None
    xon: SizeBytes | None = None
    loop_delay: DurationNs | None = None
    pauses_queue_pair: bool = False
    time_scale: Annotated[int, Field(ge=1, le=1000)] = 1

    def build(self) -> PfcParams:
        """Return the record of the engines."""
        return PfcParams(
            xoff_bytes=self.xoff or _DEFAULT.xoff_bytes,
            xon_bytes=self.xon or _DEFAULT.xon_bytes,
            loop_delay_ns=_DEFAULT.loop_delay_ns if self.loop_delay is None else self.loop_delay,
            pauses_queue_pair=self.pauses_queue_pair,
        )
