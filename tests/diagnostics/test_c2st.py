"""c2st: half right where nothing differs, the best possible where much does, and its errors."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from pyro_implicit.diagnostics import c2st
from pyro_implicit.exceptions import ArgumentError, MissingExtraError, ShapeError, SiteError

LINEAR = LogisticRegression()


def test_the_same_law_cannot_be_told_apart():
    found = c2st(torch.randn(1000, 2), torch.randn(1000, 2), classifier=LINEAR)
    assert found.accuracy == pytest.approx(0.5, abs=0.05)
    assert found.p_value > 0.01
    assert float(found) == found.accuracy
    assert str(found).endswith("nothing found between the two")


def test_the_best_accuracy_of_a_shift_is_reached():
    """Bayes' rule for N(0, 1) against N(1, 1) is right with probability Phi(1/2)."""
    found = c2st(torch.randn(2000, 1), torch.randn(2000, 1) + 1, classifier=LINEAR)
    best = 0.5 * math.erfc(-0.5 / math.sqrt(2))
    assert found.accuracy == pytest.approx(best, abs=4 * 0.5 / math.sqrt(4000))
    assert found.p_value < 1e-6
    assert found.num_samples == 2000
    assert "on 2000 draws of each" in str(found) and "not draws of one distribution" in str(found)


def _p_values(num, size, dim):
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(num, 2, size, dim, generator=generator)
    pairs = enumerate(draws)
    options = {"num_folds": 2, "classifier": LINEAR}
    return np.array([c2st(*pair, seed=seed, **options).p_value for seed, pair in pairs])


@pytest.mark.long
@pytest.mark.parametrize(("size", "dim"), [(100, 2), (100, 10), (1000, 1)])
def test_equal_sets_are_called_different_as_often_as_the_level_says(size, dim):
    """By binomial tests; predictions over folds as coins fail all of these."""
    p = _p_values(300, size, dim)
    for level in (0.01, 0.05, 0.2):
        count = int((p < level).sum())
        assert stats.binomtest(count, len(p), level, alternative="greater").pvalue > 1e-3
    assert (p < 0.2).mean() > 0.05  # nor is it far below


def test_p_values_of_equal_sets_are_not_too_small():
    p = _p_values(20, 50, 2)
    assert (p < 0.05).sum() <= 4 and (p < 0.6).sum() >= 4


@pytest.mark.long
def test_the_default_classifier_sees_a_missing_mode():
    signs = 2.0 * torch.randint(2, (300, 1)) - 1
    both, one = torch.randn(300, 1) + 4 * signs, torch.randn(300, 1) + 4
    assert c2st(one, both, num_folds=2).accuracy > 0.7


def test_sites_are_flattened_and_the_longer_side_thinned():
    draws = {"a": torch.randn(200), "b": torch.randn(200, 2, 2)}
    reference = {"b": 3 + torch.randn(450, 2, 2), "a": torch.randn(450)}
    found = c2st(draws, reference, classifier=LINEAR)
    assert found.num_samples == 200 and found.accuracy > 0.95
    again = c2st(draws, reference, classifier=LINEAR)
    assert again == found


def test_draws_are_checked():
    x = torch.randn(20, 2)
    with pytest.raises(ArgumentError, match="expected two dictionaries or two tensors"):
        c2st({"a": x}, x)
    with pytest.raises(ArgumentError, match="expected two dictionaries or two tensors"):
        c2st([1.0], [2.0])
    with pytest.raises(SiteError, match=r"draws have sites \['a'\], the reference has \['b'\]"):
        c2st({"a": x}, {"b": x})
    with pytest.raises(ShapeError, match=r"'a' has shape \(20, 2\) and \(20,\) in the reference"):
        c2st({"a": x}, {"a": x[:, 0]})
    with pytest.raises(ShapeError, match="9 draws for 5 folds; expected at least 10"):
        c2st(x[:9], x)
    with pytest.raises(ArgumentError, match="reference has entries that are NaN or infinite"):
        c2st(x, x / 0)
    with pytest.raises(ArgumentError, match="num_folds=1; expected an integer >= 2"):
        c2st(x, x, num_folds=1)
    with pytest.raises(ShapeError, match="different numbers of draws"):
        c2st({"a": x, "b": x[:18]}, {"a": x, "b": x})
    for classifier in ("abc", MLPClassifier):
        with pytest.raises(ArgumentError, match="classifier=.*; expected one of scikit-learn"):
            c2st(x, x, classifier=classifier)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.neural_network", None)
    with pytest.raises(MissingExtraError, match=r"c2st needs scikit-learn: pip install"):
        c2st(torch.randn(20, 2), torch.randn(20, 2))


def test_draws_without_entries_are_refused():
    with pytest.raises(ShapeError, match="no entries to compare"):
        c2st({"w": torch.zeros(40, 0)}, {"w": torch.zeros(40, 0)})
