"""What any plan needs: a proven lower bound of the arena, and the node that sets it."""

from __future__ import annotations

from dataclasses import dataclass

from planc.ops import LAUNCHES
from planc.ops.spec import PERSISTENT, VISITORS, BatchRule, TensorKind
from planc.training_graph import Launch, TrainingGraph


@dataclass(frozen=True, slots=True)
class LowerBound:
    """No plan's arena is smaller than `bytes`; `label` names the node whose arguments set it, `op` its launch.

    `persistent_bytes`: of that the persistent tensors that stay there beside the node.
    """

    bytes: int
    persistent_bytes: int
    label: str
    op: str


def lower_bound(graph: TrainingGraph, samples: int = 1, *, resident: bool = False) -> LowerBound:
    """Persistent tensors that stay, plus the largest working set of any launch at one sample without workspace.

    Proof: running statistics and constants never leave the arena, nor do parameters and optimizer state where these
    are to be `resident`; a launch finds all its arguments in the arena at once; its range
    has at least one sample, and a whole-batch launch has them all; an output shares an input's bytes only where the
    launch may work in place. capabilities.modnn_bound is moDNN's.

    Args:
        samples: of the largest range; the bound then speaks of the plans whose largest range has that many.
    """
    staying = PERSISTENT if resident else PERSISTENT - VISITORS
    persistent = sum(t.spec.bytes for t in graph.tensors if t.kind in staying and t.root == t.index)
    sets = [working_set(graph, launch, samples, staying) for launch in graph.launches]
    largest = graph.launches[sets.index(max(sets))]
    return LowerBound(persistent + max(sets), persistent, largest.label, largest.op)


def working_set(graph: TrainingGraph, launch: Launch, samples: int, staying: frozenset[TensorKind] = PERSISTENT) -> int:
    """Bytes of the arguments of `launch` on that many samples, those that are `staying` and workspace left out.

    An output that may take an input's place counts once.
    """
    samples = graph.batch if launch.rule is BatchRule.WHOLE else samples

    def size(tensor: int) -> int:
        root = graph.tensors[graph.root(tensor)]
        if root.kind in staying:
            return 0
        if graph.spec(tensor).rows and root.spec.rows:
            return root.spec.range_bytes(samples)
        return root.spec.bytes

    roots = {graph.root(t): size(t) for t in (*launch.inputs, *launch.outputs)}
    total = sum(roots.values())
    inputs = {graph.root(t) for t in launch.inputs}
    shared = set[int]()
    for i, j in LAUNCHES[launch.op].inplace:
        if i < len(launch.inputs) and j < len(launch.outputs):
            source, target = graph.root(launch.inputs[i]), graph.root(launch.outputs[j])
            if source != target and target not in inputs and not {source, target} & shared:
                total -= min(roots[source], roots[target])
                shared |= {source, target}
    return total
