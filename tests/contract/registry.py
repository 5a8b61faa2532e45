"""
What the contract suite runs over. **A new guide or a new objective is one line in a list here.**

Every guide meets every objective and every model. A model is a :class:`Case`: a plain Pyro model
with its data, small enough that hundreds of tests stay fast. Guides that draw inside of the data's
plate, a distribution for each row, are in a list of their own, with models all of whose latents
are there: on these, weights, masks and sizes of plates show.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

from pyro_implicit import (
    AdversarialELBO,
    AlphaEnergy,
    CMMNNGuide,
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    ImplicitDistribution,
    ImplicitELBO,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    MMNNGuide,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
    SingularValueELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import GuideError, SiteError
from pyro_implicit.generators import MLPGenerator, ResidualGenerator
from pyro_implicit.guides import ImplicitGuide
from pyro_implicit.objectives import AISIVI, IWAE, KPG, KSIVI, UIVI, AmortisedSVGD
from pyro_implicit.testing import MODELS as MODELS
from pyro_implicit.testing import ROWS, Case


class Rows:
    """
    A model with all latents in the plate of the data; of its two observed sites one has a scale and
    a mask of its own.

    :param dtype: of the data; unused.
    :param bool positive: whether the latent is.
    :param int size: number of all rows.
    :param int shown: number of rows that the model chooses from those it gets; all by default.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        *,
        positive: bool = False,
        size: int = ROWS,
        shown: int | None = None,
    ) -> None:
        self.positive, self.size, self.shown = positive, size, shown

    def plate(self, x: Tensor, y: Any = None, idx: Tensor | None = None) -> Any:
        shown = self.shown or len(x)
        return pyro.plate("data", self.size, subsample_size=shown, subsample=idx, dim=-1)

    def __call__(self, x: Tensor, y: Any = None, idx: Tensor | None = None) -> Tensor:
        law = dist.LogNormal if self.positive else dist.Normal
        with self.plate(x, y, idx) as rows:
            if self.shown is not None:
                x, y = x[rows], y[rows]
            level = pyro.sample("level", law(x.new_tensor([0.0, 0.5]), 1.0).to_event(1))
            f = level[..., 0] + level[..., 1] * x[:, 0]
            with poutine.scale(scale=0.5), poutine.mask(mask=x[:, 0] > -0.5):
                pyro.sample("also", dist.StudentT(4.0, f, 1.0), obs=x[:, 1])
            return pyro.sample("y", dist.Normal(f, 0.3), obs=y)


class HandWritten(nn.Module):
    """
    A guide of one's own for :class:`Rows`: ``sample_implicit`` inside of the plate of the data.

    :param Rows model: its model.
    :param float scale: of the output noise.
    """

    def __init__(self, model: Rows, *, scale: float = 0.0) -> None:
        super().__init__()
        self.generator = MLPGenerator(2, 2, (4,), skip=True)
        self.model, self.scale = model, scale

    def forward(self, x: Tensor, y: Any = None, idx: Tensor | None = None) -> None:
        pyro.module("hand_written", self.generator)
        fn = ImplicitDistribution(self.generator, scale=self.scale)
        with self.model.plate(x, y, idx):
            if not self.model.positive:
                sample_implicit("level", fn)
                return
            flat = sample_implicit("flat", fn, latents=("level",), auxiliary=True, pack=_pack)
            log_density = -flat.sum(-1)
            pyro.sample("level", dist.Delta(flat.exp(), log_density=log_density, event_dim=1))


def _pack(values: dict[str, Tensor], num_samples: int) -> Tensor:
    return values["level"].log()


#: each takes a model (None to load a saved state) and options that all guides have
GUIDES: dict[str, partial[ImplicitGuide]] = {
    "default": partial(HyperNetworkGuide, hidden_dims=(8,)),
    "few noises": partial(
        HyperNetworkGuide, hidden_dims=(8,), noise_dim=1, learn_scale="scalar", scale=0.1
    ),
    "factorised": partial(
        HyperNetworkGuide, hidden_dims=(4,), factorized=True, learn_scale="diagonal"
    ),
    "factorised by layer": partial(HyperNetworkGuide, hidden_dims=(4,), factorized="layer"),
    "residual": partial(
        HyperNetworkGuide, generator=partial(ResidualGenerator, hidden_dim=8, init_scale=0.1)
    ),
    "laplace": partial(HyperNetworkGuide, hidden_dims=(8,), init_from="laplace"),
    "matrix": partial(MMNNGuide, noise_shape=(2, 2), hidden_shapes=[(3, 3)]),
    "matrices in branches": partial(CMMNNGuide, noise_shape=(2, 2), learn_scale="scalar"),
}

#: models with all latents inside of the plate of the data
ROW_MODELS: dict[str, Case] = {
    "rows": Case(Rows, {"level": (ROWS, 2)}, local=("level",)),
    "positive rows": Case(partial(Rows, positive=True), {"level": (ROWS, 2)}, local=("level",)),
}

#: guides that draw there; each takes the model of such a case, and ``scale``
ROW_GUIDES: dict[str, Callable[..., Any]] = {
    "conditional": partial(ConditionalHyperNetworkGuide, hidden_dims=(8,)),
    "conditional, increasing": ConditionalHyperNetworkGuide,
    "hand-written": HandWritten,
}


