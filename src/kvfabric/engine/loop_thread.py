"""The thread of a control loop, whose failure is not lost."""

import threading
from collections.abc import Callable

from kvfabric.engine.control_loop import ControlLoop


class LoopThread:
    """Runs a control loop beside its clients."""

    def __init__(
        self, loop: ControlLoop, on_error: Callable[[BaseException], None] | None = None
    ) -> None:
        """Make the thread; ``start`` starts it.

        Args:
            loop: is run.
            on_error: called by the thread, once, with what ended the loop if not ``end``: nothing
                more will come of any request.
        """
        self._loop, self._on_error = loop, on_error
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self.start = self._thread.start

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # noqa: BLE001 - raised again by ``end``
            self._error = error
            if self._on_error is not None:
                self._on_error(error)

    @property
    def is_alive(self) -> bool:
        """Return whether the loop runs."""
        return self._error is None and self._thread.is_alive()

    def end(self) -> None:
        """Close the loop and wait for its end.

        Raises:
            BaseException: it had ended by one.
        """
        self._loop.close()
        self._thread.join()
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """Raise what ended the loop, if anything did."""
        if self._error is not None:
            raise self._error
