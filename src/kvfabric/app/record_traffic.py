"""``kvfabric serve --record``: step times of what was served into a file for ``simulate``."""

from datetime import UTC, datetime
from pathlib import Path

from kvfabric.app.output import write_text
from kvfabric.app.step_times_file import step_times_json
from kvfabric.engine.cluster_settings import ClusterSettings
from kvfabric.engine.traffic_log import TrafficLog, step_times_of
from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind


class TrafficRecorder:
    """Keeps what a server runs, and writes what its steps took.

    Attributes:
        log: for the cluster.
    """

    def __init__(self, path: Path) -> None:
        """Make sure that the file can be written, before anything is served.

        Raises:
            ConfigError: it cannot.
        """
        self._path, self.log = path, TrafficLog()
        is_new = not path.exists()
        try:
            path.open("ab").close()
            if is_new:
                path.unlink()
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror}",
                where="--record",
                hint="Name another file",
            ) from None

    def write(self, settings: ClusterSettings, what: str) -> str:
        """Write the file, and return what became of it."""
        workers = f"{settings.num_prefill} + {settings.num_decode} workers"
        text = f"kvfabric serve --record: {what}, {workers}, {len(self.log.steps):,} steps"
        source = Source(SourceKind.MEASURED, text, datetime.now(UTC).date().isoformat())
        try:
            times = step_times_of(self.log, settings, source)
            write_text(self._path, step_times_json(times), where="--record")
        except ConfigError as error:
            return f"no step times were written: {error.what}"
        return f"step times of {len(self.log.steps):,} steps are in {self._path}"
