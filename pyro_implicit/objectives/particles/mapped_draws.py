"""Many draws at once of a model that is written for one: ``torch.func.vmap`` over the draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit._program_ref import ProgramRef
from pyro_implicit._random import RandomStream, read_random_state
from pyro_implicit.exceptions import ImplicitError, NonFiniteError, SiteError
from pyro_implicit.handlers.errors.value_errors import refuses_nan
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.handlers.mapped.mapped_writing import WritingMap
from pyro_implicit.handlers.networks.still_statistics import still_statistics

__all__ = ["VMAP", "DrawApart", "MappedDraws", "check_mapped_finite"]

_STEPS_BETWEEN_PLAIN_RUNS = 100  # runs of the model outside of the map, too
#: Where one draw in ten has no density, so many find one within a few hundred steps.
_PLAIN_RUNS_AT_A_TIME = 4

#: what to write for ``vectorize_particles``
VMAP = "vmap"

#: makes a draw and the terms of it: numbers by name
One = Callable[[], dict[str, Tensor]]


class DrawApart(Messenger):
    """
    Draws normal sites by an operation that :func:`torch.func.vmap` makes for each draw.

    ``torch.distributions`` fills a new tensor in place, which belongs to no draw.
    """

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is None and not (msg["is_observed"] or site_is_subsample(msg)):
            drawn = _drawn(msg["fn"])
            if drawn is not None:
                msg["value"], msg["done"] = drawn, True


def _drawn(fn: Any) -> Tensor | None:
    """A draw of a normal distribution, of one or more variables, and what is made of it."""
    if type(fn) is dist.Normal:
        return fn.loc + fn.scale * _noise(fn, torch.Size())
    if type(fn) is dist.MultivariateNormal:
        loc: Tensor = fn.loc
        return loc + _times(fn._unbroadcasted_scale_tril, _noise(fn, fn.event_shape))
    if type(fn) is dist.LowRankMultivariateNormal:
        factor, own = fn._unbroadcasted_cov_factor, fn._unbroadcasted_cov_diag.sqrt()
        loc = fn.loc + _times(factor, _noise(fn, factor.shape[-1:]))
        return loc + own * _noise(fn, fn.event_shape)
    if isinstance(fn, torch.distributions.Independent):
        return _drawn(fn.base_dist)
    if isinstance(fn, torch.distributions.TransformedDistribution):
        value = _drawn(fn.base_dist)
        for transform in fn.transforms if value is not None else ():
            value = transform(value)
        return value
    return None


def _noise(fn: Any, shape: torch.Size) -> Tensor:
    """Normal noise, shape ``(*batch, *shape)``."""
    return torch.randn(fn.batch_shape + shape, dtype=fn.loc.dtype, device=fn.loc.device)


def _times(matrix: Tensor, noise: Tensor) -> Tensor:
    return (matrix @ noise.unsqueeze(-1)).squeeze(-1)


class MappedDraws:
    """
    Evaluates one draw for all draws at once.

    The first run of a model and its guide is a plain one, so that parameters are made, and what is
    wrong with the model is told, outside of the map. So are a few draws of each hundredth: within
    the map nobody can look whether a distribution takes its parameters, and the data.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, Any] | None = None
        self._num_steps = 0  # of these
        self._vmap = WritingMap()
        #: whether what runs now is the map: values of tensors cannot be read
        self.is_mapping = False
        #: whether the next call looks outside of the map; for those who replay the others
        self.looks_next = False

    def __reduce__(self) -> Any:
        return MappedDraws, ()  # weak references cannot be pickled; to run once more is harmless

    def __call__(self, one: One, count: int, model: Any, guide: Any) -> dict[str, Tensor]:
        """
        The terms of many draws.

        :param one: makes the terms of one draw, each of shape ``()``.
        :param int count: how many.
        :param model: a Pyro model.
        :param guide: its guide.
        :returns: their means.
        :raises SiteError: if the model runs for one draw and not under ``vmap``.
        """
        if self._known is None or not all(map(ProgramRef.is_of, self._known, (model, guide))):
            self._make_parameters(one)
            self._known, self._vmap = (ProgramRef(model), ProgramRef(guide)), WritingMap()
            self._num_steps = 0
        self._num_steps += 1
        if self._num_steps % _STEPS_BETWEEN_PLAIN_RUNS == 0 or self.looks_next:
            self.looks_next = False
            for k in range(_PLAIN_RUNS_AT_A_TIME):
                with _tolerated_draws():
                    self._run_plainly(one, _PLAIN_RUNS_AT_A_TIME * self._num_steps + k)
        try:
            return self._map(one, count)
        except (ImplicitError, torch.OutOfMemoryError):
            raise
        except Exception:  # whatever a model does that vmap has no rule for
            self._make_parameters(one)  # if it fails as well, that is the error to see
        try:  # or parameters were missing, which a plain run makes
            return self._map(one, count)
        except ImplicitError:
            raise
        except Exception as error:
            raise _refused(error) from error

    def _map(self, one: One, count: int) -> dict[str, Tensor]:
        def mapped(_: Tensor) -> dict[str, Tensor]:
            with DrawApart():
                return one()

        self.is_mapping = True
        try:
            with pyro.validation_enabled(False), Unvalidated():
                terms = self._vmap(mapped, torch.arange(count), randomness="different")
        finally:
            self.is_mapping = False
        return {name: term.mean(0) for name, term in terms.items()}

    @staticmethod
    def _make_parameters(one: One) -> None:
        """By the caller's random numbers, so that a seed decides where they begin; none is used."""
        numbers = RandomStream(0)
        numbers.state = read_random_state()
        with poutine.block(), numbers, still_statistics(), torch.no_grad(), _tolerated_draws():
            one()

    @staticmethod
    def _run_plainly(one: One, seed: int = 0) -> None:
        with unseen_run(warns=True), RandomStream(seed), torch.no_grad():
            one()


@contextmanager
def _tolerated_draws() -> Iterator[None]:
    """Of a plain run the draw itself does not matter: a bad one says nothing about the program."""
    try:
        yield
    except NonFiniteError:
        pass
    except ValueError as error:
        if not refuses_nan(error):
            raise


def check_mapped_finite(terms: dict[str, Tensor], once_more: Callable[[], Any]) -> None:
    """
    Refuses means that are not finite.

    :param dict terms: the means.
    :param once_more: the same draws one by one, with the same random numbers or others; it names
        the site.
    :raises NonFiniteError: naming the term.
    """
    bad = [name for name, value in terms.items() if not bool(value.detach().isfinite())]
    if not bad:
        return
    with torch.no_grad():
        once_more()
    raise NonFiniteError(
        f"{' and '.join(bad)} not finite at some of the draws. Common causes: a learning rate that "
        "is too high, a likelihood scale that reached zero, or data with NaN. "
        "vectorize_particles=False names the site."
    )


def _refused(error: Exception) -> SiteError:
    said = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    return SiteError(
        f"the model runs with one draw, and torch.func.vmap cannot run it for several ({said}): it "
        "takes no branch on the value of a tensor, no .item(), no NumPy, and writes in place into "
        "tensors alone that it makes (torch.zeros, .clone()). Write vectorize_particles=False for "
        "draws one after the other."
    )
