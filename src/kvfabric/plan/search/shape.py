"""What a search varies: the shape of a fleet, and the fabric that joins it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kvfabric.plan.request import NO_FABRIC, FabricChoice, PlanRequest
from kvfabric.protocol.ports import StepTimeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The workers of a fleet.

    Attributes:
        num_prefill: prefill workers, or workers that do both.
        num_decode: decode workers; 0: every worker does both.
        tp: GPUs of a prefill worker, or of one that does both.
        decode_tp: GPUs of a decode worker; ``tp`` where every worker does both.
        prefill_cp: context-parallel ranks of ``tp`` GPUs that a prefill worker has.
    """

    num_prefill: int
    num_decode: int
    tp: int
    decode_tp: int
    prefill_cp: int = 1

    @property
    def is_aggregated(self) -> bool:
        """Return whether every worker does both."""
        return self.num_decode == 0

    @property
    def num_gpus(self) -> int:
        """Return the GPUs of the fleet."""
        prefill = self.num_prefill * self.tp * self.prefill_cp
        return prefill + self.num_decode * self.decode_tp

    @property
    def name(self) -> str:
        """Return text such as ``5P3D TP8`` or ``8 x TP8``.

        >>> Shape(num_prefill=5, num_decode=3, tp=1, decode_tp=4).name
        '5P3D TP1+TP4'
        """
        if self.is_aggregated:
            return f"{self.num_prefill} x TP{self.tp}"
        sizes = f"TP{self.tp}" if self.tp == self.decode_tp else f"TP{self.tp}+TP{self.decode_tp}"
        return f"{self.num_prefill}P{self.num_decode}D {sizes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricOption:
    """A fabric as it could be bought, and how its traffic is spread.

    Attributes:
        choice: kind, radix and sizes.
        nic_rate_bps: of the NIC of every GPU.
        switch_capacity_bps: of every switch whose fabric names no radix; None: the default.
        load_balancing: policy.
        parts: number of its hardware; options with the same differ in the policy only.
        idx: place in the search, which breaks ties.
    """

    choice: FabricChoice
    nic_rate_bps: int
    switch_capacity_bps: int | None
    load_balancing: str
    parts: int
    idx: int

    @property
    def label(self) -> str:
        """Return the name of the fabric: as given, or kind and radix."""
        return self.choice.label or self.choice.kind

    @property
    def name(self) -> str:
        """Return text such as ``zcube 400G assigned``."""
        parts = [self.label, f"{self.nic_rate_bps / 1e9:g}G"]
        if self.switch_capacity_bps is not None:
            parts.append(f"{self.switch_capacity_bps / 1e12:g}T")
        return " ".join((*parts, self.load_balancing))


def shape_request(
    base: PlanRequest, shape: Shape, step_models: Mapping[int, StepTimeModel] = MappingProxyType({})
) -> PlanRequest:
    """Return the plan of a shape without a fabric of its own.

    Args:
        base: the plan that the search starts from.
        shape: the workers.
        step_models: step times by GPUs of a worker, where they are not those of the roofline.
    """
    workers = replace(
        base.workers,
        num_prefill=shape.num_prefill,
        num_decode=shape.num_decode,
        tp=shape.tp,
        decode_tp=None if shape.decode_tp == shape.tp else shape.decode_tp,
        prefill_cp=shape.prefill_cp,
        decode_num_blocks=None if shape.is_aggregated else base.workers.decode_num_blocks,
    )
    return replace(
        base,
        workers=workers,
        network=NO_FABRIC if shape.is_aggregated else base.network,
        step_model=step_models.get(shape.tp),
        decode_step_model=step_models.get(shape.decode_tp) if workers.decode_tp else None,
        compare_aggregated=False,
    )


def with_fabric(request: PlanRequest, option: FabricOption) -> PlanRequest:
    """Return the plan of a shape over one fabric."""
    network = replace(
        request.network,
        nic_rate_bps=option.nic_rate_bps,
        switch_capacity_bps=option.switch_capacity_bps,
        fabrics=(option.choice,),
        load_balancing=(option.load_balancing,),
    )
    return replace(request, network=network)


def splits(num_gpus: int, tp: int, decode_tp: int, prefill_cp: int = 1) -> Iterator[Shape]:
    """Yield every division of the GPUs into prefill and decode workers, few prefill ones first."""
    for num_prefill in range(1, num_gpus // (tp * prefill_cp) + 1):
        left = num_gpus - num_prefill * tp * prefill_cp
        if left and left % decode_tp == 0:
            yield Shape(
                num_prefill=num_prefill,
                num_decode=left // decode_tp,
                tp=tp,
                decode_tp=decode_tp,
                prefill_cp=prefill_cp,
            )
