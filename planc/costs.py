"""Tasks x Profile -> CostTable: how long each task and copy takes, and what a convolution call can choose from.

Durations in a plan are integers and on the safe side: rounded up. Sources of the models: costs.md's three kinds of
knowledge; a profile says which of them it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from planc.conv_algorithms import FAMILIES, Algorithm, ConvCall, conv_call
from planc.errors import ProfileError
from planc.graph import TensorSpec
from planc.micro_batch import MICRO_BATCH_SIZES, Configuration, SingleLaunch, pareto_configurations
from planc.ops import LAUNCHES
from planc.profile import Profile
from planc.tasks import Task, TaskList
from planc.training_graph import Launch

CALLS: Mapping[str, str] = {
    "Conv": "forward",
    "ConvBackwardData": "backward-data",
    "ConvBackwardFilter": "backward-filter",
}
_NS = 10**9


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs of a task list on a device.

    `durations`: ns of each task, for convolution calls those of the fastest configuration.
    `configurations`: for each task its Pareto-optimal configurations, fastest first; empty unless a convolution call.
    """

    durations: tuple[int, ...]
    configurations: tuple[tuple[Configuration, ...], ...]
    profile: Profile

    def duration_ns(self, task: int, configuration: Configuration | None) -> int:
        """How long `task` takes with that configuration."""
        return self.durations[task] if configuration is None else configuration.duration_ns

    def d2h_ns(self, size_bytes: int) -> int:
        """How long a copy out takes, latency included."""
        return self.profile.copy_latency_ns + -(-size_bytes * _NS // self.profile.d2h_duplex_bytes_per_s)

    def h2d_ns(self, size_bytes: int) -> int:
        """How long a copy in takes, latency included."""
        return self.profile.copy_latency_ns + -(-size_bytes * _NS // self.profile.h2d_duplex_bytes_per_s)


def make_costs(tasks: TaskList, profile: Profile, micro_batches: str = "undivided") -> CostTable:
    """What every task of `tasks` costs on `profile`'s device.

    `micro_batches`: which micro-batch sizes a convolution call may be cut into, a key of micro_batch.MICRO_BATCH_SIZES.

    Raises:
        ProfileError: the device has no speed for a type of the model, or no algorithm for a convolution of it.
    """
    known: dict[tuple[int, int], tuple[int, tuple[Configuration, ...]]] = {}
    calls: dict[ConvCall, tuple[Configuration, ...]] = {}
    durations, configurations = [], []
    for task in tasks.tasks:
        key = (task.launch, task.samples)
        if key not in known:
            known[key] = _cost(tasks, task, profile, calls, micro_batches)
        durations.append(known[key][0])
        configurations.append(known[key][1])
    return CostTable(tuple(durations), tuple(configurations), profile)


def _cost(
    tasks: TaskList,
    task: Task,
    profile: Profile,
    calls: dict[ConvCall, tuple[Configuration, ...]],
    micro_batches: str,
) -> tuple[int, tuple[Configuration, ...]]:
    launch = tasks.launch(task)
    reads = tuple(_seen(tasks, tensor, task.samples) for tensor in launch.inputs)
    writes = tuple(_seen(tasks, tensor, task.samples) for tensor in launch.outputs)
    if launch.op in CALLS:
        call = conv_call(launch.op, launch.attrs, reads, writes)
        if call not in calls:
            calls[call] = convolution_options(call, profile, launch.label, micro_batches)
        return calls[call][0].duration_ns, calls[call]
    return _roofline_ns(launch, reads, writes, profile), ()


def _seen(tasks: TaskList, tensor: int, samples: int) -> TensorSpec:
    spec = tasks.graph.spec(tensor)
    return TensorSpec(spec.range_shape(samples), spec.dtype, spec.rows)


def _roofline_ns(
    launch: Launch, reads: tuple[TensorSpec, ...], writes: tuple[TensorSpec, ...], profile: Profile
) -> int:
    """Launch overhead plus the slower of computing and streaming (Williams, Waterman, Patterson, CACM 2009)."""
    spec = LAUNCHES[launch.op]
    streamed = spec.passes * sum(t.bytes for t in reads) + sum(t.bytes for t in writes)
    streaming_ns = streamed * _NS / (profile.memory_bandwidth_bytes_per_s * profile.elementwise_efficiency)
    efficiency = profile.matrix_efficiency if spec.matrix else profile.elementwise_efficiency
    dtype = next((t.dtype for t in (*writes, *reads) if t.dtype in profile.peak_flops), "float32")
    computing_ns = spec.flops(launch.attrs, reads, writes) * _NS / (peak_flops(profile, dtype) * efficiency)
    return profile.launch_ns + ceil(max(streaming_ns, computing_ns))


def peak_flops(profile: Profile, dtype: str) -> int:
    """Operations a second of the device for `dtype`."""
    if dtype not in profile.peak_flops:
        known = ", ".join(profile.peak_flops)
        raise ProfileError(
            f"profile {profile.name!r}: no peak_flops for {dtype}; it has {known}.", "Use --precision fp32."
        )
    return profile.peak_flops[dtype]


def convolution_options(
    call: ConvCall, profile: Profile, label: str, micro_batches: str = "undivided"
) -> tuple[Configuration, ...]:
    """Pareto-optimal configurations of `call`, fastest first; the last one has the smallest workspace.

    `micro_batches`: which micro-batch sizes are tried, a key of micro_batch.MICRO_BATCH_SIZES.
    """

    def launches(samples: int) -> list[SingleLaunch]:
        return list(_single_launches(call.with_samples(samples), profile))

    found = pareto_configurations(call.n, MICRO_BATCH_SIZES[micro_batches](call.n), launches)
    if not found:
        raise ProfileError(
            f"profile {profile.name!r}: no {call.call} algorithm for the convolution {label!r}.",
            "Add one without workspace to the profile.",
        )
    return found


def _single_launches(call: ConvCall, profile: Profile) -> Iterator[SingleLaunch]:
    for name, algorithm in FAMILIES[profile.backend].items():
        if call.call in profile.algorithms.get(name, {}) and algorithm.supports(call):
            yield SingleLaunch(name, convolution_ns(call, name, algorithm, profile), algorithm.workspace_bytes(call))


def convolution_ns(call: ConvCall, name: str, algorithm: Algorithm, profile: Profile) -> int:
    """Predicted time of one launch: padded operations and traffic at the algorithm's own efficiencies, and an overhead
    for every round of its loops."""
    known = profile.algorithms[name][call.call]
    dtype = {4: "float32", 8: "float64", 2: "float16"}[call.item_bytes]
    computing = algorithm.padded_flops(call) * _NS / (known.efficiency * peak_flops(profile, dtype))
    streaming = algorithm.bytes(call) * _NS / (known.bandwidth * profile.memory_bandwidth_bytes_per_s)
    return ceil(computing + streaming) + known.overhead_ns * algorithm.rounds(call) + profile.launch_ns
