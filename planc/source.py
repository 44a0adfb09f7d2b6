"""Source: a model file and how it is to be trained, as plain data: everything but batch, device and budget.

It can be handed to another process, which a Workload cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from planc.graph import Graph
from planc.onnx_loader import load_model
from planc.options import DEFAULT_PROFILE, Options
from planc.pipeline import Workload
from planc.profile import load_profile
from planc.training_graph import TrainingOptions


@dataclass(frozen=True, slots=True)
class Source:
    """A model file, and what `planc compile` is told of its training.

    dims: sizes of open dimensions other than the batch. settings: of the optimizer, as decimal text.
    batch_norm: "exact", "per-sub-batch" or "frozen".
    """

    model: Path
    dims: tuple[tuple[str, int], ...] = ()
    loss: tuple[str, ...] = ()
    optimizer: str = "momentum"
    settings: tuple[tuple[str, str], ...] = ()
    precision: str = "fp32"
    dropout: bool = True
    batch_norm: str = "exact"

    @property
    def training(self) -> TrainingOptions:
        """What is trained and how."""
        return TrainingOptions(self.loss, self.optimizer, MappingProxyType(dict(self.settings)), self.dropout)

    def graph(self, batch: int | None = None) -> Graph:
        """The forward model at a batch; None = the file's own."""
        return load_model(
            self.model, batch=batch, dims=dict(self.dims), precision=self.precision, batch_norm=self.batch_norm
        )

    def workload(self, batch: int | None = None, profile: str = DEFAULT_PROFILE) -> Workload:
        """The model at a batch, as it is trained on a device."""
        return Workload.of(self.graph(batch), self.training, load_profile(profile))

    def options(self, **others: Any) -> Options:
        """Options of a compilation; `others` are the fields of Options that say nothing of the model."""
        return Options(training=self.training, precision=self.precision, batch_norm=self.batch_norm, **others)
