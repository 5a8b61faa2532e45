"""One Gaussian prior over several sites of a model together."""

# Shape legend: m unconstrained entries of all sites, n of one site, r rank, P shape of a site.
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Transform
from torch.distributions.transforms import ReshapeTransform

from pyro_implicit._checks import check_model, check_names
from pyro_implicit.bayesian.joint_form import check_form, checked_sites, root_of
from pyro_implicit.bayesian.joint_site import JointSite
from pyro_implicit.bayesian.sampled_sites import check_met
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError
from pyro_implicit.handlers.rows.row_slices import rows_of
from pyro_implicit.handlers.rows.same_rows import SameRows
from pyro_implicit.handlers.supports.served_supports import moved_support, same_support
from pyro_implicit.ops.gaussian_blocks import Blocks, FullBlocks, LowRankBlocks

__all__ = ["JointPrior", "part_for"]

_Self = TypeVar("_Self", bound="JointPrior")


class JointPrior(nn.Module):
    r"""
    A Gaussian over the unconstrained values of several sites: ``N(loc, W W' + D)``, ``N(loc, C)``.

    It stands in for the priors that a model has: ``prior(model)`` is the model with these sites
    drawn from it, under their names and as sample sites of their own, each given those before it.
    Any guide, objective and chain therefore takes it as it takes the model.
    ``BayesianModule(network, prior=prior)`` takes the part of it that belongs to the network.
    Yesterday's posterior becomes one by :func:`~pyro_implicit.inference.prior_from`.

    Its numbers are buffers: they follow ``.to`` and are saved, and nothing of it is trained.

    :param sites: the sites in the model's order.
    :param torch.Tensor loc: means of the unconstrained entries, shape ``(m,)``.
    :param torch.Tensor scale: deviations, the square root of ``D``, shape ``(m,)``.
    :param torch.Tensor factor: ``W``, shape ``(m, r)``; None for independent entries.
    :param torch.Tensor covariance: ``C``, shape ``(m, m)``, in place of ``scale`` and ``factor``.
    :raises ArgumentError: for no sites, several of one name, or neither of the two forms; for
        deviations that are not positive, a covariance that is not symmetric and positive definite,
        or numbers that are not all of one floating type.
    :raises ShapeError: if the tensors do not have the sites' numbers of entries.
    """

    loc: Tensor
    scale: Tensor | None
    factor: Tensor | None
    root: Tensor | None

    def __init__(
        self,
        sites: Sequence[JointSite],
        loc: Tensor,
        scale: Tensor | None = None,
        factor: Tensor | None = None,
        *,
        covariance: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.sites = checked_sites(sites)
        names = [site.name for site in self.sites]
        if not names or len(set(names)) != len(names):
            raise ArgumentError(f"sites has the names {names}; expected several different ones.")
        ends = list(accumulate(site.numel for site in self.sites))
        self._rows = {s.name: slice(e - s.numel, e) for s, e in zip(self.sites, ends, strict=True)}
        check_form(ends[-1], loc, scale, factor, covariance)
        root = None if covariance is None else root_of(covariance)
        for name, value in (("loc", loc), ("scale", scale), ("factor", factor), ("root", root)):
            self.register_buffer(name, None if value is None else value.detach().clone())
        self._same_rows = SameRows(None, ())  # prior_from tells those of a guide

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        """Moves the bounds of supports, too: draws are mapped on them."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.sites = tuple(replace(s, support=moved_support(s.support, fn)) for s in self.sites)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(self._rows)

    def forward(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """
        Replaces the priors of a model's sites.

        :param model: a model that samples the sites.
        :returns: the model with this prior. When it is run it raises :class:`SiteError` if it
            samples none of the sites, and warns at its first run of those that it does not sample
            (:meth:`restricted` leaves them out).
        """
        return _ReplacePriors(self, all_sites=True)(self._same_rows.watch(check_model(model)))

    def replacing(self) -> Messenger:
        """
        The handler that replaces priors while it is entered.

        :returns: a context manager.
        :raises SiteError: when a model runs, if it samples a site in another order, shape or plate.
        """
        return _ReplacePriors(self)

    def restricted(self, names: Collection[str]) -> JointPrior:
        """
        The marginal of some sites.

        :param names: of the sites to keep.
        :returns: their joint prior.
        :raises ArgumentError: for other names, or none.
        """
        wanted = check_names("names", names)
        unknown = [name for name in wanted if name not in self._rows]
        if unknown or not wanted:
            raise ArgumentError(
                f"names={list(wanted)}; expected some of the sites {list(self.names)}."
            )
        kept = [site for site in self.sites if site.name in wanted]
        if len(kept) == len(self.sites):
            return self
        prior = self._marginal(kept)
        prior._same_rows = self._same_rows.restricted(wanted)
        return prior

    def _marginal(self, kept: list[JointSite]) -> JointPrior:
        entries = torch.arange(self.loc.numel(), device=self.loc.device)
        where = torch.cat([entries[self._rows[site.name]] for site in kept])
        if self.root is not None:
            root = self.root[where]
            return JointPrior(kept, self.loc[where], covariance=root @ root.mT)
        assert self.scale is not None
        factor = None if self.factor is None else self.factor[where]
        return JointPrior(kept, self.loc[where], self.scale[where], factor)

    def _blocks(self) -> Blocks | None:
        """What correlates the sites; None if they are independent."""
        if self.root is not None:
            return FullBlocks(self.root)
        if self.factor is not None and self.scale is not None:
            return LowRankBlocks(self.factor, self.scale)
        return None

    def _distribution(
        self, site: JointSite, blocks: Blocks | None, numbers: Mapping[int, Tensor]
    ) -> Any:
        """
        The distribution of one site given those before it.

        :param JointSite site: one of the sites.
        :param blocks: what is known of those before.
        :param numbers: of the rows that plates around it show, by their dimensions.
        :returns: a distribution of the site's values.
        """
        rows = self._rows[site.name]
        loc = self.loc[rows]
        transforms: list[Transform] = []
        if blocks is None:
            assert self.scale is not None
            shape = site.unconstrained_shape
            event_dim = site.event_dim + len(shape) - len(site.shape)
            loc, scale = loc.reshape(shape), self.scale[rows].reshape(shape)
            for dim, some in numbers.items():
                loc = rows_of(loc, dim - event_dim, some)
                scale = rows_of(scale, dim - event_dim, some)
            base = dist.Normal(loc, scale, _VALIDATE_ARGS).to_event(event_dim)
        else:
            shift, factor = blocks.conditional(rows)
            loc = loc if shift is None else loc + shift
            if self.root is not None:
                base = dist.MultivariateNormal(loc, scale_tril=factor, validate_args=_VALIDATE_ARGS)
            else:
                assert self.scale is not None
                diagonal = self.scale[rows].square()
                base = dist.LowRankMultivariateNormal(
                    loc, factor, diagonal, validate_args=_VALIDATE_ARGS
                )
            if site.unconstrained_shape != (site.numel,):
                transforms.append(
                    ReshapeTransform(torch.Size((site.numel,)), site.unconstrained_shape)
                )
        if site.transform is not None:
            transforms.append(site.transform)
        return _Mapped(base, transforms, site.support) if transforms else base

    def _observe(self, site: JointSite, value: Tensor, blocks: Blocks) -> None:
        """
        Takes note of the value of a site.

        :param JointSite site: one of the sites.
        :param torch.Tensor value: shape ``(*batch, *P)``.
        :param blocks: what is known of those before.
        """
        rows = self._rows[site.name]
        blocks.observe(rows, site.flat(value) - self.loc[rows])

    def extra_repr(self) -> str:
        """What it correlates, for ``repr``."""
        form = "full" if self.root is not None else "diagonal"
        if self.factor is not None:
            form = f"low rank ({self.factor.shape[-1]})"
        return f"{len(self.sites)} sites with {self.loc.numel()} entries, {form}"


_VALIDATE_ARGS = False  # the numbers were checked when the prior was made


class _Mapped(dist.TransformedDistribution):  # type: ignore[misc]
    """A distribution on a support; the last transform's codomain may be wider (``real``)."""

    def __init__(self, base: Any, transforms: list[Transform], support: Any) -> None:
        super().__init__(base, transforms, validate_args=_VALIDATE_ARGS)
        self._support = support

    @property
    def support(self) -> Any:
        return self._support

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        new = self._get_checked_instance(_Mapped, _instance)
        new._support = self._support
        return super().expand(batch_shape, _instance=new)


class _ReplacePriors(Messenger):
    """Gives sites their joint prior, each given those that were drawn before it in the run."""

    def __init__(self, prior: JointPrior, all_sites: bool = False) -> None:
        super().__init__()
        self._prior, self._unchecked = prior, all_sites
        self._by_name = {site.name: site for site in prior.sites}
        self._seen: list[str] = []
        self._blocks: Blocks | None = None
        self._shown: dict[str, Tensor] = {}  # rows by the name of their plate

    def __enter__(self) -> Any:
        self._seen, self._blocks, self._shown = [], self._prior._blocks(), {}
        return super().__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        if self._unchecked and kind is None:
            self._check_met()
            self._unchecked = False  # a branch may leave some out in another run

    def _check_met(self) -> None:
        remedy = f"If that is meant, leave them out: prior.restricted({self._seen})."
        check_met(self._prior.names, self._seen, remedy)

    def _pyro_sample(self, msg: Any) -> None:
        site = self._by_name.get(msg["name"])
        if site is not None:
            numbers = self._rows_shown(site, msg)
            self._check(site, msg, numbers)
            msg["fn"] = self._prior._distribution(site, self._blocks, numbers)

    def _rows_shown(self, site: JointSite, msg: Any) -> dict[int, Tensor]:
        """Numbers of the rows of the plates that the prior knows, by dimension."""
        num_dims = len(site.shape) - site.event_dim  # plates further out hold draws
        frames = [f for f in msg["cond_indep_stack"] if f.vectorized and -f.dim <= num_dims]
        return {f.dim: self._shown[f.name] for f in frames if f.name in self._shown}

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            self._shown[msg["name"]] = torch.as_tensor(msg["value"])
        site = self._by_name.get(msg["name"])
        if site is not None:
            self._seen.append(site.name)
            if self._blocks is not None:
                self._prior._observe(site, msg["value"], self._blocks)

    def _check(self, site: JointSite, msg: Any, numbers: Mapping[int, Tensor]) -> None:
        fn: Any = msg["fn"]
        shape = tuple(fn.batch_shape + fn.event_shape)
        same = shape[len(shape) - len(site.shape) :] == _shape_of_rows(site, msg, numbers)
        if fn.event_dim != site.event_dim or not same:
            raise SiteError(
                f"site {site.name!r} has batch shape {tuple(fn.batch_shape)} and event shape "
                f"{tuple(fn.event_shape)} in this model; the joint prior is for values of shape "
                f"{tuple(site.shape)} with {site.event_dim} event dimensions. Use the model that "
                "the guide was fitted to, or leave the site out: prior.restricted(names)."
            )
        if not same_support(site.support, fn.support):
            raise SiteError(
                f"site {site.name!r} has the support {fn.support} in this model, and the joint "
                f"prior is for {site.support}: its draws would leave the one or miss some of it. "
                "Use the model that the guide was fitted to, or leave the site out: "
                "prior.restricted(names)."
            )
        if self._blocks is None:
            return
        if len(site.shape) != site.event_dim:
            raise SiteError(
                f"site {site.name!r} is in a plate of the model, whose rows a joint prior "
                "correlates, and a plate says that they are independent. Take the guide itself, "
                "inference.GuidePrior(guide); or form='diagonal', where the guide's latents "
                "hardly trade off, which it forgets; or leave the site out: "
                "prior.restricted(names)."
            )
        expected = self._prior.names[len(self._seen)]
        if site.name != expected:
            raise SiteError(
                f"the model samples {site.name!r} where the joint prior expects {expected!r}: it "
                f"draws each site given those before it, in the order {list(self._prior.names)}. "
                "Sample them in this order, or leave some out: prior.restricted(names)."
            )


def _shape_of_rows(site: JointSite, msg: Any, numbers: Mapping[int, Tensor]) -> tuple[int, ...]:
    """The shape of a site's values at the rows that are shown of as many as the prior has."""
    shape = list(site.shape)
    for frame in msg["cond_indep_stack"]:
        place = frame.dim - site.event_dim if frame.dim in numbers else None
        if place is not None and shape[place] == frame.full_size:
            shape[place] = len(numbers[frame.dim])
    return tuple(shape)


def part_for(
    prior: JointPrior, prefix: str, parameters: Mapping[str, Tensor]
) -> tuple[JointPrior, dict[str, Any]]:
    """
    The part of a joint prior that belongs to the parameters of a module.

    :param JointPrior prior: of some sites.
    :param str prefix: of the module's site names.
    :param dict parameters: the module's parameters by name.
    :returns: the part, and stand-ins for the priors of its parameters, by their names.
    :raises ArgumentError: if none of its sites is a parameter.
    :raises ShapeError: if one has another shape.
    """
    names = [name for name in parameters if prefix + name in prior.names]
    if not names:
        raise ArgumentError(
            f"the joint prior has the sites {list(prior.names)}, and the trainable parameters are "
            f"{[prefix + name for name in parameters]}: it selects none. Give the module the name "
            "that it had when the guide was fitted."
        )
    part = prior.restricted([prefix + name for name in names])
    for site in part.sites:
        shape = parameters[site.name[len(prefix) :]].shape
        if site.shape != shape or site.event_dim != len(shape):
            raise ShapeError(
                f"the joint prior has site {site.name!r} of shape {tuple(site.shape)} with "
                f"{site.event_dim} event dimensions; the parameter has shape {tuple(shape)}, all "
                "of them one event."
            )
    return part, {name: dist.Normal(0.0, 1.0) for name in names}
