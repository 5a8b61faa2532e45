r"""
The explicit counterpart of the conditional implicit guide.

References

- `Bayesian Neural Network Inference via Implicit Models and the Posterior Predictive
  Distribution`, J. J. Dabrowski, D. E. Pagendam, 2022. Section 2.3, table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyro_implicit.distributions.mixture_density import MixtureDensityNetwork
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.initialization.gaussian_start import GaussianStart
from pyro_implicit.guides.latent_site import LatentSite

__all__ = ["MixtureDensityGuide"]


class MixtureDensityGuide(ConditionalGuide):
    r"""
    An explicit posterior for each row of the data: a mixture that a network makes.

    :math:`q(\theta_n \mid x_n)` is a mixture of diagonal Gaussians whose locations, scales and
    weights come from the row's context (Dabrowski and Pagendam 2022, section 2.3; one component
    there).

    :class:`~pyro_implicit.PosteriorPredictiveLoss` trains it. It has a density, so that
    ``Trace_ELBO`` does, too, with one component: its draws are reparameterised, and
    :class:`~pyro_implicit.AlphaEnergy` serves as well. **With more, ``Trace_ELBO`` goes by the
    scores of the draws, and hardly gets anywhere** (on three conjugate rows and their mean it was 2
    to 6 nats off after 600 to 2500 steps, where one component is at its best after 600). In the
    predictive loss gradients of the weights go by the score of the component: within the logarithm
    of a mean over draws they are those of many draws, and of few too small by a share of the order
    of one over their number. The other objectives of this package have nothing to estimate and say
    so.

    Example::

        num_data = len(x)
        net = BayesianModule(nn.Linear(1, 1), prior=dist.Normal(0.0, 1.0), local=True)

        def model(x, y=None):  # each row has weights of its own
            with pyro.plate("data", num_data, subsample_size=len(x)):
                f = net(x).squeeze(-1)
                return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

        guide = MixtureDensityGuide(model, num_components=2)
        fit(model, guide, x, y, objective=PosteriorPredictiveLoss(10), seed=0)
        guide.sample(100, x_test)                          # draws for each row

    Source: `Bayesian Neural Network Inference via Implicit Models and the Posterior Predictive
    Distribution`, Dabrowski and Pagendam, 2022.

    :param model: a Pyro model all of whose latents are in one plate, that of the rows.
    :param int num_components: components of the mixture over all latents of a row (of a part, if
        factorised).
    :param context: see :class:`~pyro_implicit.ConditionalHyperNetworkGuide`.
    :param hidden_dims: widths of the hidden layers.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param float init_scale: standard deviation of the first draws in the unconstrained space.
    :param options: ``init_loc_fn``, ``factorized`` and ``create_plates``, see
        :class:`~pyro_implicit.guides.ImplicitGuide`.
    :raises ArgumentError: for bad values, or options of an implicit guide.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        num_components: int = 1,
        context: Callable[..., Any] | None = None,
        hidden_dims: Sequence[int] = (16,),
        activation: str = "relu",
        init_scale: float = 0.1,
        **options: Any,
    ) -> None:
        wrong = sorted(options.keys() & {"scale", "learn_scale", "shared_noise", "generator"})
        if wrong:
            raise ArgumentError(
                f"MixtureDensityGuide got {', '.join(wrong)}, which only an implicit guide has. "
                "Use ConditionalHyperNetworkGuide, or leave them out."
            )
        probe = MixtureDensityNetwork(  # so that bad values are told here
            1,
            torch.zeros(2),
            num_components,
            hidden_dims,
            activation=activation,
            init_scale=init_scale,
        )
        super().__init__(model, context=context, **options)
        self._network_options: dict[str, Any] = {
            "num_components": probe.num_components,
            "hidden_dims": probe.hidden_dims,
            "activation": activation,
            "init_scale": probe.init_scale,
        }

    @property
    def is_bijective(self) -> bool:
        """False: several noises lead to one draw. The density is known all the same."""
        return False

    @property
    def has_density(self) -> bool:
        """True: objectives that are bounds where a density is known are bounds of this guide."""
        return True

    @property
    def is_bijective_given_context(self) -> bool:
        """See :attr:`is_bijective`."""
        return False

    def _make_sampler(self, sites: list[LatentSite], start: GaussianStart) -> Any:
        return MixtureDensityNetwork(self._context_dim or 0, start.loc, **self._network_options)

    def _sampler_state(self, sampler: Any) -> dict[str, Any]:
        dtype = str(sampler.loc.dtype).removeprefix("torch.")
        return {**sampler.config(), "output_dim": sampler.output_dim, "dtype": dtype}

    def _sampler_from_state(self, state: dict[str, Any]) -> MixtureDensityNetwork:
        options = {name: state[name] for name in state.keys() - {"output_dim", "dtype"}}
        loc = torch.zeros(state["output_dim"], dtype=getattr(torch, state["dtype"]))
        return MixtureDensityNetwork(loc=loc, **options)
