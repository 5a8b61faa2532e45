"""Latents in the turns of a sequential plate, which Pyro's own autoguides refuse."""

from __future__ import annotations

from typing import Any

from pyro_implicit.exceptions import SiteError

__all__ = ["vectorised_frames"]


def vectorised_frames(trace: Any) -> dict[str, Any]:
    """
    The vectorised plates around the latents of a model, some of which are in sequential ones.

    :param trace: of the model. Latents of each turn of a sequential plate have names of their own.
    :returns: the plates' frames by name.
    :raises SiteError: for a sequential plate that takes some of its turns.
    """
    found = {}
    for name, node in trace.iter_stochastic_nodes():
        for frame in node["cond_indep_stack"]:
            if frame.vectorized:
                found[frame.name] = frame
            elif frame.full_size not in (None, frame.size):
                raise SiteError(
                    f"sequential plate {frame.name!r} around latent {name!r} takes {frame.size} of "
                    f"its {frame.full_size} turns, others in each run: a guide cannot know which. "
                    f"Write 'with pyro.plate({frame.name!r}, {frame.full_size}, "
                    f"subsample_size={frame.size}) as rows' and one latent for all rows, or leave "
                    "subsample_size out."
                )
    return found
