"""The thread of a control loop, whose failure is not lost."""

import threading

from kvfabric.engine.control_loop import ControlLoop


class LoopThread:
    """Runs a control loop beside its clients."""

    def __init__(self, loop: ControlLoop) -> None:
        """Make the thread; ``start`` starts it."""
        self._loop = loop
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self.start = self._thread.start

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # noqa: BLE001 - raised again by ``end``
            self._error = error

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
