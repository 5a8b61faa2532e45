r"""
Weights of a mixture by the predictive densities of its components.

References

- `Using Stacking to Average Bayesian Predictive Distributions`, Y. Yao, A. Vehtari, D. Simpson,
  A. Gelman, Bayesian Analysis 13, 2018. Equation 4 with the logarithmic score.
"""

from __future__ import annotations

from torch import Tensor

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
    """
    log_densities = log_densities.double()
    densities = (log_densities - log_densities.amax(-1, keepdim=True)).exp()
    count = densities.shape[-1]
    weights = densities.new_full((count,), 1.0 / count)
    for _ in range(num_steps):
        gain = (densities / (densities @ weights)[:, None]).mean(0)
        weights = weights * gain
        if float(gain.max()) <= 1 + tolerance:
            break
    return weights / weights.sum()
