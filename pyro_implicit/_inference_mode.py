"""Nothing can be trained within ``torch.inference_mode()``."""

from __future__ import annotations

import torch

from pyro_implicit.exceptions import StateError

__all__ = ["refuse_inference_mode"]


def refuse_inference_mode(what: str) -> None:
    """
    Refuses what makes or trains parameters where none would ever get a gradient.

    :param str what: the call, such as ``"fit"``.
    :raises StateError: within ``torch.inference_mode()``.
    """
    if torch.is_inference_mode_enabled():
        raise StateError(
            f"{what} was called within torch.inference_mode(), where no tensor ever gets a "
            "gradient. Call it outside of it, with data that were made outside; a guide that is "
            "fitted predicts within it, too."
        )
