"""Lightning, or an error that names the extra."""

from __future__ import annotations

from pyro_implicit.exceptions import MissingExtraError

try:
    from lightning import pytorch
except ImportError as error:
    raise MissingExtraError(
        "LightningVI and its callbacks need Lightning, which is not installed: "
        "pip install 'pyro_implicit[lightning]'. Without it, train with pyro.infer.SVI, or with "
        "objective(model, guide) in a loop of your own."
    ) from error

__all__ = ["pytorch"]
