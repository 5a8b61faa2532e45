"""How often predictions are right, by how sure they were."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_tensor
from pyro_implicit.exceptions import ArgumentError, MissingExtraError, ShapeError

__all__ = ["calibration_error", "check_probabilities", "reliability"]


def reliability(
    probabilities: Tensor, labels: Tensor, num_bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Confidence and accuracy of predicted classes, by bins of confidence.

    :param torch.Tensor probabilities: class probabilities, shape ``(N, C)``.
    :param torch.Tensor labels: true classes, shape ``(N,)``.
    :param int num_bins: bins of equal width on (0, 1].
    :returns: mean confidence and accuracy (NaN in empty bins) and share of the data, by bin.
    :raises ArgumentError: for numbers that are no probabilities.
    :raises ShapeError: for other shapes.
    """
    num_bins = check_count("num_bins", num_bins)
    check_tensor("probabilities", probabilities, "class probabilities, (N, C)")
    check_tensor("labels", labels, "true classes, (N,)")
    if probabilities.dim() != 2 or labels.shape != probabilities.shape[:1]:
        raise ShapeError(
            f"probabilities have shape {tuple(probabilities.shape)}, labels {tuple(labels.shape)}; "
            "expected (N, C) and (N,)"
        )
    check_probabilities("probabilities", probabilities)
    confidence, predicted = probabilities.detach().double().max(-1)
    places = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    member = torch.nn.functional.one_hot(places, num_bins).double()
    counts = member.sum(0)
    right = (predicted == labels).double()
    return (
        member.mT @ confidence / counts,
        member.mT @ right / counts,
        counts / len(confidence),
    )


def check_probabilities(name: str, table: Tensor) -> None:
    """
    Refuses numbers that are no probabilities of classes, such as logits.

    :param str name: what they are called.
    :param torch.Tensor table: shape ``(N, C)``.
    :raises ArgumentError: unless each row is of numbers from 0 and sums to 1.
    """
    rows = table.detach().double()
    sums = rows.sum(-1)
    if bool(((rows < 0).any(-1) | ((sums - 1).abs() > 1e-2)).any()):
        raise ArgumentError(
            f"{name} has rows that sum to {float(sums.min()):.3g} up to {float(sums.max()):.3g}, "
            f"and numbers from {float(rows.min()):.3g}; expected probabilities of classes. Write "
            "logits.softmax(-1)."
        )


def calibration_error(probabilities: Tensor, labels: Tensor, num_bins: int) -> float:
    """
    The expected calibration error of predicted class probabilities.

    :returns: the expected calibration error, by torchmetrics.
    :raises MissingExtraError: without torchmetrics.
    """
    try:
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError as error:
        raise MissingExtraError(
            "plot_reliability needs torchmetrics: pip install pyro-implicit[main]"
        ) from error
    num_classes = probabilities.shape[-1]
    return float(multiclass_calibration_error(probabilities, labels, num_classes, n_bins=num_bins))
