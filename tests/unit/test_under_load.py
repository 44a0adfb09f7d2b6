"""A plan does not depend on how busy the machine is: solver and search stop by gap and nodes, never by the clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from planc.candidates import compile_workload
from planc.onnx_loader import load_model
from planc.options import Options
from planc.parallel import default_jobs
from planc.pipeline import Workload
from planc.plan_json import to_json
from planc.profile import load_profile
from planc.training_graph import TrainingOptions
from planc.zoo import ZOO


@contextmanager
def busy_processors() -> Iterator[None]:
    """Two processes that never rest for every processor: whatever runs beside them gets a third of its time."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * default_jobs())]
    try:
        yield
        assert all(burner.poll() is None for burner in burners), "the machine was not busy"
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def test_a_busy_machine_makes_the_same_bytes() -> None:
    def text() -> str:
        graph = load_model(ZOO["densenet_like"](), batch=6)
        work = Workload.of(graph, TrainingOptions(), load_profile("cpu"))
        plan = compile_workload(work, Options(budget="50%"))
        assert plan.provenance.solver, "a plan that the solver had no part in shows nothing"
        return to_json(plan)

    quiet = text()
    with busy_processors():
        assert text() == quiet
