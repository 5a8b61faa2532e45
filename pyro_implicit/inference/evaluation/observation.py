"""An observed site in one run of the model: its data, their rows, and what is masked."""

# Shape legend: a value has shape (*batch, *event); data have the batch shape with size 1 in the
# dimensions that are one datum, here "datum shape".
from __future__ import annotations

from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.observations.observed_shape import observed_batch_shape
from pyro_implicit.handlers.observations.without_density import refuse_data_without_density
from pyro_implicit.handlers.pointwise import batch_log_prob, unmasked
from pyro_implicit.handlers.supports.served_supports import circular_part, plain_support
from pyro_implicit.handlers.wrapped import without_events

__all__ = ["Observation", "kind_of"]

_KNOWN_LIBRARIES = ("pyro", "pyro_implicit", "torch")  # their means are those of their draws
_SUPPORTS_OF_COUNTS = (
    type(constraints.nonnegative_integer),
    type(constraints.integer),
    constraints.integer_interval,
    constraints.multinomial,
)


def kind_of(name: str, fn: Any) -> str:
    """
    Tells which scores fit an observed site.

    :param str name: of the site.
    :param fn: its distribution.
    :returns: ``"real"``, ``"count"``, ``"class"``, or ``"angle"`` for what has no order.
    :raises SiteError: if the distribution does not tell its support, or one of other objects.
    """
    kind = type(without_events(fn)).__name__
    try:
        support = _support_of_entries(fn)
        is_discrete = support.is_discrete
    except (NotImplementedError, AttributeError) as error:
        raise SiteError(
            f"observed site {name!r} has a {kind} distribution, which does not tell its support, "
            "so that nobody knows whether its data are numbers, counts or classes. Give the "
            "distribution a property `support`, or write log_predictive_density(model, guide, "
            "...), which needs the density alone."
        ) from error
    if not is_discrete:
        return "real" if circular_part(fn) is None else "angle"
    if support is constraints.boolean or support is constraints.one_hot or _is_categorical(fn):
        return "class"
    if isinstance(support, _SUPPORTS_OF_COUNTS):
        return "count"
    raise SiteError(
        f"observed site {name!r} has a discrete {kind} distribution on {support}, which are "
        "neither counts nor classes; expected one such as Poisson, Categorical or Bernoulli. "
        "log_predictive_density(model, guide, ...) needs the density alone."
    )


def _support_of_entries(fn: Any) -> Any:
    support = plain_support(fn.support)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _is_categorical(fn: Any) -> bool:
    if isinstance(fn, torch.distributions.Categorical):
        return True
    inner = [getattr(fn, part, None) for part in ("base_dist", "component_distribution")]
    return any(_is_categorical(part) for part in inner if part is not None)


def _log_probabilities(fn: Any) -> Tensor:
    """The log-probability of each class at each entry by itself, along a last dimension."""
    if isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution)):
        return _log_probabilities(fn.base_dist)
    if isinstance(fn, torch.distributions.MixtureSameFamily):
        parts = _log_probabilities(fn.component_distribution)
        num_inner = parts.dim() - len(fn.component_distribution.batch_shape)  # entries and classes
        weights = fn.mixture_distribution.logits.double().log_softmax(-1)
        return (weights[(..., *[None] * num_inner)] + parts).logsumexp(-1 - num_inner)
    if isinstance(fn, torch.distributions.Bernoulli):
        logits = fn.logits.double()
        return torch.nn.functional.logsigmoid(torch.stack([-logits, logits], -1))
    if isinstance(fn, (torch.distributions.Categorical, torch.distributions.OneHotCategorical)):
        return fn.logits.double().log_softmax(-1)
    found: Tensor = fn.log_prob(fn.enumerate_support(expand=True)).double().movedim(0, -1)
    return found


def _has_mean_of_another(kind: type) -> bool:
    """Whether a user's class has draws and a density of its own, and the mean of another one."""

    def definer(name: str) -> type:
        return next((base for base in kind.__mro__ if name in vars(base)), object)

    def is_own(*names: str) -> bool:
        """Whether a class of theirs tells one, made from that which tells the mean."""
        found, mean = map(definer, names), definer("mean")
        theirs = (one for one in found if one.__module__.partition(".")[0] not in _KNOWN_LIBRARIES)
        return any(one is not mean and issubclass(one, mean) for one in theirs)

    return is_own("log_prob") and is_own("sample", "rsample")


