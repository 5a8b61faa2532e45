"""Molecules of the Clean Energy Project as sequences of symbols, and a network that reads them."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["CELLS", "LastGated", "LastState", "Molecules", "load_molecules"]


@dataclass(frozen=True)
class Molecules:
    """One-hot symbols [N, L, V], the string at the end; standardised targets [N]; their scale."""

    x: Tensor
    y: Tensor
    y_scale: float

    def part(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """These rows."""
        return self.x[start:stop], self.y[start:stop]


def load_molecules(data_root: Path, count: int, num_train: int, seed: int) -> Molecules:
    """
    :param int count: molecules, drawn at random.
    :param int num_train: of these, by which the targets are standardised.
    """
    path = data_root / "cep.csv.gz"
    if not path.is_file():
        raise SystemExit(
            f"error: there is no cep.csv.gz in {data_root}; say where it is with --data-root or "
            "PYRO_IMPLICIT_DATA"
        )
    with gzip.open(path, "rt") as lines:
        rows = list(csv.reader(lines))[1:]
    if count > len(rows):
        raise SystemExit(f"error: {count} molecules were asked for, of {len(rows)}")
    symbols = sorted({symbol for text, _ in rows for symbol in text})
    chosen = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))[:count]]
    length = max(len(text) for text, _ in chosen)
    x = torch.zeros(count, length, len(symbols))
    for row, (text, _) in enumerate(chosen):
        for place, symbol in enumerate(text, start=length - len(text)):
            x[row, place, symbols.index(symbol)] = 1.0
    y = torch.tensor([float(value) for _, value in chosen])
    scale = y[:num_train].std().item()
    return Molecules(x, (y - y[:num_train].mean()) / scale, scale)


class LastState(nn.Module):
    """
    A long short-term memory; the output after the last symbol.

    :param int num_symbols: V.
    :param int hidden: its units.
    """

    def __init__(self, num_symbols: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(num_symbols, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """
        :param torch.Tensor x: shape ``(N, L, V)``.
        :returns: shape ``(N, 1)``.
        """
        return self.head(self.cell(x)[0][:, -1])


class LastGated(nn.Module):
    """
    A recurrent network with one gate, ``h + f (tanh(C h + i) - h)`` with ``f = sigmoid(U h + j)``,
    and ``i`` and ``j`` linear in the symbol; the output after the last symbol. It has half the
    weights of the long short-term memory, and vmap evaluates it for several draws of them.

    :param int num_symbols: V.
    :param int hidden: its units.
    """

    def __init__(self, num_symbols: int, hidden: int) -> None:
        super().__init__()
        self.symbols = nn.Linear(num_symbols, 2 * hidden)
        self.gate = nn.Linear(hidden, hidden, bias=False)
        self.candidate = nn.Linear(hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """
        :param torch.Tensor x: shape ``(N, L, V)``.
        :returns: shape ``(N, 1)``.
        """
        of_gate, of_candidate = self.symbols(x.transpose(0, 1)).chunk(2, -1)
        state = torch.zeros_like(of_gate[0])
        gate, candidate = self.gate.weight.mT, self.candidate.weight.mT
        # unbound at once: the gradient of an index is as large as all symbols
        for one, other in zip(of_gate.unbind(0), of_candidate.unbind(0), strict=True):
            opened = torch.sigmoid(torch.addmm(one, state, gate))
            new = torch.tanh(torch.addmm(other, state, candidate))
            state = torch.lerp(state, new, opened)
        return self.head(state)


#: by the name of --cell
CELLS = {"lstm": LastState, "gated": LastGated}
