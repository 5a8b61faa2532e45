"""A call with a model, its guide and data: what is refused, and told, by all that take these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from pyro_implicit._checks import check_guide, check_model
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._signature import leading_arguments
from pyro_implicit._warn import warn
from pyro_implicit.guides.argument_dims import (
    are_rows_of_the_fit,
    warning_of_other_rows,
    warning_of_other_shapes,
)
from pyro_implicit.guides.argument_order import check_order
from pyro_implicit.guides.diverged import refuse_diverged
from pyro_implicit.guides.held_data import warning_of_held_data
from pyro_implicit.guides.model_parameters import WatchedParameters
from pyro_implicit.guides.seen_observations import warning_of_seen_observations
from pyro_implicit.handlers.errors.named_arguments import check_holds_numbers
from pyro_implicit.handlers.held.held_sites import refuse_condition_around
from pyro_implicit.handlers.rows.joint_rows import warning_of_joint_rows

__all__ = ["FittedCall"]


class FittedCall:
    """
    Refuses what no function can make anything of, and tells the caller of what looks wrong.

    :param function: which was called, as ``function(model, guide, *args, **kwargs)``.
    :param model: a Pyro model.
    :param guide: its guide.
    :param tuple args: positional arguments of both.
    :param dict kwargs: keyword arguments of both.
    :raises ArgumentError: for a model or a guide that cannot be run, or in the wrong order, for
        options that neither the function nor the model has, and for tensors without data.
    :raises NonFiniteError: for a guide with a parameter that is NaN.
    :raises SiteError: within ``with poutine.condition(...):``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: Any,
        guide: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        name = function.__name__
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        check_model(model)
        refuse_condition_around(name)
        check_order(model, f"{name}(model, guide, ...)", guide)
        check_guide(guide)
        refuse_diverged(guide)
        check_misspelt(function, model, kwargs)
        check_holds_numbers(args, kwargs)
        self.watched = WatchedParameters(guide)

    def warn(self, texts: Iterable[str | None]) -> None:
        """
        Warns the caller of the function.

        :param texts: what is to be told; None and empty ones are nothing.
        :warns UserWarning: each of them, once.
        """
        for text in dict.fromkeys(filter(None, texts)):
            warn(text)

    def warning_of_arguments(self, *, is_scored: bool) -> list[str]:
        """
        Tells of arguments that are not those that the guide was made for.

        :param bool is_scored: whether the data that the model observes are scored.
        :returns: texts for :meth:`warn`.
        """
        notes = warning_of_other_shapes(self.guide, self._leading)
        notes += warning_of_other_rows(self.guide, self._leading, self.kwargs)
        if is_scored:
            notes += warning_of_held_data(self.model, self.guide, self.args, self.kwargs)
        return notes

    @property
    def _leading(self) -> tuple[Any, ...]:
        return leading_arguments(self.model, self.args, self.kwargs)

    def warning_of_runs(self, joint_rows: Collection[str]) -> list[str]:
        """
        Tells of what runs of the model have shown.

        :param joint_rows: names of sites that are one datum of all rows.
        :returns: texts for :meth:`warn`, those on lost parameters among them.
        """
        notes = [*self.watched.warnings()]
        if joint_rows and not are_rows_of_the_fit(self.guide, self._leading):
            notes.insert(0, warning_of_joint_rows(joint_rows))
        return notes

    def warning_of_seen_observations(self) -> list[str | None]:
        """
        Tells where each datum is scored by latents that were made from it, which draws anew.

        :returns: texts for :meth:`warn`.
        """
        return [warning_of_seen_observations(self.model, self.guide, self.args, self.kwargs)]
