r"""
An implicit posterior of each row's parameters.

References

- `Bayesian Neural Network Inference via Implicit Models and the Posterior Predictive
  Distribution`, J. J. Dabrowski, D. E. Pagendam, 2022. Fig. 1b, Eq. 1b, appendix D.
"""

from __future__ import annotations

from typing import Any

from pyro_implicit.generators.as_generator import as_generator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.conditional_autoregressive import ConditionalAutoregressiveGenerator
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.guides.latent_site import LatentSite

__all__ = ["ConditionalHyperNetworkGuide"]

#: Latents of a row up to which the default generator is autoregressive, where one of the row's
#: sites is a matrix (as in networks of each row): it costs little beside the model there.
_MAX_FLOW_LATENTS_WITH_MATRIX = 32
#: The same limit where no site is a matrix: with 50 latents a step of the linearised entropy takes
#: a 34th of the time that it takes with a perceptron. Networks of each row have the predictive
#: loss instead, whose step takes ten times as long.
_MAX_FLOW_LATENTS = 256
_FLOW_INIT_SCALE = 0.5  # as in pyro_implicit.guides.hypernetwork, which tells why


class ConditionalHyperNetworkGuide(ConditionalGuide, HyperNetworkGuide):
    r"""
    An implicit posterior for each row of the data, :math:`q(\theta_n \mid x_n)`.

    Each row has parameters of its own, made by one network from noise and the row's context
    (Dabrowski and Pagendam 2022, Fig. 1b).

    Example::

        num_data = len(x)
        net = BayesianModule(nn.Linear(1, 1), prior=dist.Normal(0.0, 1.0), local=True)

        def model(x, y=None):
            with pyro.plate("data", num_data, subsample_size=len(x)):
                f = net(x).squeeze(-1)
                return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

        guide = ConditionalHyperNetworkGuide(model)
        objective = PosteriorPredictiveLoss(num_particles=10, vectorize_particles=True)
        fit(model, guide, x, y, objective=objective, seed=0)
        predict(model, guide, x_test, num_samples=100)

    With :class:`~pyro_implicit.PosteriorPredictiveLoss` this lets a simple network follow what no
    single one of its parameters could; with an objective that has an entropy it is an amortised
    posterior of local latents.

    **Up to 256 latents of a row**, or 32 where one of them is a matrix (weights of a network of
    each row), it is a :class:`~pyro_implicit.generators.ConditionalAutoregressiveGenerator`: at
    each context a map that cannot fold, with the determinant at hand.
    :class:`~pyro_implicit.LinearisedELBO` is then a lower bound on the evidence of every row
    (``is_bound_for`` tells), and the density is known, so that
    :class:`~pyro_implicit.objectives.IWAE` and Pyro's own objectives take the guide too.
    **Above**, with ``noise_dim``, ``hidden_dims``, ``activation``, output noise or shared noise, it
    is a perceptron of noise and context, which may fold. See :doc:`/results/local_latents`.

    The size of the plate must not depend on the minibatch (give the
    number of all data, as above, or ``create_plates``): the entropy of the rows is scaled with it.

    A saved guide can be drawn from without the model; a ``context`` of one's own is not stored.

    Source: `Bayesian Neural Network Inference via Implicit Models and the Posterior Predictive
    Distribution`, Dabrowski and Pagendam, 2022.

    :param model: a Pyro model all of whose latents are in one plate, that of the rows. Give its
        global latents another guide, in an ``AutoGuideList``.
    :param context: a function of the model's arguments that returns what each row is conditioned
        on, a tensor with one row per datum (more dimensions are flattened); an ``nn.Module`` is
        trained with the guide. By default the model's first argument. A generator made by default
        reads it in units of the rows that the guide is built with; for others scale it to about
        unit size.
    :param bool shared_noise: whether one draw uses one noise for all rows, so that it is a curve (a
        coherent function of the context), as in the figures of Dabrowski and Pagendam 2022. Rows
        are then dependent, and objectives with an entropy refuse.
    :param int noise_dim: noise dimensions of a perceptron.
    :param hidden_dims: widths of its hidden layers.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param generator: a generator of one's own: a module (or a callable that makes one from the
        number of outputs) from noise and context, side by side, to all latents of one row. Then
        ``noise_dim`` is needed, unless it is a :class:`~pyro_implicit.generators.Generator`.
    :param float init_scale: standard deviation of the first draws in the unconstrained space, over
        noise and a context of unit size; see :class:`~pyro_implicit.HyperNetworkGuide`.
    :param options: ``init_loc_fn``, ``scale``, ``learn_scale``, ``factorized`` and
        ``create_plates``, see :class:`~pyro_implicit.guides.ImplicitGuide`. The output noise (0.01
        by default where there is less noise than latents) serves the entropy: write ``scale=0.0``
        for the predictive loss.
    :raises ArgumentError: for bad values.
    """

    def _make_sampler(self, sites: list[LatentSite], start: Any) -> Any:
        sampler = super()._make_sampler(sites, start)
        if sampler.fixed_scale == 0 and self._scale is None:  # full rank only beside the context
            own = sampler.generator
            if own.noise_dim - (self._context_dim or 0) < own.output_dim:
                sampler.fixed_scale = 0.01
        return sampler

    def _own_generator(self, output_dim: int) -> Generator | None:
        option, inputs = self._generator[0], None
        if self._noise_dim is not None:
            inputs = self._noise_dim + (self._context_dim or 0)
        return None if option is None else as_generator(option, output_dim, inputs)

    def _is_free(self) -> bool:
        return False  # the context needs inputs beside the noise

    def _make_generator(
        self, output_dim: int, sites: list[LatentSite], preconditioned: bool
    ) -> Generator:
        is_asked = self._generator[0] is not None or not super()._is_free()
        has_matrix = any(site.event_dim > 1 for site in sites)
        most = _MAX_FLOW_LATENTS_WITH_MATRIX if has_matrix else _MAX_FLOW_LATENTS
        if is_asked or self.shared_noise or self._context_dim is None or output_dim > most:
            return super()._make_generator(output_dim, sites, preconditioned)
        init_scale = self._init_scale or _FLOW_INIT_SCALE
        generator = ConditionalAutoregressiveGenerator(
            output_dim, self._context_dim, init_scale=init_scale
        )
        if self._first_context is not None:
            generator.standardise(self._first_context)
        return generator

    def _num_inputs(self, output_dim: int) -> int:
        return super()._num_inputs(output_dim) + (self._context_dim or 0)
