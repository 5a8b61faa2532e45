"""One evaluation of a model that sees its data: their densities, and other data like them."""

from __future__ import annotations

from typing import Any

import torch
from pyro.poutine.util import site_is_factor, site_is_subsample
from torch import Tensor

from pyro_implicit.handlers.enumeration.choice_for_all import plates_of
from pyro_implicit.handlers.pointwise import is_delta
from pyro_implicit.inference.evaluation.observation import Observation, kind_of
from pyro_implicit.inference.predictive_run import PREDICTIVE_PLATE, PredictiveRun

__all__ = ["EvaluationRun"]


class EvaluationRun(PredictiveRun):
    """
    Sets latents to draws, leaves observed sites at their data, and draws others like them.

    ``seen`` has what was observed, ``outcomes`` the draws of each site (None of one that cannot be
    drawn from), ``factors`` the names of factor sites, and ``from_prior`` those of latents that the
    guide does not draw, other than ``summed_out``: those to be enumerated, which it is to leave
    out.

    :param int num_outcomes: draws of each observed site with numbers.
    :param dict kinds: what the data of each site are; filled by the first run.
    """

    def __init__(
        self, *args: Any, num_outcomes: int, kinds: dict[str, str], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.num_outcomes, self.kinds = num_outcomes, kinds
        self.seen: dict[str, Observation] = {}
        self.outcomes: dict[str, Tensor | None] = {}
        self.factors: list[str] = []
        self.from_prior: set[str] = set()
        self.summed_out: set[str] = set()

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if site_is_factor(msg):
            self.factors.append(name)
        special = (
            site_is_factor(msg) or site_is_subsample(msg) or msg["infer"].get("_deterministic")
        )
        own = name not in self.plan.draws and not special and not is_delta(msg)
        if own and not msg["is_observed"] and msg.get("_intervener_id") is None:
            marked = bool(msg["infer"].get("enumerate"))
            (self.summed_out if marked else self.from_prior).add(name)
        is_data = own and msg["is_observed"] and not self._is_held(msg)
        if not is_data:
            super()._pyro_sample(msg)
            return
        self._note_plates(msg, plates_of(msg) - {PREDICTIVE_PLATE})
        known = self.plan.layout.row_dims
        row_dim = known.get(name) if known else ...
        self.seen[name] = Observation(msg, self.start, self.stop, row_dim)
        if name not in self.kinds:
            self.kinds[name] = kind_of(name, msg["fn"])
        if not self.looked_at and self.kinds[name] in ("real", "count"):
            self.outcomes[name] = self._others_like(msg)

    @property
    def has_others(self) -> bool:
        """Whether the model observes something that nobody holds."""
        return bool(self.seen)

    def _others_like(self, msg: Any) -> Tensor | None:
        self.sample_shape = torch.Size((self.num_outcomes,))
        try:
            return self._noisy(msg)
        except NotImplementedError:
            return None
        finally:
            self.sample_shape = torch.Size()
