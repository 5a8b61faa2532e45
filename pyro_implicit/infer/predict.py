"""Predictions of a fitted guide, in bounded memory, with the same draws for every row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.infer.draws import posterior_draws
from pyro_implicit.infer.rows import NotSliceable, take_rows

__all__ = ["predict"]

_UNIT = 32  # rows that share one state of the random generator
_CHUNK = 64  # draws evaluated at once if parallel
_PLATE = "_num_predictive_samples"


@torch.no_grad()
def predict(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int,
    batch_size: int | None = None,
    sites: Iterable[str] | None = None,
    parallel: bool = False,
    moments: bool = False,
    **kwargs: Any,
) -> dict[str, Tensor]:
    """
    Draws of the observed sites (the posterior predictive) and of any other site asked for.

    The guide is drawn from ``num_samples`` times, once for all rows, so that each draw is one
    coherent function of the inputs. Rows are then taken ``batch_size`` at a time; every tensor
    argument whose first size is the number of rows (that of the first tensor argument) is cut.
    Only the sites asked for are kept, no trace is. Observation noise is drawn by row, so that the
    result does not depend on ``batch_size``.

    :param model: a Pyro model; arguments for observations are left out, or ignored.
    :param guide: a fitted guide, implicit or not.
    :param args: the model's arguments.
    :param int num_samples: number of draws.
    :param int batch_size: rows at a time, rounded up to a multiple of 32; all by default.
    :param sites: names of the sites to keep, ``pyro.deterministic`` ones included; by default every
        site that is not a latent of the guide nor deterministic.
    :param bool parallel: evaluate many draws in one vectorised pass, as in
        :class:`pyro.infer.Predictive`: faster, and every batch dimension of the model must then be
        declared by a plate.
    :param bool moments: return mean and variance over draws instead of the draws, in memory that
        does not grow with ``num_samples``.
    :param kwargs: the model's keyword arguments.
    :returns: by site, draws of shape ``(num_samples, rows, ...)``; with ``moments`` the mean and
        the variance (unbiased; NaN for one draw), stacked in shape ``(2, rows, ...)``.
    :raises ArgumentError: if ``num_samples`` or ``batch_size`` is below 1.
    :raises SiteError: if a site asked for is not in the model.
    """
    for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ArgumentError(f"{name}={value}; expected at least 1.")
    draws = posterior_draws(guide, num_samples, *args, **kwargs)
    seed = int(torch.randint(2**62, ()))
    devices = list({value.device for value in draws.values() if value.is_cuda})
    with torch.random.fork_rng(devices):
        job = _Job(model, args, kwargs, draws, num_samples, seed, sites, parallel, moments)
        try:
            return job.run(batch_size)
        except NotSliceable:  # noise that cannot be drawn by row: as many rows as share a state
            return job.run(_UNIT)


class _Job:
    """One call of :func:`predict`."""

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        draws: dict[str, Tensor],
        num_samples: int,
        seed: int,
        sites: Iterable[str] | None,
        parallel: bool,
        moments: bool,
    ) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        self.draws, self.num_samples, self.seed = draws, num_samples, seed
        self.sites = None if sites is None else list(sites)
        self.parallel, self.moments = parallel, moments
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dim()]
        self.rows = tensors[0].shape[0] if tensors else 0

    def run(self, batch_size: int | None) -> dict[str, Tensor]:
        step = -(-(batch_size or max(self.rows, 1)) // _UNIT) * _UNIT
        pieces: dict[str, list[Tensor]] = {}
        row_dims: dict[str, int | None] = {}
        for start in range(0, max(self.rows, 1), step):
            stop = min(start + step, self.rows)
            found, dims = self._batch(start, stop)
            for name, value in found.items():
                pieces.setdefault(name, []).append(value)
            row_dims.update(dims)
        joined = {}
        for name, parts in pieces.items():
            dim = row_dims[name]
            joined[name] = parts[0] if dim is None or len(parts) == 1 else torch.cat(parts, dim)
        return joined

    def _batch(self, start: int, stop: int) -> tuple[dict[str, Tensor], dict[str, int | None]]:
        """All draws of one batch of rows: values, and the negative dimension of their rows."""
        args = tuple(self._cut(a, start, stop) for a in self.args)
        kwargs = {k: self._cut(v, start, stop) for k, v in self.kwargs.items()}
        chunks: dict[str, _Draws | _Moments] = {}
        nesting = self._nesting(args, kwargs, start, stop) if self.parallel else 0
        size = _CHUNK if self.parallel else 1
        run: _Run | None = None
        for first in range(0, self.num_samples, size):
            last = min(first + size, self.num_samples)
            run = _Run(self, start, stop, first, last, nesting)
            with run:
                if self.parallel:
                    with pyro.plate(_PLATE, last - first, dim=-nesting - 1):
                        self.model(*args, **kwargs)
                else:
                    self.model(*args, **kwargs)
            self._check_found(run)
            for name, value in run.values.items():
                chunks.setdefault(name, _Moments() if self.moments else _Draws()).add(value)
        dims = run.row_dims if run is not None else {}
        return {name: parts.result() for name, parts in chunks.items()}, dims

    def _cut(self, value: Any, start: int, stop: int) -> Any:
        if self.rows and isinstance(value, Tensor) and value.dim() and len(value) == self.rows:
            return value[start:stop]
        return value

    def _nesting(self, args: Any, kwargs: Any, start: int, stop: int) -> int:
        run = _Run(self, start, stop, 0, 1, None)
        with run:
            self.model(*args, **kwargs)
        return run.deepest

    def _check_found(self, run: _Run) -> None:
        missing = [name for name in self.sites or () if name not in run.values]
        if missing:
            raise SiteError(
                f"sites {missing} are not in the model; it has {sorted(run.seen)}. Sites computed "
                "from others are kept with pyro.deterministic(name, value)."
            )


class _Draws:
    """Collects draws."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def add(self, value: Tensor) -> None:
        self.parts.append(value)

    def result(self) -> Tensor:
        return torch.cat(self.parts)


