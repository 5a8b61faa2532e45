"""Exact log densities in an evaluation whose model has discrete latents to sum out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_implicit._few import few_of
from pyro_implicit.exceptions import SiteError
from pyro_implicit.inference.evaluation.evaluation_job import EvaluationJob
from pyro_implicit.inference.log_predictive_density import DataOfPlates, Noted, mean_densities

__all__ = ["with_exact_densities"]


def with_exact_densities(
    job: EvaluationJob, guide: Any, seed: int, rows: list[dict[str, Tensor]]
) -> list[dict[str, Tensor]]:
    """
    Puts densities with the discrete latents summed out in the place of those at draws of them.

    What the latents join is one datum: a sequence of a hidden Markov model, whose times were data
    of their own. Sites then have no density by themselves, unless there is only one.

    :param EvaluationJob job: an evaluation that has ended; a note says what its scores are.
    :param guide: the guide.
    :param int seed: of the draws.
    :param rows: of each group of observed sites in the same plates what each datum has.
    :returns: of all data what each has.
    """
    listed = few_of([repr(name) for name in sorted(job.summed_out)])
    noted = Noted()
    try:
        exact = mean_densities(job.model, guide, job.args, job.kwargs, job.num_samples, seed, noted)
    except SiteError as error:
        job.notes[
            f"discrete latents {listed} were drawn given the others, not summed out: log densities "
            f"are noisy and low. They cannot be summed out: {error}"
        ] = None
        return rows
    job.notes[
        f"log densities have the discrete latents {listed} summed out; other scores are of draws "
        "of these given the others"
    ] = None
    alone = next(iter(job.sites.values())) if len(job.sites) == 1 else None
    if alone is not None and len(rows) == 1 and len(rows[0]["row"]) == len(exact):
        alone.exact = exact
        return [{**rows[0], "log_density": exact}]
    for site in job.sites.values():
        site.has_density = False
    return _by_plates(job, rows, exact, noted)


def _by_plates(
    job: EvaluationJob, rows: list[dict[str, Tensor]], exact: Tensor, noted: Noted
) -> list[dict[str, Tensor]]:
    """Of the data in the same plates what each has: those that no sum joins are what they were."""
    known = {
        key.plates: one
        for key, one in zip(job.joint, rows, strict=True)
        if not key.has_undeclared_rows
    }
    sizes = [data.shape.numel() for data in noted.data]
    parts = list(zip(noted.data, noted.kept.split(sizes), strict=True))
    alike = {
        data.key
        for data, kept in parts
        if data.key in known and len(known[data.key]["row"]) == int(kept.sum())
    }
    rest = [one for key, one in zip(job.joint, rows, strict=True) if key.plates not in alike]
    found, first = [], -1 - sum(len(one["row"]) for one in rows)
    densities = exact.split([int(kept.sum()) for _, kept in parts])
    for (data, kept), density in zip(parts, densities, strict=True):
        places = known[data.key] if data.key in alike else _joined(job, rest, data, kept, first)
        first -= len(density)
        found.append({**places, "log_density": density})
    return found


def _joined(
    job: EvaluationJob,
    rest: list[dict[str, Tensor]],
    data: DataOfPlates,
    kept: Tensor,
    first: int,
) -> dict[str, Tensor]:
    """The rows of data that a sum joins, known by their observations; each its own without rows."""
    where = rest or [
        {"row": kept.nonzero()[:0, 0], "fingerprint": kept.new_zeros(0, dtype=torch.long)}
    ]
    row, printed = (torch.cat([one[name] for one in where]) for name in ("row", "fingerprint"))
    dim = next((data.dims[name] for name in sorted(job.row_plates & data.dims.keys())), None)
    if dim is None:
        numbers = first - torch.arange(int(kept.sum()), device=row.device)
        return {"row": numbers, "fingerprint": printed.sum().expand(len(numbers))}
    count = data.shape[dim]
    prints = printed.new_zeros(count).index_add_(0, row.clamp(min=0), printed * (row >= 0))
    numbers = torch.arange(count, device=row.device).reshape(-1, *[1] * (-1 - dim))
    numbers = numbers.expand(data.shape).flatten()[kept]
    return {"row": numbers, "fingerprint": prints[numbers]}