def _has_mask(fn: Any) -> bool:
    while isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution)):
        if isinstance(fn, dist.MaskedDistribution):
            return True
        fn = fn.base_dist
    return False


class DatumKey(NamedTuple):
    """
    What sites have in common whose data are one datum.

    :param plates: names, with a counter of those that are gone through one by one.
    :param bool has_undeclared_rows: whether the rows are in none of them.
    :param undeclared: negative dimension of such rows beside plates, or None.
    """

    plates: tuple[tuple[str, int | None], ...]
    has_undeclared_rows: bool
    undeclared: int | None


class Observation:
    """
    What one run of a model has at an observed site.

    :param site: the message, with its value.
    :param int start: number of the first row of this run.
    :param int stop: one past the last.
    :param row_dim: negative dimension of the rows in the value, if that is known; None if the site
        has no rows, and ``...`` if it is not known.
    :raises ShapeError: if the observed value does not fit the distribution.
    """

    def __init__(self, site: Any, start: int, stop: int, row_dim: Any) -> None:
        self.name, self.fn, self.value = site["name"], site["fn"], site["value"]
        self.start, self.stop, self._site = start, stop, site
        self._counted_before: Tensor | None = None  # entries, at other draws
        #: whether draws differ in what is masked, and in what is observed
        self.has_moving_mask = self.has_moving_values = False
        self.event_dim: int = self.fn.event_dim
        rows = f" (in rows {self.start} to {self.stop - 1})" if self.stop else ""
        self.batch_shape = observed_batch_shape(site, rows)
        frames = site["cond_indep_stack"]
        self.plates = {frame.dim: frame.size for frame in frames if frame.vectorized}
        self.like_rows: list[int] = []  # dimensions of which nobody knows which has the rows
        self.row_dim = self._row_dim(row_dim)
        self.rows_are_one_event = self._has_rows_in_event(row_dim)
        #: sites of the same plates and rows are one datum
        names = ((f.name, None if f.vectorized else f.counter) for f in frames)
        undeclared = self.row_dim if self.plates and self.has_undeclared_rows else None
        self.key = DatumKey(tuple(sorted(names)), self.has_undeclared_rows, undeclared)
        #: the plate of the rows, if they are in one
        found = (f.name for f in frames if f.vectorized and f.dim == self.row_dim)
        self.row_plate: str | None = next(found, None)

    @property
    def is_one_for_all(self) -> bool:
        """Whether several rows observe a single value."""
        return self.value.dim() <= self.event_dim and self.batch_shape.numel() > 1

    @property
    def has_undeclared_rows(self) -> bool:
        """Whether the rows are in no plate."""
        return self.row_dim is not None and self.row_dim not in self.plates

    def _row_dim(self, row_dim: Any) -> int | None:
        """The negative dimension of the rows in the batch shape."""
        if row_dim is not ...:
            dim = None if row_dim is None else row_dim + self.event_dim
            return dim if dim is not None and dim < 0 else None
        count = self.stop - self.start
        sizes = self.plates or {
            dim: self.batch_shape[dim] for dim in range(-len(self.batch_shape), 0)
        }
        found = sorted(dim for dim, size in sizes.items() if size == count > 1)
        self.like_rows = found if len(found) > 1 else []
        return min(found, default=None)

    def _has_rows_in_event(self, row_dim: Any) -> bool:
        """Whether the rows are entries of one datum."""
        if row_dim is ...:
            count = self.stop - self.start
            return self.row_dim is None and count > 1 and count in self.fn.event_shape
        return row_dim is not None and self.row_dim is None

    @property
    def _joined(self) -> list[int]:
        """The dimensions of the batch shape that are one datum."""
        kept = {*self.plates, self.row_dim}
        return [dim for dim in range(-len(self.batch_shape), 0) if dim not in kept]

    def joint(self, values: Tensor) -> Tensor:
        """
        Arranges the data of this site as those of other sites with the same key.

        :param torch.Tensor values: datum shape.
        :returns: the same, flat if there is no plate: the sites' rows may be in other dimensions.
        """
        return values.flatten() if self.row_dim is not None and not self.plates else values

    @property
    def joint_row_dim(self) -> int | None:
        """The negative dimension of the rows in what :meth:`joint` gives."""
        return self.row_dim if self.row_dim is None or self.plates else -1

    def log_prob(self) -> Tensor:
        """The log-density of each datum, masked parts left out, datum shape."""
        entries = batch_log_prob(self._site).expand(self.batch_shape)
        refuse_data_without_density(self._site, entries)
        entries = entries.to(torch.promote_types(entries.dtype, torch.float32))
        return entries.sum(self._joined, keepdim=True) if self._joined else entries

    def _unmasked(self) -> Tensor:
        """Whether each entry counts at this draw, or another one, shape of the value."""
        kept = unmasked(self._site, self.values().shape)
        return kept if self._counted_before is None else kept | self._counted_before

    @property
    def _is_masked(self) -> bool:
        return self._site["mask"] is not None or _has_mask(self.fn)

    def compare(self, other: Observation) -> None:
        """
        Takes the same site at another draw into account, whose mask and data may follow latents.

        :param Observation other: of the same data.
        """
        if self.value is not other.value and not self.has_moving_values:
            mine, theirs, same = self.value, other.value, {"rtol": 0.0, "atol": 0.0}
            is_alike = mine.shape == theirs.shape
            is_alike = is_alike and torch.allclose(mine, theirs, equal_nan=True, **same)
            self.has_moving_values = not is_alike
        if not (self._is_masked or other._is_masked):
            return
        mine, theirs = self._unmasked(), other._unmasked()
        self.has_moving_mask |= not torch.equal(mine, theirs)
        self._counted_before = mine | theirs

    def counted(self) -> Tensor:
        """Whether each datum has anything that is not masked, datum shape."""
        return self._added(self._unmasked()) > 0

    def averaged(self, entries: Tensor) -> Tensor:
        """
        Takes the mean of what is not masked within each datum.

        :param torch.Tensor entries: shape of the value, or without its last event dimension.
        :returns: datum shape, 0 where all is masked.
        """
        kept = self.unmasked_entries(entries)
        total = self._added(torch.where(kept, entries.double(), 0.0))
        return total / self._added(kept).clamp(min=1)

    def unmasked_entries(self, entries: Tensor) -> Tensor:
        """Whether each entry counts; those of a shape as in :meth:`averaged`."""
        kept = self._unmasked()
        return kept if entries.dim() == kept.dim() else kept.any(-1)

    def _added(self, entries: Tensor) -> Tensor:
        """Sums within each datum."""
        batch_dim = len(self.batch_shape)
        if entries.dim() > batch_dim:
            entries = entries.flatten(batch_dim).sum(-1)
        return entries.sum(self._joined, keepdim=True) if self._joined else entries

    def rows(self) -> Tensor:
        """The number of the row of each datum; of the datum, if the site has no rows."""
        shape = self.counted().shape
        if self.row_dim is None:
            return torch.arange(shape.numel(), device=self.value.device).reshape(shape)
        numbers = torch.arange(self.start, self.stop, device=self.value.device)
        return numbers.reshape(-1, *[1] * (-1 - self.row_dim)).expand(shape)

    def values(self) -> Tensor:
        """The observed value in full shape."""
        event = self.value.shape[self.value.dim() - self.event_dim :]
        expanded: Tensor = self.value.expand(self.batch_shape + event)
        return expanded

    def fingerprint(self) -> Tensor:
        """A number for each datum by which data are told apart: a weighted mean of its entries."""
        values = self.values()
        event = values.shape[values.dim() - self.event_dim :]
        weights = torch.arange(1.0, event.numel() + 1.0, device=values.device).double()
        return self.averaged(values * weights.reshape(event))

    def mean(self) -> Tensor | None:
        """The mean of the distribution, shape of the value; None if it does not tell it."""
        fn = without_events(self.fn)
        if isinstance(fn, dist.ProjectedNormal) or _has_mean_of_another(type(fn)):
            return None  # a direction, or that of a density which is not its own
        try:
            mean = self.fn.mean
        except (NotImplementedError, AttributeError):
            return None
        return mean.double().expand(self.values().shape) if isinstance(mean, Tensor) else None

    def log_probabilities(self) -> Tensor:
        """Class log-probabilities, shape ``(*batch, *event of labels, C)``, in float64."""
        found = _log_probabilities(without_events(self.fn))
        return found.expand(*self.labels().shape, found.shape[-1])

    def labels(self) -> Tensor:
        """The observed classes as numbers."""
        value = self.values()
        one_hot = _support_of_entries(self.fn) is constraints.one_hot
        return value.argmax(-1) if one_hot else value.long()
