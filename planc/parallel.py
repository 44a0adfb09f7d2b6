"""Parallel: one function on many calls, in processes of their own; the results in the order of the calls."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from planc.errors import RunError

Call = TypeVar("Call")
Result = TypeVar("Result")
Report = Callable[[int, int], None]
"""Told how many calls are done, of how many."""


def default_jobs() -> int:
    """One process for each processor that this one may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    function: Callable[[Call], Result], calls: Sequence[Call], jobs: int, report: Report | None = None
) -> list[Result]:
    """`function` of every call.

    Args:
        function: of a module's top level; it and the calls are sent to processes that are started afresh (spawn), so
            that neither threads nor open files of this one matter.
        jobs: how many processes; with 1 everything happens in this one.

    Raises:
        RunError: a process died. Whatever `function` raises is raised here, and calls not begun are given up.
    """
    if min(jobs, len(calls)) <= 1:
        results = []
        for done, call in enumerate(calls, start=1):
            results.append(function(call))
            if report is not None:
                report(done, len(calls))
        return results
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(calls)), context, _leave_interrupts_to_the_shell) as pool:
        futures: list[Future[Result]] = [pool.submit(function, call) for call in calls]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                if report is not None:
                    report(done, len(calls))
        except BrokenProcessPool as error:
            raise RunError("a worker process died; perhaps memory ran out.", "Use --jobs 1.") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _leave_interrupts_to_the_shell() -> None:
    """Ctrl-C goes to every process of the group: a worker then ends without a traceback of its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