class _Moments:
    """Updates mean and sum of squared deviations, chunk by chunk, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.dtype = torch.float64
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, value: Tensor) -> None:
        self.dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        count, wide = len(value), value.double()
        mean = wide.mean(0)
        total = self.count + count
        shift = mean - self.mean
        self.squares = self.squares + (wide - mean).square().sum(0)
        self.squares = self.squares + shift.square() * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.count = total

    def result(self) -> Tensor:
        variance = self.squares / (self.count - 1 or math.nan)
        return torch.stack([self.mean, variance]).to(self.dtype)


class _Run(Messenger):
    """
    One evaluation of the model: sets latents to draws, draws noise by row, keeps what is asked for.

    ``nesting`` is the number of the model's plate dimensions if draws are vectorised; None for the
    run that finds it.
    """

    def __init__(
        self, job: _Job, start: int, stop: int, first: int, last: int, nesting: int | None
    ) -> None:
        super().__init__()
        self.job, self.start, self.stop = job, start, stop
        self.first, self.last, self.nesting = first, last, nesting
        self.values: dict[str, Tensor] = {}
        self.row_dims: dict[str, int | None] = {}
        self.seen: set[str] = set()
        self.deepest = 0

    @property
    def _vectorised(self) -> bool:
        return self.job.parallel and self.nesting is not None

    def _pyro_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        name = msg["name"]
        if name in self.job.draws:
            msg["value"] = self._latent(msg)
        elif not msg["infer"].get("_deterministic"):
            msg["is_observed"] = False
            msg["value"] = self._noisy(msg)
        msg["done"] = True

    def _latent(self, msg: Any) -> Tensor:
        value = self.job.draws[msg["name"]][self.first : self.last]
        row_dim = self._row_dim(msg, self.job.rows)
        if row_dim is not None and value.dim() > -row_dim and value.shape[row_dim] == self.job.rows:
            value = value.narrow(row_dim, self.start, self.stop - self.start)
        if not self._vectorised:
            return value[0]
        missing = self.nesting + msg["fn"].event_dim - (value.dim() - 1)
        return value.reshape(value.shape[:1] + (1,) * missing + value.shape[1:])

    def _row_dim(self, msg: Any, rows: int) -> int | None:
        """Negative dimension of the rows in a value of the site, by its plates."""
        here = self.stop - self.start
        for frame in msg["cond_indep_stack"]:
            if frame.vectorized and frame.name != _PLATE and here and frame.size in (here, rows):
                return frame.dim - msg["fn"].event_dim
        return None

    def _noisy(self, msg: Any) -> Tensor:
        """A draw of the site in which each unit of rows has its own state of the generator."""
        fn, row_dim = msg["fn"], self._row_dim(msg, self.stop - self.start)
        order = len(self.seen)
        if row_dim is None:
            torch.manual_seed(_mix(self.job.seed, self.first, self.start // _UNIT, order))
            return fn()
        here = self.stop - self.start
        batch_dim = row_dim + fn.event_dim
        parts = []
        for offset in range(0, here, _UNIT):
            unit = (self.start + offset) // _UNIT
            rows = (
                fn if here <= _UNIT else take_rows(fn, batch_dim, offset, min(offset + _UNIT, here))
            )
            torch.manual_seed(_mix(self.job.seed, self.first, unit, order))
            parts.append(rows())
        return torch.cat(parts, row_dim)

    def _pyro_post_sample(self, msg: Any) -> None:
        self.deepest = max(
            [self.deepest, *(-f.dim for f in msg["cond_indep_stack"] if f.vectorized)]
        )
        name = msg["name"]
        if site_is_subsample(msg):
            return
        self.seen.add(name)
        asked = self.job.sites
        if asked is None:
            keep = name not in self.job.draws and not msg["infer"].get("_deterministic")
        else:
            keep = name in asked
        if keep:
            self._keep(msg)

    def _keep(self, msg: Any) -> None:
        name, value, here = msg["name"], msg["value"], self.stop - self.start
        row_dim = self._row_dim(msg, here)
        if self._vectorised:
            value = self._one_draw_in_front(msg, value)
        else:
            value = value[None]
        if row_dim is None and value.dim() > 1 and here and value.shape[1] == here:
            row_dim = 1 - value.dim()  # a deterministic site: its rows come first
        self.values[name] = value
        self.row_dims[name] = row_dim

    def _one_draw_in_front(self, msg: Any, value: Tensor) -> Tensor:
        """A vectorised value without the dimensions of plates that are not around its site."""
        count = self.last - self.first
        inside = [-f.dim for f in msg["cond_indep_stack"] if f.vectorized and f.name != _PLATE]
        empty = (self.nesting or 0) - max(inside, default=0)
        if value.shape[:1] != (count,):
            return value.expand(count, *value.shape)
        while empty > 0 and value.dim() > 1 and value.shape[1] == 1:
            value, empty = value.squeeze(1), empty - 1
        return value


def _mix(*numbers: int) -> int:
    """One seed from several numbers."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ number) * 0xBF58476D1CE4E5B9 % 2**64
        state ^= state >> 31
    return state % 2**63
