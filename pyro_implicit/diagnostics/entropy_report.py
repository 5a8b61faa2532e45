r"""
The entropy of an implicit guide by four estimates, and what its Jacobian tells.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Eq. 15 and 18, appendix F.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count
from pyro_implicit._seeded import seeded
from pyro_implicit._warn import warn
from pyro_implicit.diagnostics._density import Part, check_implicit_guide
from pyro_implicit.diagnostics._entropy_part import PartEntropy, effective_rank, part_entropy
from pyro_implicit.guides.unfilled_directions import Unfilled, unfilled

__all__ = ["EntropyReport", "entropy_report"]

#: of the linearised entropy over the true one; with more a guide is said to fold
MAX_EXCESS_NATS = 0.1
#: of draws at which the determinant has the rarer sign; from there on a guide is said to fold
MIN_FOLD_SHARE = 0.01


@dataclass(frozen=True)
class EntropyReport:
    """
    Entropies in nats, of all latents in the unconstrained space.

    :param float linearised: the linearised entropy, exactly (what LinearisedELBO uses).
    :param float singular_value_bound: its bound by the smallest singular value, converged.
    :param float lanczos_upper: its estimate by the Gauss rule.
    :param float lanczos_lower: its estimate by the Gauss-Radau rule; minus infinity without output
        noise.
    :param float lower: importance-sampled lower estimate of the **true** entropy; NaN if there is
        none.
    :param float upper: the upper one. They are apart by what the search for noises has missed.
    :param float standard_error: of ``linearised - upper``.
    :param float effective_rank: of the Jacobian in units of the latents' spread, mean over draws.
    :param float dead_directions: directions in which a draw has no spread but output noise, of
        ``min(noises, latents)``, mean over draws.
    :param torch.Tensor singular_values: of the Jacobian in units of the latents' spread, descending
        for each part, shape ``(num_samples, min(noises, latents))``.
    :param int latent_dim: latents.
    :param int noise_dim: noises.
    :param float minority_share: share of the draws at which the determinant of the Jacobian has the
        rarer of its two signs, both of which only a map that folds has; NaN without as many noises
        as latents. Signs that rounding or output noise may have turned do not count.
    :param unfilled: what directions the noises leave to a small output noise, or None.
    :param str refusal: why the true entropy cannot be estimated, or the empty string.
    """

    linearised: float
    singular_value_bound: float
    lanczos_upper: float
    lanczos_lower: float
    lower: float
    upper: float
    standard_error: float
    effective_rank: float
    dead_directions: float
    singular_values: Tensor
    latent_dim: int
    noise_dim: int
    minority_share: float = math.nan
    refusal: str = ""
    unfilled: Unfilled | None = None

    @property
    def excess(self) -> float:
        """Linearised entropy less the upper estimate of the true one."""
        return self.linearised - self.upper

    @property
    def folds(self) -> bool:
        """
        Whether mass is counted twice.

        That is so with an excess above 0.1 nats and three standard errors, or with the rarer sign
        of the determinant at 1% of the draws.
        """
        return self._exceeds or self.minority_share >= MIN_FOLD_SHARE

    @property
    def _exceeds(self) -> bool:
        return self.excess > max(MAX_EXCESS_NATS, 3 * self.standard_error)

    @property
    def collapses(self) -> bool:
        """Whether a direction is lost: at least one dead one in most draws."""
        return self.dead_directions > 0.5

    def __str__(self) -> str:
        rows = [
            ("true, upper estimate", self.upper),
            ("true, lower estimate", self.lower),
            ("linearised", self.linearised),
            ("Lanczos, upper", self.lanczos_upper),
            ("Lanczos, lower", self.lanczos_lower),
            ("smallest singular value", self.singular_value_bound),
        ]
        lines = [f"{name:<24}{value:>10.2f}" for name, value in rows]
        rank = f"{self.effective_rank:.1f} of {self.singular_values.shape[-1]}"
        if self.noise_dim < self.latent_dim:
            rank += f" noises, for {self.latent_dim} latents"
        signs = "" if math.isnan(self.minority_share) else f", signs {self.minority_share:.1%}"
        last = f"effective rank {rank}; folds: {self.folds}{signs}"
        return "\n".join(["entropy in nats", *lines, last])


@torch.no_grad()
def entropy_report(
    guide: Any,
    *,
    num_samples: int = 200,
    num_inner: int = 500,
    num_starts: int = 8,
    num_steps: int = 10,
    num_probes: int = 1,
    seed: int | None = None,
) -> EntropyReport:
    r"""
    What the objectives believe the entropy of a guide to be, beside what it is.

    The linearised entropy (Uppal et al. 2023, Eq. 15), its bound by the smallest singular value
    (Eq. 18, converged) and its two Lanczos estimates come from the Jacobian at the guide's draws.
    The true entropy comes from the estimated density, as in their appendix F.5 but with the
    linearised posterior of ``z`` as proposal, from several starts, and from both sides: see
    :func:`~pyro_implicit.diagnostics.log_density` and :func:`~pyro_implicit.diagnostics.khat`.

    **It warns when the map folds**, so that several noises lead to one draw: mass is then counted
    twice, the linearised entropy exceeds the true one and the objective promises more than it
    keeps. (So it does where the map bends within the width of the output noise.) **It warns when
    the guide collapses**, so that in some directions nothing but the output noise is left, **and
    where that is so because it has fewer noises than latents.**

    Cost: a Jacobian and two singular-value decompositions per draw, and ``num_inner`` runs of the
    generator for each.

    Example::

        report = entropy_report(guide)
        print(report)
        plots.plot_singular_values(report)

    Source: `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS
    2023.

    :param ImplicitGuide guide: a guide of this package that is built.
    :param int num_samples: draws, at least 2.
    :param int num_inner: noises for the density at each.
    :param int num_starts: starts of the search for them, at most 64.
    :param int num_steps: Lanczos steps.
    :param int num_probes: Lanczos probes for each draw.
    :param int seed: of all draws; None: the global random numbers are drawn from.
    :returns: the report; print it, or read its fields.
    :raises ArgumentError: for numbers outside of these, or a guide without output noise that has
        fewer noises than latents.
    :raises GuideError: for any other guide, or one whose Jacobian is too large to form.
    :raises StateError: for a guide that is not built yet.
    """
    guide = check_implicit_guide(guide, "entropy_report")
    for name, value in (("num_inner", num_inner), ("num_steps", num_steps)):
        check_count(name, value)
    check_count("num_probes", num_probes)
    check_count("num_samples", num_samples, minimum=2)
    check_count("num_starts", num_starts, maximum=64)
    parts = [Part(sites, sampler) for _, sites, sampler in guide._groups()]
    with seeded(seed):
        found = [
            part_entropy(part, num_samples, num_inner, num_starts, num_steps, num_probes)
            for part in parts
        ]
    report = _report(parts, found)
    _warn(report)
    return report


def _report(parts: list[Part], found: list[PartEntropy]) -> EntropyReport:
    def total(name: str) -> Tensor:
        columns = [getattr(one, name) for one in found]
        if any(column is None for column in columns):
            return torch.full_like(found[0].linearised, math.nan)
        return torch.stack(columns).sum(0)

    linearised, upper = total("linearised"), total("upper")
    squares = torch.stack(
        [
            torch.zeros(())
            if one.log_density_error is None
            else one.log_density_error.square().sum()
            for one in found
        ]
    ).sum()
    count = len(linearised)
    error = math.sqrt(float((linearised - upper).var()) / count + float(squares) / count**2)
    values = torch.cat([one.singular_values for one in found], -1)
    return EntropyReport(
        linearised=float(linearised.mean()),
        singular_value_bound=float(total("singular_value").mean()),
        lanczos_upper=float(total("gauss").mean()),
        lanczos_lower=float(total("radau").mean()),
        lower=float(total("lower").mean()),
        upper=float(upper.mean()),
        standard_error=error,
        effective_rank=float(effective_rank(values).mean()),
        dead_directions=float(total("dead").mean()),
        singular_values=values,
        latent_dim=sum(part.output_dim for part in parts),
        noise_dim=sum(part.noise_dim for part in parts),
        minority_share=_minority_share(parts, found),
        refusal="; ".join(one.refusal for one in found if one.refusal),
        unfilled=unfilled([part.sampler for part in parts]),
    )


def _minority_share(parts: list[Part], found: list[PartEntropy]) -> float:
    """The largest of all parts with as many noises as latents; NaN if there is none."""
    shares = [
        min(float((one.signs < 0).double().mean()), float((one.signs > 0).double().mean()))
        for part, one in zip(parts, found, strict=True)
        if part.noise_dim == part.output_dim
    ]
    return max(shares, default=math.nan)


def _warn(report: EntropyReport) -> None:
    if report.folds:
        fewer = ", use no more noises than latents" * (report.noise_dim > report.latent_dim)
        warn(
            f"the guide folds: {_evidence(report)}. The objective counts that mass "
            "twice. Use a generator that cannot fold (AutoregressiveGenerator, the default up to "
            f"1024 latents){fewer}, train on with SemiImplicitELBO(proposal='gauss-newton'), or "
            "begin wider; where draws have output noise, a smaller scale bends less within it."
        )
    if report.collapses:
        warn(
            f"the guide collapses: of {report.singular_values.shape[-1]} directions of its noises, "
            f"{report.dead_directions:.1f} (mean over draws) have no spread but the output noise. "
            "Learn that noise (learn_scale='scalar') or make it smaller, use a generator with "
            "skip=True, begin wider, and look at plots.plot_singular_values(report)."
        )
    if report.unfilled is not None:
        warn(f"{report.unfilled}.")


def _evidence(report: EntropyReport) -> str:
    """What shows that a guide folds."""
    signs = f"{report.minority_share:.1%} of its draws have the rarer sign of the determinant"
    if not report._exceeds:
        return signs
    excess = (
        f"its linearised entropy exceeds the true one by {report.excess:.2g} nats (standard error "
        f"{report.standard_error:.1g}), because several noises lead to one draw or the map bends "
        "within the output noise"
    )
    return f"{excess}; {signs}" if report.minority_share > 0 else excess
