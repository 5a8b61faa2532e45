"""The kernels by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro_implicit._checks import shown
from pyro_implicit.chains.hmc import HMC
from pyro_implicit.chains.kernel import Kernel
from pyro_implicit.chains.mclmc import MCLMC
from pyro_implicit.exceptions import ArgumentError

__all__ = ["kernel_from", "make_kernel"]

_KERNELS_BY_NAME: dict[str, Any] = {"mclmc": MCLMC, "hmc": HMC}


def make_kernel(kernel: Any) -> Kernel:
    """
    A kernel from its name.

    :param kernel: ``"mclmc"``, ``"hmc"``, or a kernel with settings of its own.
    :returns: the kernel.
    :raises ArgumentError: for anything else.
    """
    if isinstance(kernel, str) and kernel in _KERNELS_BY_NAME:
        made: Kernel = _KERNELS_BY_NAME[kernel]()
        return made
    if isinstance(kernel, Kernel) and not isinstance(kernel, type):
        return kernel
    raise ArgumentError(
        f"kernel={shown(kernel)}; expected 'mclmc', 'hmc', or one with settings, such as "
        "MCLMC(energy_error=1e-3) or HMC(target_accept=0.9) of pyro_implicit.chains."
    )


def kernel_from(settings: Mapping[str, Any]) -> Kernel:
    """
    A kernel from its settings.

    :param dict settings: of :meth:`~pyro_implicit.chains.kernel.Kernel.describe`.
    :returns: the kernel.
    """
    given = dict(settings)
    made: Kernel = _KERNELS_BY_NAME[given.pop("kernel")](**given)
    return made
