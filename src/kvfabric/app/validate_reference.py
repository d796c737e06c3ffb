"""Reads the folder of reference data that ``kvfabric validate`` recomputes from."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kvfabric.app.resolve import Overrides, apply_overrides, resolve
from kvfabric.app.scenario import Scenario
from kvfabric.app.scenario_file import parse_scenario
from kvfabric.app.validate_scenarios import VLLM_SCENARIOS
from kvfabric.errors import ConfigError
from kvfabric.plan.simulate import simulate
from kvfabric.plan.validation.reference import LatencyFigure, PacketFlow, TimedFlows
from kvfabric.plan.validation.vllm_runs import FOLDERS
from kvfabric.workload.open_text import read_lines

_MAX_MIN = "1024h_10k_load0.5.txt.gz"


class ReferenceFolder:
    """The folder of reference data; see ``ReferenceData``."""

    def __init__(self, root: Path) -> None:
        """Take the folder.

        Raises:
            ConfigError: it is none.
        """
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            raise ConfigError(f"{root} {what}", where="--reference", hint="Name the folder")
        self._root = root

    def missing(self, needs: Sequence[str]) -> list[str]:
        """Return those of the paths that the folder lacks."""
        return [need for need in needs if not (self._root / need).exists()]

    def timed_flows(self) -> TimedFlows:
        """Return the workload of ``fabric/maxmin``.

        It is written ``N L F``, L capacities (bytes/s), then per flow ``src dst start size
        num_links link...``; the ends are in the order of the flows.
        """
        folder = self._root / "fabric" / "maxmin"
        path = folder / f"workload_{_MAX_MIN}"
        with _told_of(path):
            words = _words(path)

            def take() -> str:
                return next(words, "")  # which is no number

            _, num_links, num_flows = (int(take()) for _ in range(3))
            capacity_bps = [8 * float(take()) for _ in range(num_links)]
            starts, sizes, path_start, channels = [], [], [0], []
            for _ in range(num_flows):
                take(), take()
                starts.append(float(take()))
                sizes.append(int(take()))
                channels += [int(take()) for _ in range(int(take()))]
                path_start.append(len(channels))
        path = folder / f"finish_s_{_MAX_MIN}"
        with _told_of(path):
            finish_s = [float(word) for word in _words(path)]
            if len(finish_s) != num_flows:
                raise ValueError(len(finish_s))
        return TimedFlows(
            np.array(capacity_bps),
            np.array(path_start),
            np.array(channels),
            np.array(starts),
            np.array(sizes),
            np.array(finish_s),
        )

    def packet_flows(self, name: str) -> list[PacketFlow]:
        """Return a workload of ``fabric/packet_level``."""
        path = self._root / "fabric" / "packet_level" / f"{name}.fct.csv"
        with _told_of(path):
            rows = csv.DictReader(text for _, text in read_lines(path))
            flows = [_packet_flow(row) for row in rows]
            _refuse_empty(flows)
            return flows

    def conversation_blocks(self) -> list[tuple[int, ...]]:
        """Return the block ids of every request of the Mooncake conversation trace."""
        path = self._root / "traces" / "mooncake" / "conversation_trace.jsonl.xz"
        with _told_of(path):
            blocks = [tuple(json.loads(text)["hash_ids"]) for _, text in read_lines(path)]
            _refuse_empty(blocks)
            return blocks

    def vllm_run(self, name: str, window: tuple[int, int] | None) -> list[LatencyFigure]:
        """Return the latencies of a run of ``serving``, simulated."""
        folder = self._root / FOLDERS[name]
        recorded = vllm_scenario(name)
        profile = folder if recorded.perf.kind == "profile" else None
        overrides = Overrides(trace=folder / "requests.jsonl", profile=profile)
        scenario = apply_overrides(recorded, overrides)
        run = simulate(resolve(scenario, folder=folder, name=name), None, window=window)
        comparison = run.comparisons[0 if window is None else 1]
        return [
            LatencyFigure(figure.name, figure.measured_ns, figure.simulated_ns)
            for figure in comparison.figures
            if figure.measured_ns is not None and figure.simulated_ns is not None
        ]


def vllm_scenario(name: str) -> Scenario:
    """Return the scenario of a recorded run, with the asynchronous scheduling of the engine."""
    scenario = parse_scenario(VLLM_SCENARIOS[name], name)
    workers = scenario.workers.model_copy(update={"async_scheduling": True})
    return scenario.model_copy(update={"workers": workers})


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """Name the file whose content is not what it should be.

    Raises:
        ConfigError: what was read in the block does not parse.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, csv.Error):
        raise ConfigError(
            "the content is not what this file of the reference data has",
            where=str(path),
            hint="Copy it again, or name a folder without it to skip what needs it",
        ) from None


def _refuse_empty(read: Sequence[object]) -> None:
    if not read:
        raise ValueError(read)


def _words(path: Path) -> Iterator[str]:
    for _, text in read_lines(path):
        yield from text.split()


def _packet_flow(row: dict[str, str]) -> PacketFlow:
    return PacketFlow(
        src=int(row["src"]),
        dst=int(row["dst"]),
        up=tuple(queue.split("(")[0] for queue in row["ecmp_queues"].split("|") if queue),
        start_ns=1e3 * float(row["start_us"]),
        num_bytes=int(row["bytes"]),
        fct_ns=1e3 * float(row["fct_us"]),
    )
