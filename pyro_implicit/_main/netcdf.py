"""netCDF files that are made in memory."""

from __future__ import annotations

import io
from typing import Any

__all__ = ["netcdf_bytes"]


def netcdf_bytes(data: Any) -> bytes:
    """
    The file that ``data.to_netcdf`` writes, in memory.

    HDF5 crashes the process (segmentation fault) where the disk is full while it closes a file;
    bytes can be written with an error that can be told.

    :param data: ``arviz.InferenceData`` (ArviZ 0.x) or ``xarray.DataTree`` (ArviZ >= 1).
    :returns: the file's content, numbers compressed.
    """
    import h5netcdf
    import xarray
    from xarray.backends import H5NetCDFStore

    is_tree = isinstance(data, xarray.DataTree)
    groups = {name: data[name] for name in (data.children if is_tree else data.groups())}
    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as root:
        xarray.Dataset(attrs=data.attrs).dump_to_store(H5NetCDFStore(root))
        for name, group in groups.items():
            dataset = group.to_dataset() if is_tree else group
            numeric = [n for n, v in dataset.variables.items() if v.dtype.kind in "biufc"]
            encoding: Any = {n: {"zlib": True} for n in numeric}
            dataset.dump_to_store(H5NetCDFStore(root.create_group(name)), encoding=encoding)
    return buffer.getvalue()
