"""What all evaluations of a model for one prediction share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pyro_implicit._random import mixed_seed
from pyro_implicit.handlers.enumeration.choice_for_all import choices_of_groups
from pyro_implicit.handlers.rows.row_order import BY_PLACE, RowOrder
from pyro_implicit.handlers.supports.own_support import own_support
from pyro_implicit.inference.held_in_runs import HeldInRuns
from pyro_implicit.inference.layout import Layout
from pyro_implicit.inference.outside_support import drawn_outside, is_outside

__all__ = ["NOTE_OF_UNUSED_BATCH_SIZE", "ROWS_PER_SEED", "RunPlan"]

NOTE_OF_UNUSED_BATCH_SIZE = (
    "batch_size does nothing here: no argument is a tensor (write torch.as_tensor of an array), "
    "and tensors within other objects, such as a dictionary, are not cut. Hand them over as "
    "arguments of their own"
)
ROWS_PER_SEED = 32  # which share one state of the random generator, whatever the batches


@dataclass
class RunPlan:
    """
    What all evaluations of one prediction share.

    :param dict draws: draws of the guide by site.
    :param int rows: number of rows, 0 if no argument is a tensor.
    :param int seed: of all noise.
    :param sites: names of the sites to keep; None for the default.
    :param Layout layout: of the sites.
    :param int offset: number of the first of the draws that are held now.
    :param bool whole: whether rows are coupled, so that all are evaluated, and drawn, at once.
    :param RowOrder order: which draws of latents local to a plate are in the order of its rows'
        numbers, and which in that of the arguments.
    :param set met: names of the latents of ``draws`` that the model has sampled.
    :param dict free: the other sites that the model has sampled, and whether it observes them;
        those to be enumerated left out.
    :param sizes: numbers of rows of all arguments.
    :param processes: names of the sites that were drawn from a process, and not given its data.
    :param joint_rows: names of the sites that are one datum of all rows.
    :param dict choices: discrete latents to be enumerated, with their plates.
    :param set predicted: the plates of each of the other sites that the model draws.
    :param set row_plates: names of plates of these that may have the rows of the arguments.
    :param set factors: names of ``pyro.factor`` sites.
    :param HeldInRuns held: what ``poutine.condition`` holds.
    :param str uncut: what a model said of some of its rows alone, if it was to be cut.
    :param outside: supports of the latents whose draws the prior would never make, by name.
    """

    draws: dict[str, Tensor]
    rows: int
    seed: int
    sites: frozenset[str] | None
    layout: Layout = field(default_factory=Layout)
    offset: int = 0
    whole: bool = False
    order: RowOrder = BY_PLACE
    met: set[str] = field(default_factory=set)
    free: dict[str, bool] = field(default_factory=dict)
    sizes: frozenset[int] = frozenset()
    processes: set[str] = field(default_factory=set)
    joint_rows: set[str] = field(default_factory=set)
    outside: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, frozenset[str]] = field(default_factory=dict)
    predicted: set[frozenset[str]] = field(default_factory=set)
    row_plates: set[str] = field(default_factory=set)
    factors: set[str] = field(default_factory=set)
    held: HeldInRuns = field(default_factory=HeldInRuns)
    uncut: str | None = None

    def warnings(self) -> list[str]:
        """What is wrong with the predictions, once the model was run."""
        notes = (
            self.drawn_processes(),
            drawn_outside(self.outside),
            self._note_of_uncut(),
            "" if self.sites is not None else self._warning_of_choices(),
            *self.held.warnings(),
        )
        return [text for text in notes if text]

    def _warning_of_choices(self) -> str:
        return choices_of_groups(self.choices, self.predicted, self.row_plates)

    def _note_of_uncut(self) -> str | None:
        if self.uncut is None:
            return None
        return (
            f"the model does not run on some of its {self.rows} rows alone, so that it got all of "
            f"them at once, whatever batch_size ({self.uncut}). Arguments are cut, and no tensor "
            "within another object, such as a dictionary"
        )

    def meet(self, msg: Any) -> None:
        """Notes a latent of the model that the guide draws, and looks at its draws once."""
        name = msg["name"]
        if name not in self.met and is_outside(msg["fn"], self.draws[name]):
            self.outside[name] = own_support(msg["fn"])
        self.met.add(name)

    def drawn_processes(self) -> str | None:
        """Says that sites were drawn from a process by itself, where that is so."""
        if not self.processes:
            return None
        return (
            f"the sites {sorted(self.processes)} were drawn from processes as they are with the "
            "guide's draws, not given the data that these were fitted to: such draws are no "
            "predictions. Take process.condition(y, new_inputs, observed=True) at draws of the "
            "guide (see ImplicitProcess.condition)."
        )

    def seeded(self, first: int, row: int) -> int:
        """A seed for latents of draw ``first`` and the unit of rows from ``row`` on (-1: all)."""
        return mixed_seed(self.seed, first, row // ROWS_PER_SEED, -1)

    def own_seed(self, first: int, count: int) -> int:
        """A seed for what a model draws by itself (dropout), on ``count`` rows."""
        return mixed_seed(self.seed, first, count, -2)
