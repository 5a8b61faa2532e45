"""Tables that are read, and those that are refused with one clear line."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyro_implicit._main.data import (
    DataFileError,
    Table,
    load_bundled,
    load_csv,
    split_table,
)
from pyro_implicit.exceptions import ImplicitError, MissingExtraError

ROWS = "".join(f"{i},{i * i % 7},{0.5 * i}\n" for i in range(12))


@pytest.mark.parametrize(
    "text",
    [
        ROWS,
        "a,b,target\n" + ROWS,
        "\ufeff,b,target\n" + ROWS,
        ROWS.replace("\n", "\r\n") + "\r\n\r\n",
        ROWS.replace(",", " , "),
        "a,b,target\n\n" + ROWS.replace("\n", "\n\n"),
    ],
    ids=["plain", "header", "bom-and-unnamed-column", "windows", "spaces", "blank-lines"],
)
def test_reads(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    table = load_csv(path)
    assert table.name == "table.csv"
    assert table.features.shape == (12, 2)
    np.testing.assert_array_equal(table.target, 0.5 * np.arange(12))


@given(hnp.arrays(np.float64, (12, 3), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_reads_back_every_number(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    path.write_text("\n".join(",".join(map(repr, row)) for row in values.tolist()))
    table = load_csv(path)
    np.testing.assert_array_equal(np.c_[table.features, table.target], values)


MALFORMED = {
    "empty": ("", "is empty"),
    "blank": ("\n \n,,\n", "is empty"),
    "text": (ROWS + "1,two,3\n", "line 13, column 2: 'two' is not a number"),
    "long-text": (ROWS + f"1,{'x' * 99},3\n", r"line 13, column 2: 'x{27}\.\.\.' is not a number"),
    "underscore": (ROWS + "1,1_000,3\n", "'1_000' is not a number"),
    "nul": (ROWS + "1,\0,3\n", "line"),
    "empty-cell": (ROWS + "1,,3\n", "line 13, column 2: an empty cell"),
    "nan": (ROWS + "1,nan,3\n", "line 13, column 2: 'nan' is not a finite number"),
    "inf": (ROWS + "1,2,-inf\n", "line 13, column 3: '-inf' is not a finite number"),
    "overflow": (ROWS + "1,2,1e999\n", "'1e999' is not a finite number"),
    "one-column": (ROWS.replace(",", ";"), "one column found; expected .* separated by commas"),
    "nine-rows": ("\n".join(ROWS.splitlines()[:9]), "9 data rows found, at least 10"),
    "header-only": ("a,b,c\n", "0 data rows found, at least 10"),
    "ragged": (ROWS + "1,2\n", "line 13: 2 columns found, expected 3"),
    "two-headers": ("a,b,c\na,b,c\n" + ROWS, "line 2, column 1: 'a' is not a number"),
    "half-header": ("a,2,c\n" + ROWS, "line 1, column 1: 'a' is not a number"),
    "not-text": (b"\xff\xfe\x00\x01" * 20, "not a text file in UTF-8"),
    "huge-cell": ('"' + "1" * 200_000 + '",2,3\n' + ROWS, "not a CSV file"),
}


@pytest.fixture(params=MALFORMED)
def malformed(request, tmp_path):
    """A malformed file, and what is to be said of it."""
    content, message = MALFORMED[request.param]
    path = tmp_path / "malformed.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path, message


def test_malformed(malformed):
    path, message = malformed
    with pytest.raises(DataFileError, match=message) as caught:
        load_csv(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ImplicitError) and isinstance(caught.value, ValueError)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(DataFileError, match=r"no\.csv: cannot be read \(No such file"):
        load_csv(tmp_path / "no.csv")
    with pytest.raises(DataFileError, match=r"cannot be read \("):
        load_csv(tmp_path)


def test_bundled():
    table = load_bundled()
    assert table.features.shape == (442, 10) and table.target.shape == (442,)


def test_bundled_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r'pip install "pyro-implicit\[tutorials\]"'):
        load_bundled()


def _table(rows=40, seed=0):
    generator = np.random.default_rng(seed)
    return Table("t", generator.normal(3, 5, (rows, 4)), generator.normal(100, 20, rows))


def test_split_is_standardised_by_its_training_part():
    table = _table()
    split = split_table(table, seed=1)
    assert split.x_train.shape == (36, 4) and split.x_test.shape == (4, 4)
    for train in (split.x_train, split.y_train):
        torch.testing.assert_close(train.mean(0), torch.zeros(train.shape[1:]), atol=1e-5, rtol=0)
        deviation = train.std(0, correction=0)
        torch.testing.assert_close(deviation, torch.ones(train.shape[1:]))
    both = torch.cat([split.y_mean + split.y_scale * split.y_train.double(), split.y_test])
    np.testing.assert_allclose(sorted(both.tolist()), sorted(table.target), rtol=1e-6)


def test_split_depends_on_the_seed_alone():
    one, other, third = (split_table(_table(), seed) for seed in (1, 1, 2))
    assert torch.equal(one.x_train, other.x_train) and torch.equal(one.y_test, other.y_test)
    assert not torch.equal(one.y_test, third.y_test)


def test_split_leaves_the_global_generators_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    split_table(_table(), seed=3)
    assert torch.equal(torch_state, torch.get_rng_state())
    np.testing.assert_array_equal(numpy_state, np.random.get_state()[1])


def test_constant_column_carries_nothing():
    table = _table()
    table.features[:, 2] = 0.1  # 0.1 has rounding in its mean
    split = split_table(table, seed=0)
    assert not split.x_train[:, 2].any() and not split.x_test[:, 2].any()


def test_constant_target():
    with pytest.raises(DataFileError, match="target .* is constant"):
        split_table(Table("t", _table().features, np.full(40, 0.1)), seed=0)


@pytest.mark.parametrize("column", ["features", "target"])
def test_values_too_large(column):
    table = _table()
    getattr(table, column)[::3] = 1e308
    with pytest.raises(DataFileError, match="too large to standardise"):
        split_table(table, seed=0)
