r"""
Weights of a mixture by the predictive densities of its components.

References

- `Using Stacking to Average Bayesian Predictive Distributions`, Y. Yao, A. Vehtari, D. Simpson,
  A. Gelman, Bayesian Analysis 13, 2018. Equation 4 with the logarithmic score.
"""

from __future__ import annotations

from torch import Tensor

from pyro_implicit._warn import warn
from pyro_implicit.exceptions import NonFiniteError

__all__ = ["stacking_weights"]


def stacking_weights(
    log_densities: Tensor, num_steps: int = 10_000, tolerance: float = 1e-8
) -> Tensor:
    r"""
    Maximises :math:`\sum_i \log \sum_k w_k\, p_k(y_i)` over the simplex.

    By expectation-maximisation from equal weights: each step raises the concave objective. It ends
    when the gain that is still possible, :math:`\max_k \sum_i p_k(y_i) / p(y_i) - n`, is small.

    :param torch.Tensor log_densities: of ``n`` data under ``K`` components, shape ``(n, K)``.
    :param int num_steps: most steps.
    :param float tolerance: nats per datum that may be left to gain.
    :returns: weights in float64, shape ``(K,)``, which sum to one.
    :raises NonFiniteError: for NaN and plus infinity, and if no datum has a density above 0. Some
        data with a density of 0 under all components are left out, with a warning.
    """
    log_densities = _of_data_that_rank(log_densities.double())
    densities = (log_densities - log_densities.amax(-1, keepdim=True)).exp()
    count = densities.shape[-1]
    weights = densities.new_full((count,), 1.0 / count)
    for _ in range(num_steps):
        # theory/after.md (stacking-step, stacking-gap)
        gain = (densities / (densities @ weights)[:, None]).mean(0)
        weights = weights * gain
        if float(gain.max()) <= 1 + tolerance:
            break
    return weights / weights.sum()


def _of_data_that_rank(log_densities: Tensor) -> Tensor:
    """The rows of data that are possible under a component at least, shape ``(n', K)``."""
    bad = log_densities.isnan() | log_densities.isposinf()
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise NonFiniteError(
            f"the log-densities of {int(bad.any(-1).sum())} of {len(bad)} data are NaN or infinite "
            f"(the first: datum {row} under component {column}), so there are no weights. Look "
            "for NaN in the data and in the draws of that component, and leave out what has it."
        )
    possible = ~log_densities.isneginf().all(-1)
    left = int((~possible).sum())
    if left == len(possible):
        raise NonFiniteError(
            f"all {left} data have a density of 0 under every component, so none is better than "
            "another. Judge by data that they allow for, or give the weights as numbers."
        )
    if left:
        warn(
            f"{left} of {len(possible)} data have a density of 0 under every component. They rank "
            "none, and are left out of the stacking: the mixture does not allow for them."
        )
    return log_densities[possible]
