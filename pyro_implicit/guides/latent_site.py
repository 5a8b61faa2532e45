"""What a guide knows about one latent site of the model: plain values that can be saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta, constraints
from pyro.distributions.util import sum_rightmost
from torch import Tensor
from torch.distributions import biject_to

from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.handlers.rows.latent_rows import rows_not_named
from pyro_implicit.handlers.rows.row_slices import rows_of
from pyro_implicit.handlers.supports.own_support import own_support
from pyro_implicit.handlers.supports.served_supports import (
    check_support,
    decode_support,
    encode_support,
    is_real,
    keep_inside,
    map_support,
    moved_support,
    no_bijection,
    plain_support,
    same_support,
)

__all__ = ["LatentSite", "PlateFrame", "pack"]


@dataclass(frozen=True)
class PlateFrame:
    """A vectorised plate around a site (the fields of Pyro's own frames that guides use)."""

    name: str
    dim: int
    size: int
    full_size: int
    vectorized: bool = True


@dataclass
class LatentSite:
    """
    One latent site of the model, and its map to the real line.

    :param str name: name of the site.
    :param tuple shape: shape of a constrained value, plates at their full size.
    :param int event_dim: number of its event dimensions.
    :param support: its support.
    :param frames: the plates around it.
    """

    name: str
    shape: torch.Size
    event_dim: int
    support: constraints.Constraint
    frames: tuple[PlateFrame, ...]

    @classmethod
    def from_trace(cls, node: dict[str, Any], allow_subsample: bool) -> LatentSite:
        """
        Reads a site off a trace of the model.

        :param dict node: the site's node in the trace.
        :param bool allow_subsample: whether it may be local to a subsampled plate.
        :returns: the site, with its plates at their full size.
        :raises SiteError: if the site is local to a subsampled plate and ``allow_subsample`` is
            false, or its support differs between the rows of one, or if nothing maps the real line
            on its support.
        :raises ShapeError: if it has batch dimensions that no plate declares.
        """
        fn, name = node["fn"], node["name"]
        check_support(name, fn)
        frames = tuple(
            PlateFrame(f.name, f.dim, f.size, f.full_size or f.size)
            for f in node["cond_indep_stack"]
            if f.vectorized
        )
        shape = list(node["value"].shape)
        _check_batch_dims(name, tuple(fn.batch_shape), {f.dim for f in frames})
        for frame in frames:
            if frame.size != frame.full_size:
                if not allow_subsample:
                    raise SiteError(_subsample_message(name, frame))
                shape[frame.dim - fn.event_dim] = frame.full_size
        support = _of_all_rows(name, plain_support(own_support(fn)), frames, fn.event_dim)
        return cls(name, torch.Size(shape), fn.event_dim, support, frames)

    def transform(self) -> torch.distributions.Transform:
        """
        The bijection from the unconstrained space to the support.

        :returns: the bijection; its inverse maps values to the real line.
        """
        return self._bijection

    @cached_property
    def _bijection(self) -> torch.distributions.Transform:
        transform: torch.distributions.Transform = biject_to(self.support)
        return transform

    @cached_property
    def _is_real(self) -> bool:
        return is_real(self.support)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def move(self, put: Callable[[Tensor], Tensor]) -> None:
        """
        Moves the bounds of the support to the device where a module's tensors go.

        :param put: moves a tensor, as that of ``nn.Module._apply``.
        """
        support = moved_support(self.support, put)
        if support is not self.support:
            self.support = support
            self.__dict__.pop("_bijection", None)

    def check_rows(self) -> None:
        """
        Refuses supports that differ from row to row.

        :raises SiteError: if the support differs between rows, so that a minibatch has another.
        """

        def check(bound: Any) -> Any:
            for frame in _frames_of(bound, self.frames, self.event_dim):
                raise SiteError(_bounds_message(self.name, frame))
            return bound

        map_support(self.support, check)

    def check_prior(self, fn: Any, before: str = "when the guide was built") -> None:
        """
        Refuses a prior whose support is another one than when the site was read.

        :param fn: the distribution of the site in another run of the model.
        :param str before: when that was.
        :raises SiteError: if its support is not that which this site is mapped on: draws could
            then not reach some of it, or leave it.
        """
        support = own_support(fn)
        if support is not self.support and not same_support(self.support, support):
            raise SiteError(
                f"latent site {self.name!r} has the support {_words(support)} here and had "
                f"{_words(self.support)} {before}, which its draws are mapped on: "
                "it depends on another latent, a parameter or the data. Draw a latent on a fixed "
                f"support and rescale it in the model, such as u = pyro.sample('{self.name}_unit', "
                f"dist.Uniform(0.0, 1.0)), {self.name} = pyro.deterministic('{self.name}', low + "
                "(high - low) * u)."
            )

    @cached_property
    def unconstrained_shape(self) -> torch.Size:
        """Shape of an unconstrained value."""
        return torch.Size(self.transform().inverse_shape(self.shape))

    @cached_property
    def unconstrained_event_dim(self) -> int:
        """Number of its event dimensions."""
        return self.event_dim + len(self.unconstrained_shape) - len(self.shape)

    @cached_property
    def numel(self) -> int:
        """Number of unconstrained entries."""
        return self.unconstrained_shape.numel()

    def unpack(self, flat: Tensor) -> Tensor:
        """
        Shapes flat unconstrained numbers as the site's values.

        :param torch.Tensor flat: shape ``(*batch, numel)``; ``batch`` as seen from the plates, so
            that a particle plate outside of ``n`` model plates reads ``(S, 1, ..., 1)``.
        :returns: unconstrained values, shape ``(*batch, *event)``: the batch broadcast with the
            site's plates, and the last ``unconstrained_event_dim`` of ``unconstrained_shape``.
        """
        batch, own = flat.shape[:-1], self.unconstrained_shape
        if len(own) == self.unconstrained_event_dim:  # in no plate; broadcasting takes its time
            return flat.reshape(batch + own)
        shape = torch.broadcast_shapes(own, batch + (1,) * self.unconstrained_event_dim)
        return flat.reshape(shape)

    def value(self, unconstrained: Tensor) -> Tensor:
        """
        Maps unconstrained values to the support.

        :param torch.Tensor unconstrained: shape ``(..., *unconstrained_shape)``.
        :returns: the constrained value, shape ``(..., *shape)``, inside of the support also where
            it rounds to a bound.
        """
        return keep_inside(self.support, self.transform()(unconstrained))

    def constrain(self, unconstrained: Tensor) -> tuple[Tensor, Tensor]:
        """
        Maps unconstrained values to the support, and tells how that changes densities.

        :param torch.Tensor unconstrained: shape ``(..., *unconstrained_shape)``.
        :returns: the constrained value, shape ``(..., *shape)``, and the log-density correction
            ``log|du/dvalue|``, of the shape of the value without its event dimensions.
        """
        if self._is_real:
            return unconstrained, unconstrained.new_zeros(()).expand(
                unconstrained.shape[: unconstrained.dim() - self.event_dim]
            )
        transform = self.transform()
        value = transform(unconstrained)
        log_density = transform.inv.log_abs_det_jacobian(value, unconstrained)
        log_density = sum_rightmost(log_density, log_density.dim() - value.dim() + self.event_dim)
        return keep_inside(self.support, value), log_density

    def sample(self, flat: Tensor, plates: Mapping[str, Any]) -> Tensor:
        """
        One Delta site of the model, inside of its plates and cut to their rows.

        :param torch.Tensor flat: unconstrained values as of :meth:`unpack`, shape
            ``(*batch, numel)``.
        :param dict plates: plates by name, those of :attr:`frames` among them.
        :returns: the constrained value, shape ``(*batch, *event)``: the batch of :meth:`unpack`
            with the rows that its plates show, and the last ``event_dim`` of ``shape``.
        :raises ShapeError: if a plate shows more rows than it has.
        :raises SiteError: if it is to be cut, and its support differs between rows.
        """
        with ExitStack() as stack:
            for frame in self.frames:
                stack.enter_context(plates[frame.name])
            whole = unconstrained = self.unpack(flat)
            for frame in self.frames:  # not pyro.subsample: it overlooks another order of all rows
                dim = frame.dim - self.unconstrained_event_dim
                rows = self._shown(frame, plates[frame.name])
                unconstrained = rows_of(unconstrained, dim, rows)
            if unconstrained is not whole:
                self.check_rows()
            log_density: Tensor | float = 0.0
            if not self._is_real and poutine.get_mask() is False:
                value = self.value(unconstrained)
            else:
                value, log_density = self.constrain(unconstrained)
            fn = Delta(value, log_density=log_density, event_dim=self.event_dim)
            infer: Any = {"implicit_check_prior": self.check_prior}  # for objectives
            return pyro.sample(self.name, fn, infer=infer)

    def _shown(self, frame: PlateFrame, plate: Any) -> Any:
        """The numbers of the rows that a plate shows."""
        if plate.subsample_size > frame.full_size:
            what, shown = f"latent {self.name!r}", plate.subsample_size
            raise rows_not_named(what, frame.name, frame.full_size, shown)
        return plate._indices

    def invert(self, value: Tensor) -> Tensor:
        """
        Maps one constrained value to the real line.

        :param torch.Tensor value: one constrained value, of the shape of the site.
        :returns: its flat unconstrained image, shape ``(numel,)``.
        :raises SiteError: if the support has no bijection, or one that does not know its Jacobian.
        """
        cause: Exception | None = None
        try:
            unconstrained = self.transform().inv(value)
            if self.constrain(unconstrained)[0].shape == value.shape:
                flat: Tensor = unconstrained.reshape(-1)
                return flat
        except (NotImplementedError, AssertionError) as error:  # the latter from torch's cat, stack
            cause = error
        event_shape = self.shape[len(self.shape) - self.event_dim :]
        raise no_bijection(self.name, self.support, event_shape) from cause

    def to_state(self) -> dict[str, Any]:
        """
        The site as strings, numbers and tensors.

        :returns: what :meth:`from_state` reads.
        """
        return {
            "name": self.name,
            "shape": list(self.shape),
            "event_dim": self.event_dim,
            "support": encode_support(self.support),
            "frames": [[f.name, f.dim, f.size, f.full_size] for f in self.frames],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> LatentSite:
        """
        Makes a site from what :meth:`to_state` returned.

        :param dict state: plain values.
        :returns: the site, with bounds on torch's default device, as modules are made there.
        """
        site = cls(
            state["name"],
            torch.Size(state["shape"]),
            state["event_dim"],
            decode_support(state["support"], state["name"]),
            tuple(PlateFrame(*frame) for frame in state["frames"]),
        )
        here = torch.get_default_device()
        site.move(lambda bound: bound.to(here))
        return site


def pack(sites: Sequence[LatentSite], values: dict[str, Tensor], num_samples: int) -> Tensor:
    """
    The inverse of what a guide does with a flat latent.

    :param sites: the sites of one part, in order.
    :param values: ``num_samples`` constrained values of each site, draws in front.
    :param int num_samples: number of draws.
    :returns: unconstrained values, shape ``(num_samples, numel)``.
    :raises SiteError: for a value that has not ``num_samples`` times the entries of its site.
    """
    flat = []
    for site in sites:
        value = site.transform().inv(values[site.name])
        if value.numel() != num_samples * site.numel:
            raise SiteError(
                f"{num_samples} prior draws of site {site.name!r} have {value.numel()} entries in "
                f"all; the guide has {site.numel} for each. A site that is local to a subsampled "
                "plate shows the prior only some of its rows: use contrast='adaptive'."
            )
        flat.append(value.reshape(num_samples, site.numel))
    return torch.cat(flat, -1)


def _check_batch_dims(name: str, batch_shape: tuple[int, ...], plate_dims: set[int]) -> None:
    for dim in range(-len(batch_shape), 0):
        if batch_shape[dim] > 1 and dim not in plate_dims:
            raise ShapeError(
                f"site {name!r} has batch_shape {batch_shape}, and no plate declares dimension "
                f"{dim}. Did you forget .to_event({-dim})? Write pyro.sample({name!r}, "
                f"fn.to_event({-dim})) for one multivariate latent, or put it inside a pyro.plate."
            )


def _of_all_rows(
    name: str, support: constraints.Constraint, frames: Sequence[PlateFrame], event_dim: int
) -> constraints.Constraint:
    """
    The support with one bound for all rows of a plate where they share it.

    The rows of a minibatch are others, and of another number. Bounds are copies, which no parameter
    nor the data move.

    :raises SiteError: if they do not, and only some are known.
    """
    copied = False

    def change(bound: Any) -> Any:
        nonlocal copied
        for frame in _frames_of(bound, frames, event_dim):
            one = bound.narrow(frame.dim - event_dim, 0, 1)
            if torch.equal(bound, one.expand_as(bound)):
                bound = one
            elif frame.size != frame.full_size:
                raise SiteError(_bounds_message(name, frame))
        if isinstance(bound, Tensor):
            bound, copied = bound.detach().clone(), True
        return bound

    changed = map_support(support, change)
    return changed if copied else support  # a support without bounds is known by its identity


def _frames_of(bound: Any, frames: Sequence[PlateFrame], event_dim: int) -> list[PlateFrame]:
    """The plates along which a bound has several entries."""
    if not isinstance(bound, Tensor):
        return []
    dims = [(frame, frame.dim - event_dim) for frame in frames]
    return [frame for frame, dim in dims if bound.dim() >= -dim and bound.shape[dim] > 1]


def _bounds_message(name: str, frame: PlateFrame) -> str:
    return (
        f"latent site {name!r} has a support that differs between rows of plate {frame.name!r}, "
        "which shows some of its rows at a time, or in another order: the guide cannot know that "
        "of the others. Draw a latent on a fixed support and rescale it in the model."
    )


def _subsample_message(name: str, frame: PlateFrame) -> str:
    return (
        f"latent site {name!r} is local to plate {frame.name!r}, which shows {frame.size} of its "
        f"{frame.full_size} rows at a time: one draw of this guide cannot know which rows. Either "
        "pass create_plates (a function of the model's arguments that returns the plate, so that "
        "guide and model share the rows), or hide the site from this guide with "
        f"poutine.block(model, hide=[{name!r}]) and give it a guide conditional on the data."
    )


def _words(support: constraints.Constraint) -> str:
    """A support for a message; bounds of many entries by their shape alone."""
    while isinstance(support := plain_support(support), constraints.independent):
        support = support.base_constraint

    def word(bound: Any) -> Any:
        if not isinstance(bound, Tensor):
            return bound
        few = bound.numel() <= 4
        return bound.detach().tolist() if few else f"a tensor of shape {tuple(bound.shape)}"

    bounds = {name: word(bound) for name, bound in vars(support).items() if name.endswith("_bound")}
    name = type(support).__name__.strip("_")
    return f"{name}({', '.join(f'{k}={v}' for k, v in bounds.items())})" if bounds else name
