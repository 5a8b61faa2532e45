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
