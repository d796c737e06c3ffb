"""Independent pieces of work on several cores, with the results in order as if done one by one."""

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from kvfabric.errors import KvfabricError

Result = TypeVar("Result")
Tell = Callable[[int], None]

_POLL_S = 0.1


class ReportTask(Protocol):
    """Called with the number of a task and how far it is."""

    def __call__(self, task: int, done: int) -> None:
        """Take in the progress of a task."""
        ...


def run_all(
    tasks: Sequence[Callable[[Tell], Result]], num_processes: int, report: ReportTask
) -> list[Result]:
    """Return the results of all tasks, in order.

    Args:
        tasks: called once each, with a function that takes their progress.
        num_processes: at most so many at once; 1 runs them here, one after the other.
        report: gets the progress of the tasks.

    Raises:
        KvfabricError: what a task raised; the others are stopped.
        RuntimeError: a process ended without an answer.
    """
    count = min(num_processes, len(tasks))
    if count <= 1 or not sys.platform.startswith("linux"):
        return [_run_here(index, task, report) for index, task in enumerate(tasks)]
    return _run_forked(tasks, count, report)


def _run_here(index: int, task: Callable[[Tell], Result], report: ReportTask) -> Result:
    return task(lambda done: report(index, done))


def _run_forked(
    tasks: Sequence[Callable[[Tell], Result]], count: int, report: ReportTask
) -> list[Result]:
    """Fork one process per task, ``count`` at a time: tasks are inherited, only results travel."""
    context = multiprocessing.get_context("fork")
    progress = context.Array("q", len(tasks), lock=False)
    results: dict[int, Result] = {}
    waiting = list(range(len(tasks)))
    running: dict[int, tuple[Any, Connection]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < count:
                index = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_work, args=(tasks[index], index, progress, sender), daemon=True
                )
                process.start()
                sender.close()
                running[index] = (process, receiver)
            multiprocessing.connection.wait([c for _, c in running.values()], _POLL_S)
            for index in list(running):
                report(index, progress[index])
                process, receiver = running[index]
                if receiver.poll():
                    results[index] = _receive(index, process, receiver)
                    del running[index]
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()
    return [results[index] for index in range(len(tasks))]


def _work(task: Callable[[Tell], Result], index: int, progress: Any, sender: Connection) -> None:
    def tell(done: int) -> None:
        progress[index] = done

    try:
        answer: tuple[bool, object] = (True, task(tell))
    except KvfabricError as error:
        answer = (False, error)
    sender.send(answer)
    sender.close()


def _receive(index: int, process: Any, receiver: Connection) -> Any:
    try:
        is_result, answer = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"the process of task {index} ended with code {process.exitcode}"
        ) from None
    process.join()
    if not is_result:
        raise answer
    return answer
