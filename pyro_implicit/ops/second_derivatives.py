"""Operations that torch cannot differentiate twice, told by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyro_implicit.exceptions import LayerError

__all__ = ["second_derivatives"]

_PATTERN = re.compile(r"derivative for aten::(\w+?)(?:_backward|_jvp)? is not implemented")
_INSTEAD = {
    "scaled_dot_product": "Run attention `with torch.nn.attention.sdpa_kernel(torch.nn.attention."
    "SDPBackend.MATH):` in the model.",
    "hardsigmoid": "Use nn.Sigmoid().",
}


@contextmanager
def second_derivatives() -> Iterator[None]:
    """
    Names the operation where torch has no second derivative.

    :raises LayerError: in place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        found = _PATTERN.search(str(error))
        if found is None or isinstance(error, LayerError):
            raise
        name = found[1].strip("_")
        instead = next((text for key, text in _INSTEAD.items() if key in name), "")
        instead = instead or "Use another operation."
        raise LayerError(
            f"torch has no second derivative of {name!r}, which this objective needs: of the "
            "generator, whose Jacobian is in its entropy, or of the model, where the loss is made "
            f"of the model's score. {instead} Kernel and adversarial objectives need first "
            "derivatives alone."
        ) from error
