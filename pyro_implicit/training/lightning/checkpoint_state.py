"""What LightningVI adds to a checkpoint, and the checks of that and of the parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from pyro_implicit._plain import check_like, first_difference, non_finite
from pyro_implicit._warn import warn
from pyro_implicit.exceptions import NonFiniteError, StateError
from pyro_implicit.guides.first_call import FIRST_CALL_KEY

__all__ = [
    "CHECKPOINT_KEY",
    "FORMAT_VERSION",
    "check_finite_to_save",
    "check_header",
    "check_modules_fit",
    "check_settings",
    "check_tensors",
    "settings_of",
]

CHECKPOINT_KEY = "pyro_implicit"
FORMAT_VERSION = 1
_TYPES_OF_ENTRIES = {
    "objective": str,
    "settings": dict,
    "objective_state": dict,
    "optimizers": list,
    "random": list,
    "gradients": list,
}
#: of Pyro's base class, without an influence on the objectives of this package
_IGNORED_ATTRIBUTES = {
    "max_plate_nesting",
    "retain_graph",
    "strict_enumeration_warning",
    "ignore_jit_warnings",
    "jit_options",
    "tail_adaptive_beta",
    "last_terms",
}


def settings_of(objective: Any) -> dict[str, Any]:
    """The public numbers, flags and names that an objective was made with."""
    public = {name: value for name, value in vars(objective).items() if name[0] != "_"}
    public |= getattr(objective, "_fit", {})  # those of a density ratio
    plain = (bool, int, float, str, type(None))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in public.items()
        if name not in _IGNORED_ATTRIBUTES
        and all(isinstance(v, plain) for v in (value if isinstance(value, tuple) else [value]))
    }


def check_settings(found: dict[str, Any], objective: Any, changing: Iterable[str]) -> None:
    """
    Warns of an objective with other arguments than the one that was saved.

    :param dict found: saved by :func:`settings_of`.
    :param objective: the objective here.
    :param changing: names of what a callback changes as training goes on.
    """
    ours = settings_of(objective)
    names = sorted((found.keys() | ours.keys()) - set(changing))
    other = [
        f"{name}={found.get(name)!r} (here {ours.get(name)!r})"
        for name in names
        if first_difference(found.get(name), ours.get(name))
    ]
    if other:
        warn(
            f"the checkpoint was written while training with {type(objective).__name__} and "
            f"{', '.join(other)}: training goes on with the values here, to another end."
        )


def check_header(checkpoint: dict[str, Any], objective: str) -> dict[str, Any]:
    """
    Checks that a checkpoint is one of this package, and of the same objective.

    :param dict checkpoint: as read from a file.
    :param str objective: class name of the objective.
    :returns: our part of it.
    :raises StateError: if there is none, or it is of another version or objective.
    """
    header = checkpoint.get(CHECKPOINT_KEY)
    if not isinstance(header, dict):
        raise StateError(
            f"not a checkpoint of LightningVI: it has no entry {CHECKPOINT_KEY!r}, only "
            f"{sorted(map(str, checkpoint))}. It was saved by another Lightning module."
        )
    version = header.get("version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise StateError(
            f"the checkpoint has format version {version!r}; this release reads "
            f"version {FORMAT_VERSION}. Go on with the release that wrote it, or start anew."
        )
    missing = _TYPES_OF_ENTRIES.keys() - header.keys()
    if missing:
        raise StateError(
            f"the checkpoint is incomplete: {CHECKPOINT_KEY!r} lacks {sorted(missing)}."
        )
    for name, kind in _TYPES_OF_ENTRIES.items():
        if not isinstance(header[name], kind):
            raise StateError(
                f"{name} in {CHECKPOINT_KEY!r} of the checkpoint is a "
                f"{type(header[name]).__name__}; expected a {kind.__name__}."
            )
    for each in header["random"]:
        check_like(each, {"noise": {}, "outside": {}}, "random")
    if not 0 < len(header["random"]) == len(header["gradients"]):
        raise StateError(
            f"the checkpoint has random states of {len(header['random'])} processes and gradients "
            f"of {len(header['gradients'])}; expected one of each at least."
        )
    if header["objective"] != objective:
        raise StateError(
            f"the checkpoint was written while training with {header['objective']}; this objective "
            f"is {objective}."
        )
    return header


def check_tensors(found: Any, expected: dict[str, Any], trained: Iterable[str] = ()) -> None:
    """
    Checks saved tensors against those of a module.

    :param found: the ``state_dict`` of a checkpoint.
    :param dict expected: that of the module which is to load it.
    :param trained: names of parameters, which must be finite.
    :raises StateError: unless names, shapes, dtypes and guides' structure are the same.
    """
    if not isinstance(found, dict):
        raise StateError(
            f"the checkpoint's state_dict is a {type(found).__name__}; expected a dict."
        )
    absent = sorted(expected.keys() - found)
    foreign = sorted(map(str, found.keys() - expected))
    if absent or foreign:
        raise StateError(
            f"the checkpoint is of another model or guide: it lacks {absent or 'nothing'} and has "
            f"{foreign or 'nothing'} beside what is expected."
        )
    for name, value in expected.items():
        theirs = found[name]
        if isinstance(value, Tensor):
            ours, theirs = _describe(value), _describe(theirs)
            notes = None if ours == theirs else f"{name} is {theirs} there and {ours} here"
        else:
            notes = first_difference(theirs, value, name, (FIRST_CALL_KEY,))
        if notes:
            raise StateError(f"the checkpoint is of another model or guide: {notes}.")
    bad = non_finite({name: found[name] for name in trained if name in found})
    if bad:
        raise StateError(f"the checkpoint's parameter {bad[0]} is not finite; take an older one.")


def _describe(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)


def check_finite_to_save(module: nn.Module, objective: Any) -> None:
    """
    Refuses to save parameters that are NaN or infinite.

    :raises NonFiniteError: if a parameter, of a critic too, is NaN or infinite: a run that goes on
        from there is lost, and so is the file that it would replace.
    """
    values = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for site, critic in getattr(objective, "critics", {}).items():
        values |= {f"critic of {site}: {name}": p for name, p in critic.named_parameters()}
    bad = non_finite(values)
    if bad:
        raise NonFiniteError(
            f"no checkpoint is written, and older ones stay: parameter {bad[0]} is not finite"
            f"{f' (nor are {len(bad) - 1} others)' if len(bad) > 1 else ''}. Go on from the last "
            "checkpoint with a smaller step size or gradient_clip_val."
        )


def check_modules_fit(vi: Any, state: Any, *, built: bool) -> None:
    """
    Checks that a saved state is of these modules.

    :param vi: the module that the state is for, with a ``guide``; nothing in it is changed.
    :param state: the ``state_dict`` of a checkpoint.
    :param bool built: whether all parameters of ``vi`` exist.
    :raises StateError: if it is of other modules.
    """
    if built:
        trained = [name for name, p in vi.named_parameters() if p.requires_grad]
        check_tensors(state, vi.state_dict(), trained)
        return
    check_like(state, {}, "state_dict")
    trial = copy.deepcopy(vi.guide)  # not built yet: let a copy try
    own = {k.removeprefix("guide."): v for k, v in state.items() if k.startswith("guide.")}
    try:
        trial.load_state_dict(own)
    except RuntimeError as error:
        raise StateError(
            f"the checkpoint does not fit the guide, a {type(vi.guide).__name__}: {error} "
            "(If the guide makes its parameters at its first call, call vi.warm_up(batch) "
            "before.)"
        ) from error
    others = {k: v for k, v in vi.state_dict().items() if not k.startswith("guide.")}
    trained = [f"guide.{name}" for name, _ in trial.named_parameters()]
    trained += [name for name, _ in vi.named_parameters()]
    fitting = others | {f"guide.{k}": v for k, v in trial.state_dict().items()}
    check_tensors(state, fitting, trained)
