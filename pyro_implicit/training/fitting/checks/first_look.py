"""One run of the model before a fit begins: what is wrong with the data is told at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer.util import is_validation_enabled, validation_enabled

from pyro_implicit._warn import warn
from pyro_implicit.bayesian.vectorization import WORDS_OF_PLATE_WARNING
from pyro_implicit.exceptions import (
    ImplicitError,
    NonFiniteError,
    ShapeError,
    SiteError,
)
from pyro_implicit.handlers.errors.explained_errors import RAW_ERRORS, explained, without_shapes
from pyro_implicit.handlers.errors.shape_errors import other_columns
from pyro_implicit.handlers.errors.value_errors import entries_not_finite, warning_of_scale
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.masks.masked_latents import warning_of_masked_latent
from pyro_implicit.handlers.masks.missing_data import missing_data
from pyro_implicit.handlers.masks.replicates import Replicates
from pyro_implicit.handlers.observations.data_use import CALL_WITH_BATCHES, DataUse
from pyro_implicit.handlers.observations.large_numbers import warning_of_rounding
from pyro_implicit.handlers.observations.observed_shape import (
    check_is_tensor,
    check_observation,
    is_event,
    observed_batch_shape,
    warning_of_one_for_all,
)
from pyro_implicit.handlers.pointwise import SiteVisitor, batch_log_prob, is_auxiliary, is_delta
from pyro_implicit.handlers.rows.row_slices import is_cut, number_of_rows
from pyro_implicit.handlers.supports.support_edge import warning_of_edge
from pyro_implicit.handlers.wrapped import is_of_library
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.checks.networks_in_training import NetworksInTraining

__all__ = ["explained_steps", "first_look"]


def first_look(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    in_batches: bool = False,
    in_plates: bool = True,
    has_failed: bool = False,
) -> bool:
    """
    Runs the model once at draws of its prior, and refuses data that no step could use.

    Latents, parameters, networks and random numbers stay as they are. A model that cannot be drawn
    from its prior is not looked at: its steps tell what is wrong with it.

    :param model: a Pyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param bool in_batches: whether these are a batch of the data.
    :param bool in_plates: whether each dimension of a density must be that of a plate, as is so
        unless an objective is told the number of plates.
    :param bool has_failed: whether steps had no finite loss, so that an observation without a
        density at one value of a discrete latent counts as one that has none.
    :returns: whether the model observes anything; True of one that was not looked at.
    :raises ArgumentError: for numbers of types that torch does not join, and for observations that
        are no tensors.
    :raises NonFiniteError: for observations that are NaN, naming the site.
    :raises ShapeError: for no rows, and for observations that fit no distribution or plate.
    :raises SiteError: for batches without observations, whose latents are those of some rows.
    :warns UserWarning: for one observation in place of many, for latents that are masked, for
        layers that draw random numbers in training mode or normalise draws by running statistics,
        and for numbers that are too large for single precision.
    """
    number_of_rows(args, dict(kwargs))
    look = _Look(in_plates, has_failed)
    try:
        with unseen_run(warns=True), torch.no_grad(), look.listening():
            with NetworksInTraining() as networks, SiteVisitor(look.visit):
                Replicates()(model)(*args, **kwargs)
        look.warnings.extend(networks.warnings(model, args, kwargs))
    except Exception as error:  # whatever a model does at draws of its prior
        if error is look.refused:
            in_plate = next((text for text in look.said if WORDS_OF_PLATE_WARNING in text), None)
            if in_plate is None:
                raise
            raise ShapeError(in_plate) from error
        clear = explained(error, args, kwargs)
        if clear is None:
            return True
        raise clear from error
    for text in dict.fromkeys(look.warnings):
        warn(text)
    said = look.use.nothing_observed(CALL_WITH_BATCHES)
    if in_batches and look.is_part and said is not None:
        raise SiteError(said)
    return said is None


class _Look:
    """What one run of the model shows."""

    def __init__(self, in_plates: bool, has_failed: bool) -> None:
        self.in_plates, self.has_failed = in_plates, has_failed
        self.use = DataUse()
        self.is_part = False  # whether latents are those of some rows
        self.is_discrete = False  # whether some are discrete, which steps sum out
        self.warnings: list[str] = []
        self.refused: ImplicitError | None = None
        self.said: list[str] = []  # what the model itself warns of

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keeps what the model warns of to itself: its steps say it again."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                self.said += [str(one.message) for one in caught]

    def visit(self, site: Any) -> None:
        if site["is_observed"] and is_validation_enabled() and is_of_library(site["fn"]):
            self._check(check_is_tensor, site)
        self.use.note(site)
        if not site["is_observed"]:
            self.is_discrete |= bool(getattr(site["fn"], "has_enumerate_support", False))
            self.is_part |= is_cut(site)
            self.warnings.extend(filter(None, [warning_of_masked_latent(site)]))
        elif not (is_auxiliary(site) or is_delta(site)):
            at_edges = not self.is_discrete or self.has_failed
            self._check(_check_observed, site, self.in_plates, at_edges)
            self.warnings.extend(
                filter(None, [warning_of_one_for_all(site), warning_of_rounding(site)])
            )

    def _check(self, check: Callable[..., None], *arguments: Any) -> None:
        """Keeps what is refused, which is told as it stands."""
        try:
            check(*arguments)
        except ImplicitError as error:
            self.refused = error
            raise


@contextmanager
def explained_steps(
    model: Any, guide: Any, objective: Any, arguments: Arguments | tuple[Any, Any], **options: Any
) -> Iterator[None]:
    """
    Says of an error within what is wrong with the data of the last step, if that is the cause.

    :param model: a Pyro model.
    :param guide: its guide.
    :param objective: what is minimised.
    :param arguments: those of the steps, or of a single one as ``(args, kwargs)``.
    :param options: those of :func:`first_look`.
    :raises ImplicitError: as :func:`first_look` does; for losses that are not finite without
        Pyro's validation the same error, naming the site.
    """
    try:
        yield
    except (*RAW_ERRORS, ZeroDivisionError, NonFiniteError) as error:
        last = arguments if isinstance(arguments, tuple) else arguments.last
        is_clear = isinstance(error, ImplicitError) and not isinstance(error, NonFiniteError)
        without_shapes(error)
        if is_clear or last is None:
            raise
        try:
            first_look(model, *last, has_failed=isinstance(error, NonFiniteError), **options)
        except ImplicitError as clear:
            raise clear from error
        known = explained(error, *last) or other_columns(error, last[0], guide)
        if known is not None:
            raise known from error
        site = "" if is_validation_enabled() else _named(objective, model, guide, last)
        more = [said for said in (site, entries_not_finite(*last), warning_of_scale(*last)) if said]
        if isinstance(error, NonFiniteError) and more:
            raise NonFiniteError(". ".join([str(error).rstrip("."), *more])) from error
        raise


def _named(objective: Any, model: Any, guide: Any, last: tuple[Any, Any]) -> str:
    """What an objective says of a loss that is not finite, when it looks."""
    try:
        with validation_enabled(True):
            objective.loss_and_grads(model, guide, *last[0], **last[1])
    except NonFiniteError as error:
        return str(error)
    except Exception:  # another error than the one that is to be told
        return ""
    return ""


def _check_observed(site: Any, in_plates: bool, at_edges: bool) -> None:
    fn, value = site["fn"], site["value"]
    check_observation(site)
    own = value.shape[: value.dim() - fn.event_dim]
    plates = [frame.dim for frame in site["cond_indep_stack"] if frame.vectorized]
    try:
        batch = torch.broadcast_shapes(own, fn.batch_shape)
        is_loose = in_plates and batch[: len(batch) + min(plates, default=0)].numel() > 1
        fits = is_event(fn, value.shape[len(own) :]) and not is_loose
        pairs = zip(reversed(own), reversed(batch), strict=False)
        fits &= not any(a == 1 != b for a, b in pairs)  # one row, copied for all
    except RuntimeError:
        fits = False
    if not fits:
        batch = observed_batch_shape(site)  # refuses what is no mere lack of a plate
        if is_validation_enabled():
            raise ShapeError(
                f"site {site['name']!r} has the batch shape {tuple(batch)}, with dimensions that "
                "are in no plate. Write the rows in a plate, with pyro.plate('data', len(x)), and "
                "the entries of one row as .to_event(1); a last dimension of size 1 goes by "
                "f.squeeze(-1)."
            )
    at_edge = warning_of_edge(site, at_edges)
    if at_edge is not None:
        raise NonFiniteError(at_edge)
    notes = missing_data(site)
    if notes is None:
        return
    log_prob = batch_log_prob(site)  # which refuses them by itself with validation on
    if bool(scale_and_mask(log_prob, mask=site["mask"]).isnan().any()):
        raise NonFiniteError(notes)
