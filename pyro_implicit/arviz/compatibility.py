"""
The one place that knows which line of ArviZ is installed.

ArviZ 0.x gives an ``InferenceData``, ArviZ >= 1 an ``xarray.DataTree``; the same arrays, dimension
names, coordinates and attributes go into both. Only NumPy is needed to import this file: ArviZ is
imported where it is used, because the import of 0.23 warns and writes to the home directory.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

__all__ = [
    "arviz_line",
    "import_arviz",
    "loo_by_datum",
    "make_inference_data",
    "plot_loo_pit",
    "plot_predictive_check",
    "psis_khat",
]


def import_arviz() -> ModuleType:
    """
    Imports ArviZ without the announcement that 0.23 makes on import.

    :returns: the module.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        import arviz
    return arviz


def arviz_line(arviz: ModuleType) -> int:
    """
    The line of ArviZ that a version belongs to.

    :param arviz: the module.
    :returns: 0 for ``InferenceData``, 1 for ``DataTree`` (any later version).
    """
    return min(int(arviz.__version__.split(".")[0]), 1)


def make_inference_data(
    groups: Mapping[str, Mapping[str, np.ndarray]],
    coords: Mapping[str, Sequence[Any] | np.ndarray],
    dims: Mapping[str, Mapping[str, Sequence[str]]],
    attrs: Mapping[str, str | int | float],
) -> Any:
    """
    Builds what the installed ArviZ works with.

    Attributes are put on the whole and on every group, so that ``data.attrs["guide"]`` and
    ``data["posterior"].attrs["guide"]`` read the same in both lines and after a netCDF round trip.
    Groups are built one by one with :func:`arviz.from_dict`: a variable may have other dimensions
    in one group than in the next.

    :param dict groups: group name to variable name to array. Arrays are ``(chain, draw, ...)``,
        except those of ``observed_data`` and ``constant_data``, which have no sample dimensions.
    :param dict coords: dimension name to its labels.
    :param dict dims: group name to variable name to the names of its dimensions after the sample
        dimensions.
    :param dict attrs: plain values by name.
    :returns: ``arviz.InferenceData`` (ArviZ 0.x) or ``xarray.DataTree`` (ArviZ >= 1).
    """
    arviz = import_arviz()
    line = arviz_line(arviz)
    all_attrs = {**attrs, "arviz_version": str(arviz.__version__)}
    datasets = {}
    for name, variables in groups.items():
        if "data" in name:  # no line of ArviZ may decide alone what a scalar becomes
            variables = {key: np.atleast_1d(value) for key, value in variables.items()}
        datasets[name] = _dataset(arviz, line, name, variables, coords, dims.get(name, {}))
        datasets[name].attrs.update(all_attrs)
    if line == 0:
        return arviz.InferenceData(attrs=dict(all_attrs), **datasets)
    import xarray

    tree = xarray.DataTree.from_dict(datasets)
    tree.attrs.update(all_attrs)
    return tree


def _dataset(
    arviz: ModuleType,
    line: int,
    group: str,
    variables: Mapping[str, np.ndarray],
    coords: Mapping[str, Sequence[Any] | np.ndarray],
    dims: Mapping[str, Sequence[str]],
) -> Any:
    """One group as an ``xarray.Dataset``, by the convention of the installed line."""
    labels = {
        "coords": {name: np.asarray(values) for name, values in coords.items()},
        "dims": {name: list(names) for name, names in dims.items()},
    }
    if line == 0:
        return arviz.from_dict(**{group: dict(variables)}, **labels)[group]
    return arviz.from_dict({group: dict(variables)}, **labels)[group].to_dataset()


def psis_khat(log_ratios: np.ndarray) -> float:
    """
    Fits the tail of importance ratios by ArviZ.

    :param numpy.ndarray log_ratios: logarithms of importance ratios of independent draws, shape
        ``(num_samples,)``.
    :returns: the shape of the generalised Pareto distribution that ArviZ fits to their upper tail.
    """
    arviz = import_arviz()
    if arviz_line(arviz) == 0:
        return float(arviz.psislw(log_ratios)[1])
    from arviz_stats.base import array_stats

    # this line takes pointwise log-likelihoods, whose negatives are the log-ratios of LOO
    return float(array_stats.psislw(-log_ratios)[1])


def loo_by_datum(data: Any) -> np.ndarray:
    """
    Calls ArviZ's leave-one-out cross-validation.

    :param data: from ``to_arviz``, with one observed site.
    :returns: the log predictive density of each datum given all others.
    """
    arviz = import_arviz()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        found = arviz.loo(data, pointwise=True)
    name = "loo_i" if arviz_line(arviz) == 0 else "elpd_i"
    return np.asarray(getattr(found, name))


def plot_predictive_check(data: Any, **options: Any) -> Any:
    """
    Calls ArviZ's plot of posterior predictive draws, under the name that it has there.

    :param data: from ``to_arviz``.
    :param options: of ``arviz.plot_ppc`` (ArviZ 0.x) or ``arviz.plot_ppc_dist`` (ArviZ >= 1).
    :returns: what that returns.
    """
    arviz = import_arviz()
    plot = arviz.plot_ppc if arviz_line(arviz) == 0 else arviz.plot_ppc_dist
    return plot(data, **options)


def plot_loo_pit(data: Any, var_name: str, **options: Any) -> Any:
    """
    Calls ArviZ's plot of leave-one-out probability integral transforms.

    :param data: from ``to_arviz``.
    :param str var_name: the observed site.
    :param options: of ``arviz.plot_loo_pit``.
    :returns: what that returns.
    """
    arviz = import_arviz()
    if arviz_line(arviz) == 0:
        return arviz.plot_loo_pit(data, y=var_name, **options)
    return arviz.plot_loo_pit(data, var_names=[var_name], **options)
