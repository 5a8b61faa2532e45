"""Checks of a fitted guide that need draws alone."""

from pyro_implicit.diagnostics.c2st import C2ST, c2st
from pyro_implicit.diagnostics.entropy_report import EntropyReport, entropy_report
from pyro_implicit.diagnostics.khat import KHat, khat
from pyro_implicit.diagnostics.log_density import LogDensity, log_density
from pyro_implicit.diagnostics.stein_discrepancy import SteinDiscrepancy, stein_discrepancy
from pyro_implicit.diagnostics.vsbc import Calibration, vsbc

__all__ = [
    "C2ST",
    "Calibration",
    "EntropyReport",
    "KHat",
    "LogDensity",
    "SteinDiscrepancy",
    "c2st",
    "entropy_report",
    "khat",
    "log_density",
    "stein_discrepancy",
    "vsbc",
]
