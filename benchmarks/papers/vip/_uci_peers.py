"""What else one would fit to UCI: modes of one network, and what is made of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.benchmark import replaced
from benchmarks.papers.livi import _uci_fits
from benchmarks.papers.livi._uci_fits import LAPLACE, Fits, candidates
from benchmarks.shared.uci import build_model, load_split
from benchmarks.shared.uci_fits import Settings
from benchmarks.shared.uci_peers import has_laplace

__all__ = ["PEERS", "SETTINGS", "Peers", "installed"]

#: methods, and what :mod:`benchmarks.papers.livi.livi_uci` calls them
PEERS = {
    "MAP": "map",
    "ensemble of 5": "ensemble of 5",
    "Laplace": "laplace",
    "Laplace, last layer": "laplace, last",
    "MC dropout": "MC dropout",
    "SWAG": "SWAG",
}
SETTINGS: dict[str, Any] = dict(_uci_fits.SETTINGS)
#: what ``--choose`` chose for a set, where that is not the first candidate: how many units are left
#: out; the rate of the path. Of power, protein, wine and yacht here, of the others in livi_uci
_CHOSEN: dict[tuple[str, str], float] = {
    ("MC dropout", "wine"): 0.05,
    **{("SWAG", name): 1e-2 for name in ("boston", "protein", "wine")},
    **{("SWAG", name): 1e-4 for name in ("energy", "power", "yacht")},
}


def installed(methods: Sequence[str]) -> list[str]:
    """Those that need no package that is not there; it is said which do."""
    missing = [name for name in methods if PEERS.get(name) in LAPLACE and not has_laplace()]
    if missing:
        print(f"no rows of {missing}: pip install laplace-torch")
    return [name for name in methods if name not in missing]


def choice(method: str, name: str) -> Settings:
    """The settings of a method for a set."""
    first = candidates(PEERS[method])[0]
    if (method, name) not in _CHOSEN:
        return first
    chosen = _CHOSEN[method, name]
    if method == "MC dropout":
        return replace(first, dropout=chosen)
    return replace(first, rate=chosen)


class Peers:
    """
    One split with one seed; its modes are sought once.

    :param Namespace arguments: of vip_uci.
    :param str name: of the set.
    :param int index: of the split.
    :param int seed: of every fit.
    :param dict settings: those of :data:`SETTINGS`, or shorter ones.
    """

    def __init__(
        self, arguments: Namespace, name: str, index: int, seed: int, settings: dict[str, Any]
    ) -> None:
        self.name, self.settings, self.all = name, settings, arguments.choose
        options = {"validation": arguments.choose, "max_rows": arguments.max_rows}
        split = load_split(arguments.data_root, name, index, **options)
        self.num_rows = len(split.x)
        model = build_model(split.x.shape[1], self.num_rows)
        dtype = torch.float64 if arguments.double else torch.float32
        self.fits = Fits(model, split, seed, arguments.quiet, dtype)

    def rows(self, method: str) -> Iterator[dict[str, Any]]:
        """
        :param str method: one of :data:`PEERS`.
        :returns: scores with the settings for this set, or one row for each candidate.
        """
        known = PEERS[method]
        with replaced(_uci_fits.SETTINGS, self.settings):
            for settings in candidates(known) if self.all else [choice(method, self.name)]:
                found = self.fits.scores(known, settings)
                yield {
                    "steps": settings.num_steps,
                    "rows": self.num_rows,
                    "settings": asdict(settings),
                    "rmse": found["rmse"],
                    "nll": -found["log_likelihood"],
                    "coverage": found["coverage"],
                    "cpu_seconds": found["cpu_seconds"],
                }
