"""How much of an iteration's progress is left when its gradients are coded."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

UNPAID = 0.1
"""Part of the noise that costs progress where feedback repays it and the optimizer is linear in its gradients.

Noise that feedback repays adds up to nothing over iterations, so what it costs such an optimizer is delay. Fitted to
``experiments/results/stability-digits-cnn.json``: see docs/controllers.md, goodput."""


def log_efficiency(noise: FloatArray, update_exponent: FloatArray, unpaid: FloatArray) -> FloatArray:
    """ln of the progress of an iteration with quantization noise, relative to one without; arrays that broadcast.

    With ν = noise / ‖ḡ‖², between two optimizers by their update exponent x (:mod:`mqgrad.hook.update_probe`):

    - x = 1, steps that are linear in the gradient (SGD with momentum): 1/(1 + ν), the efficiency of McCandlish et al.
      2018, whose S/(S + V/W + q) this is but for a factor that no width changes. Of noise that feedback repays, a
      part counts: 1/(1 + :data:`UNPAID` · ν).
    - x = 0, steps whose size does not depend on the gradient's (Adam): 1/√(1 + ν). Adam divides by the root of the
      second moment, to which noise adds, so that its step along the gradient is shorter by as much; feedback repays
      the noise, but not that.

    Args:
        noise: ν, expected squared error of the mean gradient relative to its squared norm.
        update_exponent: x; the result is the geometric mean with weights x and 1 − x.
        unpaid: the part that counts in the first form; 1 without feedback.
    """
    linear, normalized = np.log1p(unpaid * noise), np.log1p(noise) / 2
    return -(update_exponent * linear + (1 - update_exponent) * normalized)
