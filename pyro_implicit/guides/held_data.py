"""Observations that a model holds itself, which are scored for whatever inputs it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro import poutine
from pyro.infer.autoguide import AutoGuideList
from pyro.poutine.messenger import unwrap
from torch import Tensor

from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.members import members_of
from pyro_implicit.guides.program_print import print_of_program, unconditioned
from pyro_implicit.handlers.held.held_sites import HeldSites
from pyro_implicit.handlers.known_call import known_call_of
from pyro_implicit.handlers.looks.any_value import AnyValue
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.masks.hidden_observations import SHOWN_SUFFIX
from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta, run_model
from pyro_implicit.handlers.rows.row_coupling import can_be_looked_at
from pyro_implicit.handlers.rows.same_rows import fingerprint

__all__ = [
    "HeldData",
    "is_made_for",
    "model_of",
    "observed_when_built",
    "program_of",
    "sampled_when_built",
    "sites_when_built",
    "warning_of_held_data",
]


class HeldData:
    """
    What the arguments and the observations of a guide's first call were, to tell others from them.

    Of large data nothing but the names of the observations is kept, and nothing is told.

    :param model: a Pyro model.
    :param tuple args: its positional arguments.
    :param dict kwargs: its keyword arguments.
    """

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        is_small = can_be_looked_at([*args, *kwargs.values()])
        self.arguments = _fingerprints(args, kwargs) if is_small else set()
        #: names of the parameters that the model makes
        self.parameters: list[str] = []
        #: names of all sites that the model has; None where that is not known
        self.sampled: frozenset[str] | None = None
        met: set[str] = set()
        self.observed = _observed(model, args, kwargs, is_small, self.parameters, met)
        self.sampled = frozenset(met) or None
        #: what tells the model's program from others, for a guide that is loaded
        self.program = print_of_program(model)
        #: whether it comes of a state, which may be that of another model's guide
        self.is_loaded = False

    @classmethod
    def from_prints(
        cls,
        arguments: set[Any],
        observed: dict[str, Any],
        sampled: frozenset[str] | None = None,
        program: str | None = None,
    ) -> HeldData:
        """
        What a saved guide knows of the call that built it.

        :param arguments: fingerprints of the arguments.
        :param observed: fingerprint of what each site observes, or None.
        :param sampled: names of all sites, or None.
        :param program: fingerprint of the model's program, or None.
        :returns: it, without parameters.
        """
        held = cls.__new__(cls)
        held.arguments, held.observed, held.parameters = arguments, observed, []
        held.sampled, held.program, held.is_loaded = sampled, program, True
        return held

    def still_there(
        self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[str]:
        """
        Sites that observe the same as in the first call, where every argument is another one.

        :param model: a Pyro model.
        :param tuple args: its positional arguments in this call.
        :param dict kwargs: its keyword arguments.
        :returns: names of sites with more than one datum.
        """
        if not self.observed or not self.are_others(args, kwargs):
            return []
        found = _observed(model, args, kwargs, True)
        several = {name: seen for name, seen in found.items() if seen is not None and seen[0] > 1}
        return [name for name, seen in several.items() if self.observed.get(name) == seen]

    def are_others(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """
        Tells whether no tensor of the first call is among the arguments.

        :param tuple args: positional arguments of the model.
        :param dict kwargs: its keyword arguments.
        :returns: False, too, for arguments without tensors.
        """
        now = _fingerprints(args, kwargs)
        return bool(now) and bool(self.arguments) and not now & self.arguments


def _held_by(guide: Any) -> HeldData | None:
    known = known_call_of(guide)
    held: HeldData | None = None if known is None else known.held
    return held


def observed_when_built(guide: Any) -> frozenset[str]:
    """
    Sites that the model observed when the guide was built: what may be left out to be predicted.

    :param guide: any guide; one that is not of this package knows nothing, several know what each
        does.
    :returns: their names; of data with an ``obs_mask`` both that of the whole site and of the part
        that was seen.
    """
    held = _held_by(guide)
    if held is not None:
        return frozenset(held.observed) | {
            name.removesuffix(SHOWN_SUFFIX) for name in held.observed
        }
    parts = members_of(guide)
    return frozenset().union(*map(observed_when_built, parts), getattr(guide, "observed", ()))


def sampled_when_built(model: Any, guide: Any) -> frozenset[str] | None:
    """
    Sites that a model had when the guide was built: others are new, as those of a forecast.

    :param model: a Pyro model, or it with values held by ``poutine.condition``.
    :param guide: any guide of it.
    :returns: their names; None where the guide is of another model (one that hides sites, say), or
        does not know. Several guides know what all of them know, one that was loaded without its
        model what it knows of a program like this one.
    """
    inner: Any = unwrap(guide)
    if inner is not guide:
        return sampled_when_built(model, inner)
    if parts := members_of(guide):
        known = [sampled_when_built(model, part) for part in parts]
        return frozenset().union(*(one or () for one in known)) if None not in known else None
    if not is_made_for(model, guide):
        return None
    held = _held_by(guide)
    if held is not None:
        return held.sampled
    if hasattr(guide, "sampled"):  # chains
        found: frozenset[str] | None = guide.sampled
        return found
    trace = getattr(guide, "prototype_trace", None)  # of Pyro's
    if trace is None or isinstance(guide, AutoGuideList):
        return None
    return frozenset(name for name, node in trace.nodes.items() if node.get("type") == "sample")


def is_made_for(model: Any, guide: Any) -> bool:
    """
    Tells whether a model is that which a guide was made for.

    :param model: a Pyro model, or it with values held by ``poutine.condition``.
    :param guide: any guide but several; one that was loaded knows the fingerprint of the program
        that its state was saved with, whichever model it was given since.
    :returns: False, too, if nobody can tell.
    """
    own, held = model_of(guide), _held_by(guide)
    if held is not None and held.program is not None and (own is None or held.is_loaded):
        return held.program == print_of_program(model)
    return own is not None and unconditioned(model) is unconditioned(own)


def sites_when_built(guide: Any) -> frozenset[str] | None:
    """
    Sites of a guide's own model, whichever is asked for now.

    :param guide: any guide.
    :returns: their names; None where it does not know.
    """
    held = _held_by(guide)
    return None if held is None else held.sampled


def model_of(guide: Any) -> Any:
    """
    The model that a guide was made for.

    :param guide: any guide.
    :returns: it, or None of one that does not tell, or was loaded without.
    """
    try:
        return getattr(guide, "model", None)
    except (StateError, TypeError):  # that of Pyro's guides is subscripted before it is looked at
        return None


def program_of(guide: Any) -> Any:
    """
    What tells by its parameters which arguments a guide takes.

    :param guide: any guide.
    :returns: the model that it was made for, as it was handed over; the guide itself, if it does
        not tell.
    """
    bare = getattr(guide, "_bare_model", None) or [None]  # the prototype's has lost its signature
    return bare[0] or model_of(guide) or guide


def warning_of_held_data(
    model: Any, guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str]:
    """
    Tells of a model that scores the fit's observations for other inputs.

    :param model: a Pyro model.
    :param guide: any guide; one that is not of this package knows nothing.
    :param tuple args: positional arguments of both.
    :param dict kwargs: keyword arguments of both.
    :returns: a text if all arguments are others than those the guide was built with, and an
        observed site has the same values.
    """
    held = _held_by(guide)
    if held is None or not can_be_looked_at([*args, *kwargs.values()]):
        return []
    names = held.still_there(model, args, kwargs)
    if not names:
        return []
    return [
        f"{names} observes the same values as when the guide was built, though all arguments are "
        "others: the model holds its observations itself, and they are scored for inputs that are "
        "not theirs. Make them an argument, def model(x, y=None), with obs=y, and hand over those "
        "of these inputs."
    ]


def _fingerprints(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[Any]:
    found = {fingerprint((one,)) for one in (*args, *kwargs.values())}
    return found - {None}


def _observed(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    is_small: bool,
    parameters: list[str] | None = None,
    met: set[str] | None = None,
) -> dict[str, Any]:
    """What each site observes; None of what is no tensor with rows, or not to be looked at."""
    found: dict[str, Any] = {}

    def visit(site: Any) -> None:
        if met is not None:
            met.add(site["name"])
        if _is_data(site):
            looked_at = is_small and not _is_constant(site["value"])
            found[site["name"]] = fingerprint((site["value"],)) if looked_at else None

    try:
        with unseen_run():
            with poutine.trace(param_only=True) as tracer:
                with HeldSites() as held, AnyValue():
                    run_model(model, args, dict(kwargs), visit)
    except Exception:  # what is wrong with a call is told by the call itself
        if met is not None:
            met.clear()
        return {}
    for name in held.sites.keys() - held.data(found):  # which poutine.condition holds: no data
        found.pop(name, None)
    if parameters is not None:
        nodes = tracer.trace.nodes
        parameters.extend(name for name in nodes if nodes[name]["type"] == "param")
    return found


def _is_constant(value: Tensor) -> bool:
    """Whether all is one number, such as a 1 for each censored row: it may be of any data."""
    return value.numel() > 0 and bool((value == value.flatten()[0]).all())


def _is_data(site: Any) -> bool:
    if site["type"] != "sample" or not site["is_observed"] or not isinstance(site["value"], Tensor):
        return False
    return not (is_auxiliary(site) or is_delta(site))
