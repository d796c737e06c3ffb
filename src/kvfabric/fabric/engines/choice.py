"""From the name of a flow engine to an idle one."""

from typing import Protocol, cast

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.engines.flow_engine import BackPressure, FlowEngine
from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.routes.load_balancing import LoadBalancer
from kvfabric.fabric.routes.routing_tables import Policy

MAX_MIN, PFC, PFC_STEPPED = "max-min", "pfc", "pfc-stepped"
ENGINES = (MAX_MIN, PFC, PFC_STEPPED)


class PausingEngine(FlowEngine, BackPressure, Protocol):
    """A flow engine with priority flow control."""


def make_engine(
    name: str, capacity_bps: FloatArray, params: PfcParams | None = None, *, time_scale: int = 1
) -> FlowEngine:
    """Return an idle engine.

    Args:
        name: ``max-min``, ``pfc`` or ``pfc-stepped``.
        capacity_bps: of every channel.
        params: of priority flow control; without meaning for ``max-min``.
        time_scale: of ``pfc-stepped``; see there.

    Raises:
        ConfigError: no such engine; UnsupportedError: it lacks something asked for.
    """
    if name == MAX_MIN:
        return MaxMinEngine(capacity_bps)
    return make_pausing_engine(name, capacity_bps, params, time_scale=time_scale)


def make_pausing_engine(
    name: str, capacity_bps: FloatArray, params: PfcParams | None = None, *, time_scale: int = 1
) -> PausingEngine:
    """Return an idle engine with priority flow control; see ``make_engine``."""
    if name == PFC:
        from kvfabric.fabric.engines.pfc import PfcEngine  # noqa: PLC0415 — only who runs it pays for it

        return PfcEngine(capacity_bps, params or PfcParams())
    if name == PFC_STEPPED:
        from kvfabric.fabric.engines.pfc_stepped import PfcSteppedEngine  # noqa: PLC0415 — as above

        if params is not None and params.num_priorities > 1:
            raise UnsupportedError(
                f"{params.num_priorities} priorities with {PFC_STEPPED}",
                where="fabric.pfc.num_priorities",
                hint="Write 1",
            )
        return PfcSteppedEngine(capacity_bps, params, time_scale=time_scale)
    raise ConfigError(
        f"unknown flow engine {name!r}",
        where="fabric.engine",
        hint=f"Write one of {', '.join(ENGINES)}",
    )


def check_engine_takes(name: str, balancer: LoadBalancer) -> None:
    """Refuse an engine for paths that it cannot follow.

    Raises:
        UnsupportedError: pauses over the pooled channels of ``spray``.
    """
    if name != MAX_MIN and balancer.rules.policy is Policy.SPRAY:
        raise UnsupportedError(
            f"{balancer.name} with the flow engine {name}: it pools cables, and no port of a pool"
            " can be paused",
            where="fabric.load_balancing",
            hint=f"Write ecmp or assigned, or the engine {MAX_MIN}",
        )


def back_pressure_of(engine: FlowEngine) -> BackPressure | None:
    """Return the engine as what reports back-pressure, or None if it has none."""
    return cast("BackPressure", engine) if hasattr(engine, "num_victims") else None


def unconverged_share_of(engine: FlowEngine) -> float | None:
    """Return the share of solves that did not converge; None where nothing is iterated."""
    num_solves = getattr(engine, "num_solves", None)
    num_unconverged = getattr(engine, "num_unconverged", None)
    if num_solves is None or num_unconverged is None:
        return None
    return num_unconverged / num_solves if num_solves else 0.0