@dataclass(frozen=True)
class Objective:
    """
    :param make: takes nothing, or options that all objectives have.
    :param guide_options: what it needs of every guide.
    :param draws_prior: whether it compares draws of the guide with draws of the model's prior.
    :param trains: whether it has parameters of its own, which it trains whenever it is evaluated
        with gradients enabled: its value then depends on what came before.
    :param whole: whether it compares draws of the whole posterior: its value is no evidence, and a
        site with a weight is refused.
    :param together: whether draws are within one logarithm: a minibatch of a plate that not all
        sites are in is refused, and no scale multiplies the value.
    :param whole_guide: whether it refuses ordinary sites beside implicit ones.
    :param unbiased: what the mean over minibatches leaves as it is.
    """

    make: Callable[..., ImplicitELBO]
    guide_options: dict[str, Any] = field(default_factory=dict)
    draws_prior: bool = False
    trains: bool = False
    whole: bool = False
    together: bool = False
    whole_guide: bool = False
    unbiased: tuple[str, ...] = ("loss", "gradient")

    def __call__(self, **options: Any) -> ImplicitELBO:
        return self.make(**options)

    def refusal(
        self, guide: partial[ImplicitGuide], case: Case, minibatch: bool = False
    ) -> tuple[type[Exception], str] | None:
        """The error that this combination must raise, and its message."""
        if self.together and minibatch:
            return (
                SiteError,
                f"plate 'data' shows . of its {ROWS} rows, and not all sites are in it",
            )
        if not self.draws_prior:
            return None
        if minibatch and case.local:
            return SiteError, f"latent site '{case.local[0]}' has weight .*contrast='adaptive'"
        if case.improper:
            return SiteError, "prior of latent site 'w' is improper.*contrast='adaptive'"
        if guide.keywords.get("factorized") and case.coupled:
            return GuideError, "depends on latents outside of implicit site.*factorized=False"
        return None

    def allowed(
        self, guide: partial[ImplicitGuide], case: Case, minibatch: bool = False
    ) -> AbstractContextManager[Any]:
        """A context that does nothing, or one that expects the refusal."""
        refusal = self.refusal(guide, case, minibatch)
        return nullcontext() if refusal is None else pytest.raises(refusal[0], match=refusal[1])


OBJECTIVES: dict[str, Objective] = {
    "linearised": Objective(partial(LinearisedELBO, num_particles=2)),
    "linearised, vectorised": Objective(
        partial(LinearisedELBO, num_particles=4, vectorize_particles=True)
    ),
    "linearised, per datum": Objective(
        partial(LinearisedELBO, num_particles=4, vectorize_particles=True, likelihood="per_datum")
    ),
    # with a prior: without one it does not reach latents that the data depend on through it alone
    "posterior predictive": Objective(
        partial(PosteriorPredictiveLoss, num_particles=3, prior_weight=0.1)
    ),
    "posterior predictive, expected": Objective(
        partial(
            PosteriorPredictiveLoss,
            num_particles=3,
            form="expected",
            prior_weight=0.5,
            vectorize_particles=True,
        )
    ),
    "alpha energy": Objective(partial(AlphaEnergy, num_particles=4, vectorize_particles=True)),
    "lanczos": Objective(partial(LanczosELBO, num_particles=2)),
    "kernel ratio": Objective(partial(KernelDensityRatioELBO, num_particles=2, num_samples=20)),
    "kernel ratio to the prior": Objective(
        partial(KernelDensityRatioELBO, num_particles=2, num_samples=20, contrast="prior"),
        draws_prior=True,
    ),
    "kernel ratio to the prior, vectorised": Objective(
        partial(
            KernelDensityRatioELBO,
            num_particles=2,
            num_samples=20,
            contrast="prior",
            vectorize_particles=True,
        ),
        draws_prior=True,
    ),
    "adversarial": Objective(
        partial(AdversarialELBO, num_particles=2, num_samples=20, num_critic_steps=1), trains=True
    ),
    "semi-implicit": Objective(
        partial(SemiImplicitELBO, num_particles=2, num_inner=5), guide_options={"scale": 0.05}
    ),
    "semi-implicit, gauss-newton": Objective(
        partial(SemiImplicitELBO, num_particles=2, num_inner=5, proposal="gauss-newton"),
        guide_options={"scale": 0.05},
    ),
    "singular value": Objective(partial(SingularValueELBO, num_particles=2, num_iterations=200)),
    "reverse conditionals": Objective(
        partial(AISIVI, num_particles=2, num_inner=5), guide_options={"scale": 0.05}
    ),
    "reverse chains": Objective(
        partial(UIVI, num_particles=2, num_burn_in=1, num_inner=1, num_leapfrog=2),
        guide_options={"scale": 0.05},
    ),
    "importance weighted": Objective(
        partial(IWAE, num_particles=3, num_inner=3, proposal="prior", vectorize_particles=True),
        guide_options={"scale": 0.05},
        together=True,
    ),
    "kernel Stein": Objective(
        partial(KSIVI, num_particles=6, vectorize_particles=True),
        guide_options={"scale": 0.05},
        whole=True,
        whole_guide=True,
        unbiased=(),
    ),
    "kernelised path gradient": Objective(
        partial(KPG, num_particles=4),
        guide_options={"scale": 0.05},
        whole=True,
        unbiased=("gradient",),
    ),
    "amortised Stein": Objective(
        partial(AmortisedSVGD, num_particles=6, vectorize_particles=True),
        whole=True,
        unbiased=("gradient",),
    ),
}
