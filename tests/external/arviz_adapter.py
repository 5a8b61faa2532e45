"""
Runs the private ArviZ adapter, loaded by its path, on saved groups: needs NumPy and ArviZ alone.

``python arviz_adapter.py ADAPTER FOLDER`` reads ``groups.npz`` and ``groups.json`` there and writes
what ArviZ made of them to ``report.npz`` and ``report.json``. Not a test itself: it is run
by ``test_arviz_lines.py``, in this interpreter and in one that has the other line of ArviZ.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path

import numpy as np


def load_adapter(path):
    spec = importlib.util.spec_from_file_location("adapter", path)
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    return adapter


def describe(data, groups):
    """Arrays by "group:variable", dimension names likewise, and labels by "group:dimension"."""
    arrays, dims, coords = {}, {}, {}
    for group, variables in groups.items():
        if set(data[group].data_vars) != set(variables):
            raise ValueError(f"{group}: {sorted(data[group].data_vars)}, not {sorted(variables)}")
        for name in variables:
            variable = data[group][name]
            arrays[f"{group}:{name}"] = np.asarray(variable.values)
            dims[f"{group}:{name}"] = list(variable.dims)
        for dim in data[group].dims:
            coords[f"{group}:{dim}"] = np.asarray(data[group].coords[dim].values).tolist()
    return arrays, dims, coords


def read_attrs(data, names):
    """By the recipe that to_arviz documents, in both places."""
    return [
        {name: str(attrs[name]) for name in names}
        for attrs in (data.attrs, data["posterior"].attrs)
    ]


def run(adapter_path, folder):
    adapter = load_adapter(adapter_path)
    arviz = adapter.import_arviz()
    told = json.loads((folder / "groups.json").read_text())
    with np.load(folder / "groups.npz") as file:
        groups = {
            group: {name: file[f"{group}:{name}"] for name in names}
            for group, names in told["groups"].items()
        }
    data = adapter.make_inference_data(groups, told["coords"], told["dims"], told["attrs"])
    arrays, dims, coords = describe(data, groups)
    report = {
        "version": arviz.__version__,
        "type": type(data).__name__,
        "imported": sorted({"torch", "pyro"} & set(sys.modules)),
        "dims": dims,
        "coords": coords,
        "attrs": read_attrs(data, told["attrs"]),
        "elpd": {},
        "round_trip": False,
        "khat": [adapter.psis_khat(ratios) for ratios in pareto_ratios()],
        "restarts": restarts(adapter, arviz),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about Pareto shapes
        for name in told["groups"]["log_likelihood"]:
            loo = arviz.loo(data, var_name=name)
            report["elpd"][name] = float(loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo)
    if importlib.util.find_spec("h5netcdf") and importlib.util.find_spec("h5py"):
        path = str(folder / "data.nc")
        data.to_netcdf(path)
        read = arviz.from_netcdf(path)
        report["round_trip"] = {
            "equal": equal(arrays, describe(read, groups)[0]),
            "dims": describe(read, groups)[1],
            "coords": describe(read, groups)[2],
            "attrs": read_attrs(read, told["attrs"]),
        }
    return report, arrays


def pareto_ratios():
    """Log-ratios whose tails have the shapes 0.3 and 0.9, and some that are bounded."""
    uniform = (np.arange(2000) + 0.5) / 2000
    return [-0.3 * np.log(uniform), -0.9 * np.log(uniform), uniform]


def restarts(adapter, arviz):
    """What to_arviz makes of two guides; one of them selected; loo and plots of it."""
    rng = np.random.default_rng(0)
    groups = {
        "posterior": {"mu": rng.normal(size=(1, 200, 2))},
        "posterior_predictive": {"y": rng.normal(size=(1, 200, 2, 9))},
        "log_likelihood": {"y": rng.normal(size=(1, 200, 2, 9))},
        "observed_data": {"y": rng.normal(size=9)},
    }
    dims = {group: {"y": ["restart", "data"]} for group in ("posterior_predictive",)}
    dims["log_likelihood"] = dims["posterior_predictive"]
    dims |= {"posterior": {"mu": ["restart"]}, "observed_data": {"y": ["data"]}}
    coords = {"restart": np.arange(2), "data": np.arange(9)}
    data = adapter.make_inference_data(groups, coords, dims, {"num_restarts": 2})
    found = {"dims": list(data["log_likelihood"]["y"].dims), "elpd": [], "plots": []}
    for number in range(2):
        one = data.sel(restart=number)
        np.testing.assert_array_equal(
            one["log_likelihood"]["y"].values, groups["log_likelihood"]["y"][:, :, number]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            loo = arviz.loo(one, var_name="y")
        found["elpd"].append(float(loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo))
    if importlib.util.find_spec("matplotlib"):
        import matplotlib

        matplotlib.use("Agg")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ArviZ about Matplotlib and Pareto shapes
            adapter.plot_predictive_check(one)
            adapter.plot_loo_pit(one, "y")
        found["plots"] = ["predictive check", "LOO-PIT"]
    return found


def equal(one, other):
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) and one[name].dtype == other[name].dtype
        for name in one
    )


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    report, arrays = run(sys.argv[1], folder)
    (folder / "report.json").write_text(json.dumps(report))
    np.savez(folder / "report.npz", **arrays)
