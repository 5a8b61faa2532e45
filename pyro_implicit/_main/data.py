"""Tables for the main job, and their split into a training and a test part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyro_implicit.exceptions import ImplicitError, MissingExtraError

TEST_FRACTION = 0.1
MAX_ABSOLUTE_VALUE = 1e300  # beyond it sums and squares of doubles overflow


class DataFileError(ImplicitError, ValueError):
    """A data file that cannot be used; the message is one line that says where and why."""


@dataclass(frozen=True)
class Table:
    """
    A table: finite features ``(N, D)`` and target ``(N,)``, a name, notes to show, names.

    With ``classes`` the target holds their places.
    """

    name: str
    features: np.ndarray
    target: np.ndarray
    notes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    target_name: str = "target"
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """
    A standardised train and test part; the test target stays in its own units.

    ``x_train`` ``(N, D)``, ``y_train`` ``(N,)``, ``x_test`` ``(M, D)``, ``y_test`` ``(M,)``; a
    standardised target ``t`` means ``y_mean + y_scale * t``, and a feature likewise with ``x_mean``
    and ``x_scale``, ``(D,)``. With ``classes`` targets are their places, as integers.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    y_mean: float
    y_scale: float
    notes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    target_name: str = "target"
    classes: tuple[str, ...] = ()
    x_mean: np.ndarray | float = 0.0
    x_scale: np.ndarray | float = 1.0


def load_bundled() -> Table:
    """
    The diabetes data that come with scikit-learn (442 patients, 10 features).

    :raises MissingExtraError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_diabetes
    except ImportError as error:
        raise MissingExtraError(
            "the default data need scikit-learn, which is not installed: "
            'pip install "pyro-implicit[main]", or give a table with --data FILE.csv'
        ) from error
    data = load_diabetes()
    names = tuple(data.feature_names)
    return Table("diabetes (scikit-learn)", data.data, data.target, (), names, "progression")


def split_table(table: Table, seed: int, test_fraction: float = TEST_FRACTION) -> Split:
    """
    Draws some of the rows for testing, and standardises all by the mean and scale of the rest.

    :param Table table: the rows.
    :param int seed: of the random choice; it leaves the global generators alone.
    :param float test_fraction: the share of rows for testing.
    :raises DataFileError: if the target of the training rows is constant, or a column too large.
    """
    num_test = min(max(1, round(test_fraction * len(table.target))), len(table.target) - 2)
    order = np.random.default_rng(seed).permutation(len(table.target))
    test, train = order[:num_test], order[num_test:]
    if max(np.abs(table.features).max(), np.abs(table.target).max()) > MAX_ABSOLUTE_VALUE:
        raise DataFileError(f"{table.name}: a column has values too large to standardise")
    x_mean, x_scale = _mean_and_scale(table.features[train])
    y_mean, y_scale = _units_of_target(table, table.target[train])
    constant = x_scale == 0.0  # nothing can be learned from such a column
    with np.errstate(over="ignore"):
        x = np.where(constant, 0.0, (table.features - x_mean) / np.where(constant, 1.0, x_scale))
    y = (table.target - y_mean) / y_scale
    dtype = torch.get_default_dtype()
    if np.abs(x).max() > torch.finfo(dtype).max:
        raise DataFileError(
            f"{table.name}: a feature of a test row is too far from those of the training rows"
        )

    def part(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=dtype)

    return Split(
        name=table.name,
        x_train=part(x[train]),
        y_train=part(y[train]).long() if table.classes else part(y[train]),
        x_test=part(x[test]),
        y_test=torch.as_tensor(table.target[test]),
        y_mean=float(y_mean),
        y_scale=float(y_scale),
        notes=table.notes,
        feature_names=table.feature_names or tuple(str(i + 1) for i in range(x.shape[-1])),
        target_name=table.target_name,
        classes=table.classes,
        x_mean=x_mean,
        x_scale=x_scale,
    )


def _units_of_target(table: Table, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the target of the training rows is standardised by; classes are left as they are."""
    mean, scale = _mean_and_scale(train)
    if scale == 0.0:
        raise DataFileError(
            f"{table.name}: the target ({table.target_name}) is constant in training rows"
        )
    return (np.zeros(()), np.ones(())) if table.classes else (mean, scale)


def _mean_and_scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per column; a scale of mere rounding counts as zero."""
    # in units of the largest value: squares of 1e-200 would be zero, and of 1e200 infinite
    unit = np.abs(values).max(axis=0)
    unit = np.where(unit > 0.0, unit, 1.0)
    mean, scale = (values / unit).mean(axis=0), (values / unit).std(axis=0)
    return mean * unit, np.where(scale <= 1e-12, 0.0, scale * unit)
