r"""
Simulation-based calibration of a variational fit.

References

- `Validating Bayesian Inference Algorithms with Simulation-Based Calibration`, S. Talts,
  M. Betancourt, D. Simpson, A. Vehtari, A. Gelman, 2018.
- `Yes, but Did It Work?: Evaluating Variational Inference`, Y. Yao, A. Vehtari, D. Simpson,
  A. Gelman, ICML 2018.
- `Simulation-Based Calibration Checking for Bayesian Computation: The Choice of Test Quantities
  Shapes Sensitivity`, M. Modrak and others, Bayesian Analysis, 2023.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import (
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_model,
    check_names,
    shown,
)
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._progress import progress_bar
from pyro_implicit._warn import warn
from pyro_implicit.diagnostics._data_places import find_places
from pyro_implicit.diagnostics._own_data import warning_of_own_data
from pyro_implicit.diagnostics._significance import SIGNIFICANCE_LEVEL
from pyro_implicit.diagnostics._simulation import (
    Quantity,
    Simulation,
    accepts,
    isolated,
    simulate,
)
from pyro_implicit.diagnostics._uniformity import (
    asymmetry_p_values,
    num_bins,
    uniformity_p_values,
)
from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta, run_model
from pyro_implicit.handlers.rows.row_slices import number_of_rows

__all__ = ["Calibration", "vsbc"]

_EXPECTED_FIT = "a function from the data, {site: value}, to a guide or draws"
_SPREAD_OF_SQUARES = 0.8**0.5  # deviation of a uniform variable's square, in units of its mean


@dataclass(frozen=True)
class Calibration:
    """
    Ranks of true parameters among draws of the fits to data made with them.

    :param dict ranks: by site or quantity, the rank of each true value among the draws,
        ``0 ... num_samples``, shape ``(num_simulations, *shape)``.
    :param int num_samples: draws.
    """

    ranks: dict[str, Tensor]
    num_samples: int

    @property
    def num_simulations(self) -> int:
        """Number of simulations."""
        return len(next(iter(self.ranks.values())))

    @property
    def bins(self) -> int:
        """Bins of the chi-square test, and of the histograms."""
        return num_bins(self.num_samples + 1, self.num_simulations)

    def uniformity(self) -> dict[str, Tensor]:
        """
        P-values of a chi-square test that ranks are uniform.

        :returns: by site or quantity, one for each of its entries: of the shape of one draw of it.
        """
        return {
            name: uniformity_p_values(ranks, self.num_samples + 1, self.bins)
            for name, ranks in self.ranks.items()
        }

    def asymmetry(self) -> dict[str, Tensor]:
        """
        P-values of a test that the mean rank is in the middle.

        :returns: by site or quantity, one for each of its entries: of the shape of one draw of it.
        """
        return {
            name: asymmetry_p_values(ranks, self.num_samples + 1)
            for name, ranks in self.ranks.items()
        }

    @property
    def p_value(self) -> float:
        """The smallest p-value of all times their number (Bonferroni), at most 1."""
        every = [
            p.reshape(-1) for tests in (self.uniformity(), self.asymmetry()) for p in tests.values()
        ]
        together = torch.cat(every)
        return min(1.0, float(together.min()) * len(together))

    def __str__(self) -> str:
        verdict, p_value = "nothing found against the fits", self.p_value
        if p_value < SIGNIFICANCE_LEVEL:
            uniform, middle = self.uniformity(), self.asymmetry()
            lowest = {name: _lowest(uniform[name], middle[name]) for name in self.ranks}
            name, (_, entry) = min(lowest.items(), key=lambda one: one[1])
            shape = self._shape(self.ranks[name].reshape(self.num_simulations, -1)[:, entry])
            verdict = f"the fits are not the posterior; most of all {name!r} is {shape}"
        return (
            f"ranks of {len(self.ranks)} quantities in {self.num_simulations} simulations, among "
            f"{self.num_samples} draws each; smallest p-value (Bonferroni) {p_value:.2g}: {verdict}"
        )

    def _shape(self, ranks: Tensor) -> str:
        """What the ranks of one entry, ``(num_simulations,)``, say of the fits."""
        ranks = ranks.double()
        variance = ((self.num_samples + 1) ** 2 - 1) / 12.0  # of uniform ones
        shift = (float(ranks.mean()) - self.num_samples / 2) / variance**0.5
        excess = (float(ranks.var()) / variance - 1) / _SPREAD_OF_SQUARES
        if abs(shift) > abs(excess):
            return "too low" if shift > 0 else "too high"
        return "too narrow" if excess > 0 else "too wide"


def _lowest(*tests: Tensor) -> tuple[float, int]:
    """The smallest p-value of some tests of one quantity, and its entry."""
    value, entry = torch.stack([p.reshape(-1) for p in tests]).amin(0).min(0)
    return float(value), int(entry)


def vsbc(
    model: Callable[..., Any],
    fit: Callable[[dict[str, Tensor]], Any],
    *args: Any,
    observed: Sequence[str] | None = None,
    num_simulations: int = 200,
    num_samples: int = 99,
    quantities: Mapping[str, Quantity] | None = None,
    num_processes: int = 1,
    start_method: str | None = None,
    seed: int = 0,
    progress: bool = True,
    **kwargs: Any,
) -> Calibration:
    r"""
    Tests fits to simulated data: variational simulation-based calibration.

    Draws parameters and data from the model, fits the data, and ranks the parameters among draws of
    the fit, many times. If the fit is the posterior, ranks are uniform (Talts et al. 2018). A U
    shape says too narrow, a hump too wide, a slope biased (Yao et al. 2018). **It needs draws
    alone, and no reference.**

    What it says is about the *procedure*, on average over data sets that the prior makes, and not
    about the fit of one data set. Use priors that make data sets like yours, or keep those that are
    like yours out of more. It is blind to a fit that ignores the data and returns the prior; a
    quantity that looks at the data, such as the log-likelihood, sees that (Modrak et al. 2023).

    Each simulation has a seed of its own, an empty parameter store, and leaves the caller's store
    and random numbers as they were: the result does not depend on the number of processes.

    Example::

        def fit(data):
            guide = HyperNetworkGuide(model)
            svi = SVI(model, guide, Adam({"lr": 0.01}), LinearisedELBO(num_particles=8))
            for _ in range(1000):
                svi.step(x, data["y"])
            return guide

        calibration = vsbc(model, fit, x, observed=["y"], num_processes=4)
        plots.plot_ranks(calibration)

    Sources:

    - `Validating Bayesian Inference Algorithms with Simulation-Based Calibration`, Talts et al.,
      2018.
    - `Yes, but Did It Work?: Evaluating Variational Inference`, Yao et al., ICML 2018.
    - `Simulation-Based Calibration Checking for Bayesian Computation: The Choice of Test Quantities
      Shapes Sensitivity`, Modrak et al., Bayesian Analysis, 2023.

    :param callable model: a Pyro model without improper priors.
    :param callable fit: from the data, ``{site: value}``, to a guide, or to draws by site, at least
        ``num_samples`` independent ones.
    :param args: arguments of the model and of the guide's draws. Where the data are among them (as
        they are, or a view such as a column), draws are made with the simulated ones in their
        place, and a parameter with the name of a data site that is left out gets them, so that a
        guide that looks at the data sees those that it was fitted to.
    :param observed: names of the sites that are data; by default those that the model observes when
        called with ``args``.
    :param int num_simulations: fits, at least 10.
    :param int num_samples: draws that a value is ranked among; ``num_samples + 1`` should have many
        divisors, for the bins: 99 or 199.
    :param dict quantities: further numbers to rank, by name: functions of the latents' values
        ``{site: value}`` and of the data.
    :param int num_processes: fits at a time. With 1 nothing is started.
    :param str start_method: of the processes, ``"fork"`` or ``"spawn"``; by default ``"fork"``
        where there is such a thing and CUDA is not in use. With ``"spawn"`` model and fit must be
        importable (functions of a module).
    :param int seed: of all simulations.
    :param bool progress: show a progress bar.
    :param kwargs: keyword arguments of the model.
    :returns: ranks, p-values; see :func:`pyro_implicit.diagnostics.plots.plot_ranks`.
    :raises ArgumentError: for numbers outside of these, no name of data, or a name of a quantity
        that is taken; for a fit that takes no data.
    :raises NonFiniteError: for arguments that are NaN, where the model makes a parameter of them,
        and for a quantity that is NaN.
    :raises ShapeError: for data without rows, and for a quantity of other shapes at other values.
    :raises SiteError: if nothing is observed, for names of sites that the model does not have, or
        if a guide may look at data that the model computes from its arguments (a logarithm).
    :warns UserWarning: if the model makes a distribution of the data of these data (an
        autoregression on its argument), so that what is simulated is not what is fitted.
    """
    check_count("num_simulations", num_simulations, minimum=10)
    check_count("num_samples", num_samples)
    check_count("num_processes", num_processes)
    seed = check_count("seed", seed, 0, why=" (a seed)")
    check_model(model)
    check_misspelt(vsbc, model, kwargs)
    check_callable("fit", fit, _EXPECTED_FIT)
    if not accepts(fit, ({},), {}):
        raise ArgumentError(
            f"fit={shown(fit)} cannot be called with one argument; expected {_EXPECTED_FIT}."
        )
    check_flag("progress", progress)
    _check_quantities(quantities)
    if start_method is not None:
        check_choice("start_method", start_method, multiprocessing.get_all_start_methods())
    if num_bins(num_samples + 1, num_simulations) < 2:
        raise ArgumentError(
            f"num_samples={num_samples}: its {num_samples + 1} ranks cannot be put into bins of "
            "equal size; write num_samples=99"
        )
    number_of_rows(args, kwargs)  # which are some
    with isolated(seed, -1), explained_errors(args, kwargs):
        if observed is not None:
            names = check_names("observed", observed)
            if not names:
                raise ArgumentError("observed is empty; expected names of data, observed=['y'].")
        else:
            names = _observed_sites(model, args, kwargs)
        values = simulate(model, args, kwargs, names)
        places = find_places(model, args, kwargs, {name: values[name] for name in names})
        said = warning_of_own_data(model, places, values)
    if said:
        warn(said)
    job = Simulation(model, fit, places, names, num_samples, dict(quantities or {}), seed)
    runs = _run(job, num_simulations, num_processes, start_method)
    found = list(progress_bar(runs, shown=progress, total=num_simulations, desc="vsbc"))
    return Calibration({n: torch.stack([one[n] for one in found]) for n in found[0]}, num_samples)


def _check_quantities(quantities: Any) -> None:
    kind = "functions of values and data by name, {'mean': lambda values, data: ...}"
    check_instance("quantities", quantities, (Mapping, type(None)), kind)
    check_names("quantities", list(quantities or ()))
    for name, function in (quantities or {}).items():
        check_callable(f"quantities[{name!r}]", function, kind)


def _observed_sites(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    """What the model observes with these arguments."""
    names: list[str] = []

    def visit(site: Any) -> None:
        if site["is_observed"] and not is_auxiliary(site) and not is_delta(site):
            names.append(site["name"])

    run_model(model, args, kwargs, visit)
    if not names:
        raise SiteError(
            "the model observes nothing with these arguments: say which sites are data, e.g. "
            "observed=['y']"
        )
    return tuple(names)


def _run(
    job: Simulation, num_simulations: int, num_processes: int, start_method: str | None
) -> Iterator[dict[str, Tensor]]:
    """The simulations in order, in this process or in several."""
    numbers: Iterable[int] = range(num_simulations)
    if num_processes == 1:
        yield from map(job, numbers)
        return
    methods = multiprocessing.get_all_start_methods()
    if start_method is None:
        can_fork = "fork" in methods and not torch.cuda.is_initialized()
        start_method = "fork" if can_fork else "spawn"
    context = multiprocessing.get_context(start_method)
    # the job goes to each process once, at its start: by fork it need not be picklable
    with ProcessPoolExecutor(
        num_processes, mp_context=context, initializer=_set_job, initargs=(job,)
    ) as pool:
        for found in pool.map(_one_of_job, numbers):
            yield {name: torch.as_tensor(ranks) for name, ranks in found.items()}


_JOB_OF_WORKER: Simulation | None = None  # in each process of a pool


def _set_job(job: Simulation) -> None:
    global _JOB_OF_WORKER
    _JOB_OF_WORKER = job
    torch.set_num_threads(1)  # threads of a parent do not survive a fork, and processes are enough


def _one_of_job(number: int) -> dict[str, Any]:
    # as arrays: tensors would be passed by shared memory, of which there is little
    return {name: ranks.cpu().numpy() for name, ranks in _JOB_OF_WORKER(number).items()}  # type: ignore[misc]
