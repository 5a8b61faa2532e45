r"""
The classifier two-sample test: whether a classifier can tell draws of the guide from others.

References

- `Revisiting Classifier Two-Sample Tests`, D. Lopez-Paz, M. Oquab, ICLR 2017.
- `Benchmarking Simulation-Based Inference`, J.-M. Lueckmann, J. Boelts, D. Greenberg,
  P. Goncalves, J. Macke, AISTATS 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pyro_implicit._checks import check_count, check_seed, check_tensor, check_tensors, shown
from pyro_implicit.diagnostics._significance import SIGNIFICANCE_LEVEL
from pyro_implicit.exceptions import ArgumentError, MissingExtraError, ShapeError, SiteError

__all__ = ["C2ST", "c2st"]

Draws = Mapping[str, Tensor] | Tensor

_EXPECTED_SITES, _EXPECTED_ROWS = "draws by site, {name: (n, *shape)}", "a tensor of draws, (n, m)"


@dataclass(frozen=True)
class C2ST:
    """
    What a classifier two-sample test has found.

    Source: `Revisiting Classifier Two-Sample Tests`, Lopez-Paz and Oquab, ICLR 2017.

    :param float accuracy: of the classifier on draws that it was not trained on, cross-validated:
        0.5 where nothing can be told apart, 1 where everything can.
    :param float p_value: of a classifier that is trained on one half, and right as often on the
        other, if nothing could be told apart: 5% of equal sets are below 0.05, or fewer.
    :param int num_samples: draws on each side.
    """

    accuracy: float
    p_value: float
    num_samples: int

    def __float__(self) -> float:
        return self.accuracy

    def __str__(self) -> str:
        verdict = "nothing found between the two"
        if self.p_value < SIGNIFICANCE_LEVEL:
            verdict = "the two are not draws of one distribution; compare accuracies, best is 0.5"
        return (
            f"classifier accuracy {self.accuracy:.3g} on {self.num_samples} draws of each, p-value "
            f"{self.p_value:.2g}: {verdict}"
        )


def c2st(
    draws: Draws,
    reference: Draws,
    *,
    num_folds: int = 5,
    seed: int = 0,
    classifier: Any = None,
) -> C2ST:
    r"""
    The accuracy of a classifier between two sets of draws, cross-validated.

    **It is the only check here that sees everything**, a missing mode included, and the only one
    that needs reference draws: of long Hamiltonian Monte Carlo, say, or of an earlier fit.

    Entries are standardised by the reference's mean and deviation. The default classifier is that
    of Lueckmann et al. (2021), a perceptron with two hidden layers of ten times as many units as
    entries (at most 200).

    The p-value is of one split into halves, as in Lopez-Paz and Oquab (2017), by Fisher's exact
    test. It is no function of the accuracy: predictions over folds are trained on each other's
    draws, and taken for independent ones they call two to four times as many equal sets different
    as they should.

    Example::

        mcmc = MCMC(NUTS(model), num_samples=2000)
        mcmc.run(x, y)
        accuracy = c2st(posterior_draws(guide, 2000), mcmc.get_samples()).accuracy

    Sources:

    - `Revisiting Classifier Two-Sample Tests`, Lopez-Paz and Oquab, ICLR 2017.
    - `Benchmarking Simulation-Based Inference`, Lueckmann et al., AISTATS 2021.

    :param draws: by site, ``{name: (n, *shape)}``, or a tensor of shape ``(n, m)``.
    :param reference: the same of the other kind; the longer one is thinned to the length of the
        shorter one.
    :param int num_folds: parts of the cross-validation, at least 2.
    :param int seed: of the folds and the classifier.
    :param classifier: any classifier of scikit-learn, not trained.
    :returns: the accuracy, which ``float`` reads, and its p-value.
    :raises ArgumentError: for a bad ``num_folds``, or draws that are not finite.
    :raises MissingExtraError: without scikit-learn.
    :raises ShapeError: for fewer draws than twice the folds, or other shapes than the reference's.
    :raises SiteError: for other sites than the reference's.
    """
    num_folds = check_count("num_folds", num_folds, minimum=2)
    seed = check_seed("seed", seed)
    if classifier is not None and (isinstance(classifier, type) or not hasattr(classifier, "fit")):
        raise ArgumentError(
            f"classifier={shown(classifier)}; expected one of scikit-learn, not trained, such as "
            "LogisticRegression()."
        )
    x, y = _rows(draws, reference)
    count = min(len(x), len(y))
    if count < 2 * num_folds:
        raise ShapeError(f"{count} draws for {num_folds} folds; expected at least {2 * num_folds}")
    x, y = _thinned(x, count), _thinned(y, count)
    spread = y.std(0)
    features = (np.concatenate([x, y]) - y.mean(0)) / np.where(spread > 0, spread, 1.0)
    labels = np.repeat([0, 1], count)
    accuracy, p_value = _cross_validated(features, labels, num_folds, seed, classifier)
    return C2ST(accuracy, p_value, count)


def _cross_validated(
    features: np.ndarray, labels: np.ndarray, num_folds: int, seed: int, classifier: Any
) -> tuple[float, float]:
    """The accuracy over all folds, and the p-value of one half."""
    try:
        from scipy.stats import fisher_exact
        from sklearn.base import clone
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.model_selection import StratifiedKFold
        from sklearn.neural_network import MLPClassifier
    except ImportError as error:
        raise MissingExtraError(
            "c2st needs scikit-learn: pip install pyro-implicit[main]"
        ) from error
    width = min(10 * features.shape[1], 200)
    if classifier is None:
        classifier = MLPClassifier((width, width), max_iter=300, random_state=seed)

    def predicted(parts: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Predictions and labels of each part by a classifier of the others."""
        folds = StratifiedKFold(parts, shuffle=True, random_state=seed)
        for train, test in folds.split(features, labels):
            fitted = clone(classifier).fit(features[train], labels[train])
            yield fitted.predict(features[test]), labels[test]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # enough to tell what can be told
        correct = sum(int((said == true).sum()) for said, true in predicted(num_folds))
        said, true = next(predicted(2))
    table = [[int(((said == i) & (true == j)).sum()) for j in (0, 1)] for i in (0, 1)]
    return correct / len(labels), float(fisher_exact(table, alternative="greater")[1])


