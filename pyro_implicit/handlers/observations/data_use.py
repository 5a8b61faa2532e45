"""What model and guide do with their data: whether anything is observed, and at which scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_implicit.handlers.pointwise import is_auxiliary
from pyro_implicit.handlers.rows.row_slices import is_cut

__all__ = ["CALL_WITH_BATCHES", "DataUse"]

#: how messages write a fit to data in batches
CALL_WITH_BATCHES = "fit(model, guide, batches=DataLoader(TensorDataset(x, y), 64))"

_MAX_SITES_NAMED = 5
_MAX_BIAS_IN_SDS = 0.25  # of the posterior, by which its mean may be off without a word


class DataUse(Messenger):
    """
    Notes the sites of model and guide as they pass, and says what looks forgotten.

    Data that are not handed over make a latent of ``pyro.sample("y", ..., obs=y)``, and a minibatch
    in a plate of its own size counts as all data; neither raises an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._latents: dict[str, frozenset[str]] = {}  # by name, their plates
        self._observed: dict[str, frozenset[str]] = {}
        self._has_factor = self._is_scaled = False
        #: whether a plate of the data shows some of its rows only
        self.is_cut = False
        self._cut: dict[str, tuple[int, int]] = {}  # by plate, all of its rows and those shown

    def _pyro_post_sample(self, msg: Any) -> None:
        self.note(msg)

    def note(self, site: Any) -> None:
        """
        Notes one site.

        :param site: a message of a handler, or a node of a trace.
        """
        infer = site["infer"] or {}
        if infer.get("_deterministic") or infer.get("_do_not_trace"):
            return
        if is_auxiliary(site):
            self._has_factor |= bool(site["is_observed"])
            return
        plates = frozenset(frame.name for frame in site["cond_indep_stack"])
        sites = self._observed if site["is_observed"] else self._latents
        sites[site["name"]] = plates - {"num_particles_vectorized"}
        if site["is_observed"]:
            scale = site["scale"]
            self._is_scaled |= isinstance(scale, Tensor) or scale != 1
            self.is_cut |= is_cut(site)
            for frame in site["cond_indep_stack"]:
                if frame.full_size not in (None, frame.size):
                    self._cut[frame.name] = frame.full_size, frame.size

    def nothing_observed(self, call: str) -> str | None:
        """
        Says that nothing is observed, where that is so.

        :param str call: how all data are handed over, such as ``"fit(model, guide, x, y)"``.
        :returns: what to say if there are latents, and neither an observed site nor a factor.
        """
        if self._observed or self._has_factor or not self._latents:
            return None
        return (
            "the model observes nothing, though it was given arguments: each of its sample sites, "
            f"{_listed(self._latents)}, is a latent. Hand over all data, as in {call}, and write "
            "obs= at the site of the data, as in pyro.sample('y', ..., obs=y)."
        )

    def unscaled_batches(self) -> str | None:
        """
        Says that a batch counts as all data, where that is so.

        It does not matter where each latent belongs to a datum, as all are in the plates of the
        data then.

        :returns: what to say if no observed site has a scale.
        """
        if not self._observed or self._is_scaled or self._is_of_rows:
            return None
        return (
            f"there are several batches, and no observed site ({_listed(self._observed)}) is "
            "scaled up: each batch counts as if it were all data, and the posterior is too wide. "
            "With N data in all, write pyro.plate('data', N, subsample_size=len(x))."
        )

    def several_batches(self, sizes: Sequence[int]) -> str | None:
        """
        Says what is wrong where these data are one of several batches.

        :param sizes: rows of each batch where they are the same in each epoch; empty if not.
        :returns: what :meth:`unscaled_batches` or :meth:`uneven_batches` say.
        """
        return self.unscaled_batches() or self.uneven_batches(sizes)

    @property
    def _is_of_rows(self) -> bool:
        """Whether each latent belongs to a datum."""
        of_data = frozenset.intersection(*self._observed.values())
        return bool(of_data) and all(of_data <= plates for plates in self._latents.values())

    def uneven_batches(self, sizes: Sequence[int]) -> str | None:
        r"""
        Says that rows of small batches count more than others, where that is so.

        With N rows in B batches that are the same in each epoch, one of a batch of n counts
        :math:`w = N / (n B)` times. The posterior's mean is off by as many of its deviations as the
        root of the rows' mean of :math:`(w - 1)^2`, if the rows are in no order.

        :param sizes: rows of each batch.
        :returns: what to say, if that is much, and latents are not those of a datum each.
        """
        if not self._observed or not self._is_scaled or self._is_of_rows or not sizes:
            return None
        num_rows = sum(sizes)
        counts = [num_rows / (n * len(sizes)) for n in sizes]
        squares = (n * (w - 1) ** 2 for n, w in zip(sizes, counts, strict=True))
        bias = math.sqrt(sum(squares) / num_rows)
        if bias < _MAX_BIAS_IN_SDS:
            return None
        return (
            f"batches have {min(sizes)} to {max(sizes)} rows, the same in each epoch, and each is "
            f"scaled to all data: a row of the smallest counts {max(counts):.3g} times, and the "
            f"posterior's mean may be off by {bias:.2g} of its deviations, and by much more where "
            "rows are in some order. Write DataLoader(..., shuffle=True), or batches of one size."
        )

    def other_rows(
        self,
        num_rows: int,
        shown: int,
        repeated: bool = False,
        takes_data_by: Callable[[str], bool] = lambda _: False,
    ) -> str | None:
        """
        Says that a plate counts the data as if there were more of them, or fewer.

        :param int num_rows: all rows that were handed over; 0 if that is not known.
        :param int shown: the rows of the run that was seen.
        :param bool repeated: whether some may have been counted more than once.
        :param takes_data_by: tells by its name whether the model takes its data by the numbers of a
            plate, so that those that were handed over are none of its rows.
        :returns: what to say if a plate shows these, and has another number of rows in all.
        """
        for name, (size, now) in self._cut.items():
            if (
                num_rows
                and now == shown
                and (size > num_rows or (size < num_rows and not repeated))
                and not takes_data_by(name)
            ):
                factor, what = size / num_rows, "narrow" if size > num_rows else "wide"
                return (
                    f"plate {name!r} has {size} rows, and {num_rows} were handed over in all: each "
                    f"datum counts {factor:.3g} times, and the posterior is too {what}. Write "
                    f"pyro.plate({name!r}, {num_rows}, subsample_size=len(x)), or hand over all "
                    "data (in batches: batches=DataLoader(...) of all of them)."
                )
        return None


def _listed(names: Any) -> str:
    names = list(names)
    more = f" and {len(names) - _MAX_SITES_NAMED} more" if len(names) > _MAX_SITES_NAMED else ""
    return ", ".join(map(repr, names[:_MAX_SITES_NAMED])) + more
