"""What the first steps of a training show of its data, networks and latents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyro import poutine
from pyro.infer import ELBO, TraceEnum_ELBO
from torch import Tensor

from pyro_implicit._signature import leading_arguments
from pyro_implicit._warn import warn
from pyro_implicit.guides.argument_dims import latents_of_other_rows, warning_of_other_shapes
from pyro_implicit.handlers.errors.named_arguments import named_arguments, tensors_among
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.networks.called_parameters import CalledParameters
from pyro_implicit.handlers.observations.data_gradient import (
    warning_of_no_gradient,
    warning_of_own_noise,
)
from pyro_implicit.handlers.observations.data_use import CALL_WITH_BATCHES, DataUse
from pyro_implicit.handlers.pointwise import latent_sites
from pyro_implicit.handlers.rows.numbered_rows import TakesDataByNumbers
from pyro_implicit.handlers.rows.row_slices import number_of_rows
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.checks.first_look import first_look
from pyro_implicit.training.fitting.checks.left_out import warning_of_left_out
from pyro_implicit.training.fitting.checks.listed_values import check_plates_of_listed
from pyro_implicit.training.fitting.checks.other_order import warning_of_other_order
from pyro_implicit.training.fitting.checks.plate_sizes import check_plate_sizes, is_pyros
from pyro_implicit.training.fitting.checks.random_rows import check_random_rows
from pyro_implicit.training.fitting.parameters.adopted_parameters import AdoptedParameters
from pyro_implicit.training.fitting.validation import Validation

__all__ = ["FirstSteps"]

_Call = tuple[Any, Any]
_MAX_SHAPES_TO_LOOK_AT = 20  # of arguments: sequences may have any length
_WARNING_OF_EMPTY_BATCHES = (
    "the model observes nothing in some of the batches, which tell nothing: each needs its "
    "observations, as the first one has them, or is left out"
)


class FirstSteps:
    """
    Looks at the steps of a run as they are taken, and warns of what no later step would mend.

    :param model: the model.
    :param guide: the guide.
    :param objective: what is minimised.
    :param Arguments arguments: those of each step.
    :param validation: scores now and then, or None.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        objective: Any,
        arguments: Arguments,
        validation: Validation | None,
    ) -> None:
        self.model, self.guide, self.objective = model, guide, objective
        self.arguments, self.validation = arguments, validation
        #: parameters that may be those of another guide, to be looked at after the first step
        self.adopted: AdoptedParameters | None = None
        #: whether some latents learn nothing from the data at any step, which is told
        self.lacks_gradient = False
        #: whether steps see some of the rows
        self.is_cut = False
        # other objectives than Pyro's may run the model in ways of their own
        self._use = DataUse() if isinstance(objective, ELBO) else None
        self._called: CalledParameters | None = CalledParameters()
        self._given: dict[str, bool] | None = None  # arguments of the first step that were not None
        self._shapes: set[Any] = set()  # of arguments so far
        self._sizes: set[Any] = set()  # likewise, of those whose plates were compared

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around a step: looks at sites and networks, until one has been taken."""
        if self._called is None:
            yield
        elif self._use is None:
            with self._called:
                yield
        else:
            with self._use, self._called:
                yield

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """
        Looks at the arguments of a step.

        :param tuple args: positional arguments.
        :param dict kwargs: keyword arguments.
        :raises ImplicitError: as :func:`first_look` does, for batches of other shapes than those
            before.
        :raises SiteError: as :func:`check_random_rows` does and, with one of Pyro's objectives,
            :func:`check_plate_sizes`.
        :warns UserWarning: for batches of other shapes than the guide was built with, or without
            what the first one had.
        """
        if self._called is None:  # the guide is built: its first step draws what a loop would
            self._look_at_plates(args, kwargs)
        if self.arguments.batches is None:
            return
        leading = leading_arguments(self.model, args, kwargs)
        self._show(warning_of_other_shapes(self.guide, leading))
        self._look_for_absent(args, kwargs)
        self._look_at_shapes(args, kwargs)

    def after(self, num_taken: int, last: _Call | None, params: dict[str, Tensor]) -> None:
        """
        Tells what a step that was taken has shown.

        :param int num_taken: steps taken so far.
        :param last: arguments of the step, positional and by name.
        :param dict params: the parameters that it had, by name.
        :raises SiteError: after the first step with one of Pyro's objectives, as
            :func:`check_plate_sizes` does, and with ``TraceEnum_ELBO`` for what it sums wrongly.
        :warns UserWarning: after the first step in this run for data, networks, latents and
            parameters of which something looks forgotten; after the second for latents of rows
            that batches share.
        """
        if num_taken == 1 and isinstance(self.objective, TraceEnum_ELBO) and last is not None:
            for call in [last, *self.arguments.others()]:
                check_plates_of_listed(self.model, self.guide, *call)
        if self._called is not None:
            if last is not None:
                self._look_at_plates(*last)
            called, self._called = self._called, None
            self._show([self._of_data(last), *self._of_untrained(called, last, params)])
        if self.validation is not None and num_taken == 1:
            self.validation.try_once()  # while nothing is lost
        adopted, self.adopted = self.adopted, None
        self._show([] if adopted is None else adopted.notes())
        if num_taken == 2 and self.arguments.batches is not None and last is not None:
            self._show([self._of_shared_latents(last)])

    @staticmethod
    def _show(said: Iterable[str | None]) -> None:
        for text in filter(None, said):
            warn(text)

    def _of_data(self, last: _Call | None) -> str | None:
        """Of data that were forgotten or count too little."""
        seen, self._use = self._use, None
        if seen is None:
            return None
        self.is_cut = seen.is_cut
        said, arguments = None, self.arguments
        if arguments.is_any:
            in_batches = arguments.batches is not None
            said = seen.nothing_observed(
                CALL_WITH_BATCHES if in_batches else "fit(model, guide, x, y)"
            )
        if said is None and arguments.num_batches > 1:
            said = seen.unscaled_batches()
        if said is None and last is not None:
            listed = isinstance(arguments.batches, (list, tuple))  # of several epochs, perhaps
            by_numbers = TakesDataByNumbers(self.model, *last, {})
            shown = number_of_rows(*last)
            said = seen.other_rows(arguments.num_rows, shown, listed, by_numbers)
        if said is None and arguments.num_batches > 1:
            said = seen.uneven_batches(arguments.batch_sizes)
        return said

    def _of_untrained(
        self, called: CalledParameters, last: _Call | None, params: dict[str, Tensor]
    ) -> list[str | None]:
        """Of networks, and of latents, that no step will learn of."""
        networks = getattr(self.objective, "networks", {}).values()  # which it trains itself
        own = [one for net in networks for one in net.parameters()]
        said: list[str | None] = [called.warning_of_untrained([*params.values(), *own])]
        if not any(one.requires_grad for one in params.values()):
            said.append(
                "no parameter is trained: neither the guide nor the model has one that requires a "
                "gradient. guide.requires_grad_(True) frees those of a guide that was frozen"
            )
        if last is not None:
            said.append(warning_of_left_out(self.model, self.guide, *last))
            said.append(warning_of_other_order(self.model, self.guide, *last))
            said.extend(self._of_densities(last))
        return said

    def _of_densities(self, last: _Call) -> list[str]:
        """Of a likelihood that tells the guide nothing, or tells noise of the model's own."""
        args, kwargs = last
        try:
            with unseen_run():
                sites = latent_sites(self.guide, args, dict(kwargs))
        except Exception:  # what a guide does with another draw than those of the steps
            return []
        values = {name: site["value"] for name, site in sites.items()}
        scored = [name for name, site in sites.items() if not site["fn"].has_rsample]
        no_gradient = warning_of_no_gradient(self.model, values, args, kwargs, learned_else=scored)
        if no_gradient and self._share_parameters(args, kwargs):
            no_gradient = ""  # data reach the guide by these
        self.lacks_gradient = bool(no_gradient)
        return [no_gradient, warning_of_own_noise(self.model, values, args, kwargs)]

    def _share_parameters(self, args: Any, kwargs: Any) -> bool:
        """Whether the model has parameters of its guide, as those of ``pyro.contrib.gp`` do."""
        found = []
        for program in (self.model, self.guide):
            with unseen_run(), poutine.trace(param_only=True) as capture:
                program(*args, **dict(kwargs))
            found.append(set(capture.trace.param_nodes))
        return bool(set.intersection(*found))

    def _look_at_plates(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What objectives take as it comes, at arguments of other shapes than before."""
        key = _shapes_of(args, kwargs)
        if key in self._sizes or len(self._sizes) >= _MAX_SHAPES_TO_LOOK_AT:
            return
        self._sizes.add(key)
        check_random_rows(self.model, self.guide, args, kwargs)
        if is_pyros(self.objective):
            check_plate_sizes(self.model, self.guide, args, kwargs)

    def _look_for_absent(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Of batches without an argument that the first one had, or with one that it had not."""
        given = named_arguments(args, kwargs)
        if self._given is None:
            self._given = {name: one is not None for name, one in given.items()}
        pairs = {name: self._given.get(name) for name in given}
        self._show(
            f"{name} is None in some of the batches: what the model would observe of it there is "
            "drawn instead, and such a batch tells nothing of it. Leave it out, or give all "
            "batches their observations"
            for name, first in pairs.items()
            if first is not None and first != (given[name] is not None)
        )

    def _look_at_shapes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The first run of a model was at those of the first batch alone."""
        key = _shapes_of(args, kwargs)
        is_new = bool(self._shapes) and key not in self._shapes
        if len(self._shapes) < _MAX_SHAPES_TO_LOOK_AT:
            self._shapes.add(key)
            if is_new:
                nesting = getattr(self.objective, "max_plate_nesting", 0)
                in_plates = nesting == math.inf
                if not first_look(self.model, args, kwargs, in_plates=in_plates):
                    self._show([_WARNING_OF_EMPTY_BATCHES])

    def _of_shared_latents(self, last: _Call) -> str | None:
        """Of latents of the rows of the first batch that the second one takes for its own."""
        args, kwargs = last
        leading = leading_arguments(self.model, args, kwargs)
        names, count = latents_of_other_rows(self.guide, leading, kwargs)
        if not names:
            return None
        return (
            f"the guide has a value of {names} for each of the {count} rows of a batch, and "
            "the batches are different rows, which share these values: that is right for new "
            "data of the same units alone. With N rows in all write pyro.plate('data', N, "
            "subsample_size=len(x)) and a ConditionalHyperNetworkGuide, or name the rows of "
            "a batch (create_plates)."
        )


def _shapes_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, tuple(one.shape)) for name, one in tensors_among(args, kwargs).items())