def _rows(draws: Draws, reference: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Both as ``(n, m)`` arrays with the same columns."""
    if isinstance(draws, Mapping) and isinstance(reference, Mapping):
        check_tensors("draws", draws, _EXPECTED_SITES, dim=1)
        check_tensors("reference", reference, _EXPECTED_SITES, dim=1)
        if set(draws) != set(reference) or not draws:
            raise SiteError(
                f"draws have sites {sorted(draws)}, the reference has {sorted(reference)}; expected"
                " the same"
            )
        names = sorted(draws)
        pairs = [(draws[name], reference[name]) for name in names]
    elif isinstance(draws, Tensor) and isinstance(reference, Tensor):
        check_tensor("draws", draws, _EXPECTED_ROWS, dim=1)
        check_tensor("reference", reference, _EXPECTED_ROWS, dim=1)
        names, pairs = ["draws"], [(draws, reference)]
    else:
        raise ArgumentError("draws and reference: expected two dictionaries or two tensors")
    for name, (a, b) in zip(names, pairs, strict=True):
        if a.shape[1:] != b.shape[1:]:
            raise ShapeError(
                f"{name!r} has shape {tuple(a.shape)} and {tuple(b.shape)} in the reference; "
                "expected the same but for the number of draws"
            )
    if not sum(a.shape[1:].numel() for a, _ in pairs):
        raise ShapeError("the draws have no entries to compare; expected one at least")
    if any(len(a) != len(pairs[0][0]) or len(b) != len(pairs[0][1]) for a, b in pairs):
        raise ShapeError(f"sites {names} have different numbers of draws; expected one number")
    both = tuple(
        np.concatenate(
            [np.asarray(one.detach().cpu().double()).reshape(len(one), -1) for one in side], 1
        )
        for side in zip(*pairs, strict=True)
    )
    return both[0], both[1]


def _thinned(rows: np.ndarray, count: int) -> np.ndarray:
    thinned: np.ndarray = rows[np.linspace(0, len(rows) - 1, count).round().astype(int)]
    return thinned
