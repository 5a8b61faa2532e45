"""What an example of Pyro is to the benchmark: a model, its own inference, and a judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyro.infer import SVI
from pyro.optim import PyroLRScheduler
from pyro.poutine.messenger import Messenger

from pyro_implicit import HyperNetworkGuide

__all__ = ["Declared", "Example", "Problem", "trained"]

Settings = Mapping[str, Any]
Scores = dict[str, float]


@dataclass
class Problem:
    """
    A model of an example with data.

    :param model: a Pyro model.
    :param args: its arguments.
    :param own: runs the example's own inference and returns a guide, or the draws of a chain.
    :param judge: from a guide or draws to named scores.
    :param guide: from the model to a guide of the package.
    :param kwargs: keyword arguments of the model.
    :param str limit: the setting that limits the steps of both sides.
    """

    model: Any
    args: tuple[Any, ...]
    own: Callable[[], Any]
    judge: Callable[[Any], Scores]
    guide: Callable[..., Any] = HyperNetworkGuide
    kwargs: dict[str, Any] = field(default_factory=dict)
    limit: str = "num_steps"


@dataclass(frozen=True)
class Example:
    """
    :param str file: below Pyro's folder of examples; empty for one that is built in.
    :param make: from its module and the settings to a problem.
    :param str own: what the example does itself.
    :param str changed: what had to be changed beside guide and loss.
    :param cells: how the cells of a tutorial begin that are run, if ``file`` is a notebook.
    """

    file: str
    make: Callable[[Any, Settings], Problem]
    own: str
    changed: str = "nothing else"
    cells: tuple[str, ...] = ()


class Declared(Messenger):
    """``.to_event(1)`` at sites with a dimension that no plate declares."""

    def _pyro_sample(self, msg: Any) -> None:
        if getattr(msg["fn"], "batch_shape", ()) and not msg["cond_indep_stack"]:
            msg["fn"] = msg["fn"].to_event(1)


def trained(
    model: Any, guide: Any, optimiser: Any, bound: Any, num_steps: int, *args: Any, **kwargs: Any
) -> Any:
    """The guide after so many steps of ``SVI``, with the optimiser's schedule if it has one."""
    svi = SVI(model, guide, optimiser, bound)
    for _ in range(num_steps):
        svi.step(*args, **kwargs)
        if isinstance(optimiser, PyroLRScheduler):
            optimiser.step()
    return guide
