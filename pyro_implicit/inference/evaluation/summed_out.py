"""Exact log densities in an evaluation whose model has discrete latents to sum out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_implicit._few import few_of
from pyro_implicit.exceptions import SiteError
from pyro_implicit.inference.evaluation.evaluation_job import EvaluationJob
from pyro_implicit.inference.log_predictive_density import mean_densities

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
    try:
        exact = mean_densities(job.model, guide, job.args, job.kwargs, job.num_samples, seed)
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
    return [_of_joined(rows, exact)]


def _of_joined(rows: list[dict[str, Tensor]], exact: Tensor) -> dict[str, Tensor]:
    """Each datum is a row, by whose observations it is known."""
    row, printed = (torch.cat([one[name] for one in rows]) for name in ("row", "fingerprint"))
    numbers, place = row.unique(return_inverse=True)
    prints = printed.new_zeros(len(numbers)).index_add_(0, place, printed)
    if len(numbers) != len(exact):
        numbers = torch.arange(len(exact), device=exact.device)
        prints = prints.sum().expand(len(exact))
    return {"log_density": exact, "row": numbers, "fingerprint": prints}
