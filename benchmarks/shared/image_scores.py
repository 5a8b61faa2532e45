"""How well members of a posterior predict images together, and tell them from other images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    multiclass_accuracy,
    multiclass_calibration_error,
)

from benchmarks.shared.judged_images import Images

__all__ = [
    "DOUBTS",
    "PERCENT",
    "PREDICTIONS",
    "Members",
    "all_scores",
    "doubts",
    "entropy_quantiles",
    "false_positives",
    "scores",
]

#: from images ``(N, C, H, W)`` to each member's probabilities ``(S, N, 10)``
Members = Callable[[Tensor], Tensor]
PREDICTIONS = ("accuracy", "nll", "ece", "brier")
#: what tells one image from another: entropy of the mean, and mutual information with the member
DOUBTS = ("entropy", "information")
PERCENT = tuple(range(0, 101, 5))  # of images, where quantiles are told
_AT_ONCE = 500


def all_scores(members: Members, images: Images) -> dict[str, float | None]:
    """
    Of images as they come and shifted; and of other images, told from these.

    :param members: see :data:`Members`.
    :param Images images: to judge by.
    :returns: by ``"<score> 0"``, ``"<score> <shift>"`` and ``"<auroc or fpr95> <doubt> <set>"``,
        None where a single member has no information to tell.
    """
    found: dict[str, float | None] = {}
    p, own = _predicted(members, images.x_test)
    found |= {f"{name} 0": value for name, value in scores(p, images.y_test).items()}
    for shift, x in images.shifted.items():
        told = scores(_predicted(members, x)[0], images.y_test[: len(x)])
        found |= {f"{name} {shift}": value for name, value in told.items()}
    for kind, x in images.others.items():
        other = _predicted(members, x)[1]
        for doubt in DOUBTS:
            pair = (own[doubt], other[doubt])
            known = float(torch.cat(pair).std()) > 0  # no information of one member
            found[f"auroc {doubt} {kind}"] = _auroc(*pair) if known else None
            found[f"fpr95 {doubt} {kind}"] = false_positives(*pair) if known else None
    return found


def entropy_quantiles(members: Members, images: Images) -> dict[str, float]:
    """
    The empirical distribution of the mean prediction's entropy on other images.

    :param members: see :data:`Members`.
    :param Images images: to judge by.
    :returns: by ``"entropy <percent>% <set>"``, in nats.
    """
    at = torch.tensor(PERCENT, dtype=torch.float64) / 100
    found = {}
    for kind, x in images.others.items():
        entropy = _predicted(members, x)[1]["entropy"].double()
        values = entropy.quantile(at).tolist()
        found |= {f"entropy {p}% {kind}": v for p, v in zip(PERCENT, values, strict=True)}
    return found


def _predicted(members: Members, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean probabilities ``(N, 10)``, and doubts ``(N,)``."""
    means, told = [], []
    for part in x.split(_AT_ONCE):
        p = members(part)
        means.append(p.mean(0))
        told.append(doubts(p))
    return torch.cat(means), {name: torch.cat([one[name] for one in told]) for name in DOUBTS}


def doubts(p: Tensor) -> dict[str, Tensor]:
    """
    :param Tensor p: probabilities, shape ``(S, N, C)``.
    :returns: in nats, shape ``(N,)`` each; 0 information for one member.
    """
    total = torch.special.entr(p.mean(0)).sum(-1)
    if len(p) == 1:
        return {"entropy": total, "information": torch.zeros_like(total)}
    return {"entropy": total, "information": total - torch.special.entr(p).sum(-1).mean(0)}


def scores(p: Tensor, y: Tensor) -> dict[str, float]:
    """
    :param Tensor p: probabilities, shape ``(N, 10)``.
    :param Tensor y: labels, shape ``(N,)``.
    :returns: by :data:`PREDICTIONS`: the Brier score is the sum over classes.
    """
    of_class = partial(multiclass_calibration_error, num_classes=10, n_bins=15)
    values = (
        multiclass_accuracy(p, y, num_classes=10, average="micro"),
        -p.clamp(min=1e-12).log()[torch.arange(len(y)), y].mean(),
        of_class(p.clamp(max=1.0), y),  # a mean of ones may round to more
        (p - F.one_hot(y, 10)).square().sum(-1).mean(),
    )
    return {name: float(value) for name, value in zip(PREDICTIONS, values, strict=True)}


def _auroc(own: Tensor, other: Tensor) -> float:
    """The probability that another image has more doubt than one of these."""
    target = torch.cat([torch.zeros(len(own)), torch.ones(len(other))]).long()
    return float(binary_auroc(_ranks(torch.cat([own, other])), target))


def _ranks(values: Tensor) -> Tensor:
    """In (0, 1), equal for equal ones: numbers outside would be taken for logits."""
    _, places = values.unique(return_inverse=True)
    return (places + 0.5) / (places.max() + 1)


def false_positives(own: Tensor, other: Tensor) -> float:
    """
    :param Tensor own: doubts of the images to judge by, shape ``(N,)``.
    :param Tensor other: those of other images, shape ``(M,)``.
    :returns: the share of the others that pass where 95% of these do.
    """
    return float((other <= own.double().quantile(0.95)).float().mean())
