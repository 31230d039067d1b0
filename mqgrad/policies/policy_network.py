"""The network of a frozen policy: a normalised observation through a multilayer perceptron."""

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

MAX_LAYERS = 16
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}

Layer = tuple[torch.Tensor, torch.Tensor]
"""weight float32 [out, in], bias float32 [out]"""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Normalization:
    """What SB3's ``VecNormalize`` does to an observation: clip((x − mean) / std, ±clip), in float64."""

    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    """sqrt(variance + epsilon)."""
    clip: float

    def __call__(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        scaled = (observation - self.mean) / self.std
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

    def check(self, size: int) -> None:
        """Raise ``ValueError`` unless this normalises observations of ``size`` entries."""
        for name, array in (("mean", self.mean), ("std", self.std)):
            if array.dtype != np.float64 or array.shape != (size,) or not np.isfinite(array).all():
                raise ValueError(
                    f"normalization {name} must be {size} finite float64 numbers, one per observation entry"
                )
        if (self.std <= 0).any():
            raise ValueError("normalization std must be positive")
        check_number("normalization clip", self.clip)


def network_outputs(layers: list[Layer], activation: str, x: torch.Tensor) -> torch.Tensor:
    """Outputs for a batch, float32 [N, in] -> [N, out], with the activation between layers."""
    for weight, bias in layers[:-1]:
        x = ACTIVATIONS[activation](torch.nn.functional.linear(x, weight, bias))
    return torch.nn.functional.linear(x, *layers[-1])


def check_layers(layers: list[Layer], inputs: int, outputs: int) -> None:
    """Raise ``ValueError``, naming the layer, unless the layers lead from ``inputs`` numbers to ``outputs``."""
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise ValueError(f"the network has {len(layers)} layers and must have from 1 to {MAX_LAYERS}")
    for i, layer in enumerate(layers):
        _check_layer(i, layer, inputs)
        inputs = layer[0].shape[0]
    if inputs != outputs:
        raise ValueError(f"the network has {inputs} outputs, and its action mode and widths need {outputs}")


def _check_layer(i: int, layer: Layer, inputs: int) -> None:
    weight, bias = layer
    if weight.dtype != torch.float32 or bias.dtype != torch.float32:
        raise ValueError(f"layer {i} is {weight.dtype} and {bias.dtype}, and must be float32")
    if weight.ndim != 2 or weight.shape[1] != inputs or bias.shape != weight.shape[:1]:
        shapes = f"weight {list(weight.shape)} and bias {list(bias.shape)}"
        raise ValueError(f"layer {i} has {shapes}, which does not take the {inputs} numbers that reach it")
    if not (weight.isfinite().all() and bias.isfinite().all()):
        raise ValueError(f"layer {i} holds numbers that are not finite")


def check_number(name: str, value: object) -> None:
    """Raise ``ValueError``, naming the field and the value, unless it is a positive number, at most 1e12."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e12:
        raise ValueError(f"{name} {value!r} must be a positive number, at most 1e12")
