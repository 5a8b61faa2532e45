"""Tables that are read, and those that are refused with one clear line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import threading
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyro_implicit._main import read_csv, table_file
from pyro_implicit._main.data import (
    DataFileError,
    Table,
    load_bundled,
    split_table,
)
from pyro_implicit._main.read_csv import load_csv
from pyro_implicit.exceptions import ImplicitError, MissingExtraError


def zipped(*names, rows=""):
    """An archive with that many tables."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, rows)
    return content.getvalue()


ROWS = "".join(f"{i},{i * i % 7},{0.5 * i}\n" for i in range(12))


@pytest.mark.parametrize(
    "text",
    [
        ROWS,
        "a,b,target\n" + ROWS,
        "\ufeffa,b,target\n" + ROWS,
        ROWS.replace("\n", "\r\n") + "\r\n\r\n",
        ROWS.replace(",", " , "),
        "a,b,target\n\n" + ROWS.replace("\n", "\n\n"),
    ],
    ids=["plain", "header", "bom", "windows", "spaces", "blank-lines"],
)
def test_reads(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    table = load_csv(path)
    assert table.name == "table.csv"
    assert table.features.shape == (12, 2)
    np.testing.assert_array_equal(table.target, 0.5 * np.arange(12))


@pytest.mark.long
@given(
    hnp.arrays(
        np.float64,
        (12, 3),
        elements=st.floats(allow_nan=False, allow_infinity=False),
        unique=True,  # a column with one value alone would be left out
    )
)
def test_reads_back_every_number(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    path.write_text("\n".join(",".join(map(repr, row)) for row in values.tolist()))
    table = load_csv(path)
    np.testing.assert_array_equal(np.c_[table.features, table.target], values)


MALFORMED = {
    "empty": ("", "is empty"),
    "blank": ("\n \n,,\n", "is empty"),
    "text": (ROWS + "1,two,3\n", "data row 13, column '2': 'two' is not a number"),
    "long-text": (ROWS + f"1,{'x' * 99},3\n", r"row 13, column '2': 'x{27}\.\.\.' is not a number"),
    "dash": (ROWS + "1,-,3\n", r"'-' is not a number \(leave a missing value empty, or write NA\)"),
    "thousands": (ROWS + '1,"-1,217.50",3\n', r"217.50' is not a number \(leave out what separ"),
    "underscore": (ROWS + "1,1_000,3\n", "'1_000' is not a number"),
    "nul": (ROWS + "1,\0,3\n", "NUL characters"),
    "inf": (ROWS + "1,2,-inf\n", "row 13, column '3': -inf is not a finite number"),
    "digits": (ROWS + f"1,2,{'1' * 400}\n", "is not a (finite )?number"),
    "overflow": (ROWS + "1,2,1e999\n", "inf is not a finite number"),
    "one-column": (ROWS.replace(",", "!"), "one column found; expected .* separated by commas"),
    "nine-rows": ("\n".join(ROWS.splitlines()[:9]), "9 data rows found, at least 10"),
    "header-only": ("a,b,c\n", "0 data rows found, at least 10"),
    "three-rows": ("a,b,c\n1,2,3\n4,5,6\n7,8,9\n", "3 data rows found, at least 10"),
    "all-gaps": ("1,,3\n,2,3\n" * 20, "0 data rows found without an empty cell, at least 10"),
    "ragged": (ROWS + "1,2,3,4\n", "line 13: 4 columns found, expected 3"),
    "two-headers": ("a,b,c\na,b,c\n" + ROWS, "data row 1, column 'a': 'a' is not a number"),
    "half-header": ("a,2,c\n" + ROWS, "data row 1, column '1': 'a' is not a number; if that"),
    "empty-target": ("a,b\n" + "1,\n" * 20, "the target 'b' is empty in every row"),
    "names": (
        "".join(f"{i},n{i},{i}\n" for i in range(30)),
        "column '2' holds text of 30 kinds, such as 'n0'",
    ),
    "many-classes": (
        "".join(f"{i},{i},n{i}\n" for i in range(30)),
        "the target '3' holds text of 30 kinds; expected numbers, or 2 to 20 classes",
    ),
    "one-class": ("1,a\n2,a\n" * 9, "the target '2' holds text of 1 kinds"),
    "constant-features": ("1,2\n" * 9 + "1,3\n" * 9, "no column is left to predict '2' from"),
    "binary": (bytes(range(1, 255)) * 20, "not a text file in UTF-8"),
    "huge-cell": ('"' + "1" * 200_000 + '",2,3\n' + ROWS, "one column found"),
    "two-files": (zipped("a.csv", "b.csv"), "holds 2 files; expected one table"),
    "damaged": (gzip.compress(ROWS.encode() * 99)[:-99], "is compressed, and damaged"),
    "half-way": (b"1,2\n" * 50_000 + b"\xe9,2\n", "not a text file in UTF-8"),
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
    with pytest.raises(MissingExtraError, match=r'pip install "pyro-implicit\[main\]"'):
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


# ---- headers of numbers, and index columns

RANDOM = np.random.default_rng(0).normal(size=(30, 3)).round(4)
FRACTIONS = "".join(f"{a},{b},{c}\n" for a, b, c in RANDOM)
COUNTS = "".join(f"{i * 7 % 11},{i * 5 % 13},{i * i % 17}\n" for i in range(30))


def read(tmp_path, text, header="auto"):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return load_csv(path, header)


HEADERS = {
    "years": "1990,1991,1992\n" + FRACTIONS,
    "decades": "1990,2000,2010\n" + FRACTIONS,
    "spaces": " 1990 , 1991 , 1992 \n" + FRACTIONS,
    "counts": "0,1,2\n" + FRACTIONS,
    "counts-over-counts": "100,101,102\n" + COUNTS,
    "downwards": "30,20,10\n" + FRACTIONS,
}


@pytest.mark.parametrize("kind", HEADERS)
def test_header_of_numbers(tmp_path, kind):
    table = read(tmp_path, HEADERS[kind])
    assert len(table.target) == 30
    (note,) = table.notes
    assert note.startswith("the first row (") and note.endswith(
        "was read as a header; say --header no if it is data"
    )
    assert len(read(tmp_path, HEADERS[kind], "no").target) == 31
    asked = read(tmp_path, HEADERS[kind], "yes")
    assert len(asked.target) == 30 and not asked.notes


def test_many_counts_are_a_header(tmp_path):
    rows = "".join(",".join(str((i * j) % 7) for j in range(3, 9)) + "\n" for i in range(20))
    assert len(read(tmp_path, "0,1,2,3,4,5\n" + rows).target) == 20


FIRST_ROWS = {
    "of fractions": "0.5,1.5,2.5\n" + FRACTIONS,
    "of whole numbers among such": "3,1,4\n" + COUNTS,
    "of equal numbers": "1,1,1\n" + FRACTIONS,
    "of a table that counts": "".join(f"{i},{i + 1},{i + 2}\n" for i in range(31)),
}


@pytest.mark.parametrize("kind", FIRST_ROWS)
def test_first_row_of_numbers_that_is_data(tmp_path, kind):
    assert len(read(tmp_path, FIRST_ROWS[kind]).target) == 31


def test_first_row_that_may_be_either_is_told(tmp_path):
    table = read(tmp_path, "1,2,3\n" + COUNTS)
    assert len(table.target) == 31
    assert table.notes == (
        "the first row (1, 2, 3) was read as data; say --header yes if it is a header",
    )


def test_header_of_text_and_numbers(tmp_path):
    text = "400,500,moisture\n" + FRACTIONS
    with pytest.raises(DataFileError, match="'moisture' is not a number; .* say --header yes"):
        read(tmp_path, text)
    assert read(tmp_path, text, "yes").feature_names == ("400", "500")
    with pytest.raises(DataFileError, match="'a' is not a number$"):
        read(tmp_path, "a,b,c\n" + FRACTIONS, "no")


def indexed(name, numbers, quote=""):
    rows = FRACTIONS.splitlines()
    lines = [f"{quote}{i}{quote},{row}" for i, row in zip(numbers, rows, strict=True)]
    return "\n".join([f"{quote}{name}{quote},a,b,target", *lines])


INDICES = {
    "pandas": indexed("", range(30)),
    "pandas, a part": indexed("", range(0, 300, 10)),
    "pandas, read twice": indexed("Unnamed: 0", range(30)),
    "R": indexed("rownames", range(1, 31), quote='"'),
    "shuffled": indexed("Index", np.random.default_rng(0).permutation(30)),
    "id": indexed("row_id", range(5, 35)),
}


@pytest.mark.parametrize("kind", INDICES)
def test_index_is_left_out(tmp_path, kind):
    table = read(tmp_path, INDICES[kind])
    np.testing.assert_array_equal(np.c_[table.features, table.target], RANDOM)
    (note,) = table.notes
    assert "numbers the rows and was left out" in note


FEATURES = {
    "other name": indexed("age", [i % 7 for i in range(30)]),
    "unnamed, not whole": indexed("", [i / 4 for i in range(30)]),
    "unnamed, repeated": indexed("", [i // 2 for i in range(30)]),
    "index of prices": indexed("index", [100 + i * i for i in range(30)]),
}


@pytest.mark.parametrize("kind", FEATURES)
def test_first_column_that_is_no_index(tmp_path, kind):
    table = read(tmp_path, FEATURES[kind])
    assert table.features.shape == (30, 3) and not table.notes


@pytest.mark.parametrize(
    "text", [indexed("time", range(30)), indexed("", range(1, 31)).split("\n", 1)[1]]
)
def test_column_that_counts_the_rows_is_told(tmp_path, text):
    table = read(tmp_path, text)
    assert table.features.shape[1] == 3
    assert table.notes[0].startswith("the first column counts the rows (")


def test_index_and_target_alone(tmp_path):
    text = ",target\n" + "".join(f"{i},{i * i}\n" for i in range(20))
    with pytest.raises(DataFileError, match="one column found beside the index"):
        read(tmp_path, text)


# ---- sizes


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e200, 1e297])
def test_units_beyond_the_squares_of_doubles(unit):
    table = _table()
    other = Table("t", table.features, unit * (table.target - 100.0) / 20.0)
    split = split_table(other, seed=0)
    assert float(split.y_train.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    assert split.y_scale == pytest.approx(unit, rel=0.5)
    features = Table("t", unit * table.features / 100.0, table.target)
    deviations = split_table(features, seed=0).x_train.std(0, correction=0)
    torch.testing.assert_close(deviations, torch.ones(4))


def test_test_row_too_far_away():
    table = _table()
    test_row = np.random.default_rng(0).permutation(40)[0]
    table.features[test_row, 1] = 1e290
    with pytest.raises(DataFileError, match="feature of a test row is too far"):
        split_table(table, seed=0)


@pytest.mark.parametrize("regular", [True, False])
def test_file_larger_than_the_memory(tmp_path, monkeypatch, regular):
    monkeypatch.setattr(read_csv, "ROWS_PER_MEMORY_CHECK", 10)
    monkeypatch.setattr(table_file, "free_memory", lambda: 10_000.0)
    assert len(read(tmp_path, ROWS).target) == 12
    path = tmp_path / "table.csv"
    path.write_text("0.25,1.5\n" * 2000)
    if not regular:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_text, args=("0.25,1.5\n" * 2000,))
        writer.start()
    with pytest.raises(DataFileError, match="too large: the first .* GiB of memory"):
        load_csv(path)
    if not regular:
        writer.join()


def test_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "MAX_LINE_CHARACTERS", 1000)
    monkeypatch.setattr(table_file, "HEAD_SIZE", 500)
    with pytest.raises(DataFileError, match="a line of more than 1000 characters"):
        read(tmp_path, ROWS + "1" * 1001 + ",2,3\n")
    with pytest.raises(DataFileError, match="NUL characters"):
        load_csv("/dev/zero")


# ---- other ways to write a table

#: whose first column does not count
PLAIN = "".join(f"{5 * i % 13},{i * i % 7},{0.5 * i}\n" for i in range(12))


@pytest.mark.parametrize(
    ("mark", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (" ", "blanks")]
)
def test_other_separators_are_found_and_told(tmp_path, mark, name):
    table = read(tmp_path, PLAIN.replace(",", mark))
    np.testing.assert_array_equal(table.target, 0.5 * np.arange(12))
    assert table.notes[0] == f"columns were read as separated by {name}; --sep says otherwise"


def test_decimal_commas(tmp_path):
    table = read(tmp_path, PLAIN.replace(",", ";").replace(".", ","))
    np.testing.assert_array_equal(table.target, 0.5 * np.arange(12))
    assert "decimals written with commas" in table.notes[0]


def test_a_separator_that_is_asked_for(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(PLAIN.replace(",", "!"))
    table = load_csv(path, separator="!")
    assert table.features.shape == (12, 2) and not table.notes


@pytest.mark.parametrize(
    ("compress", "name"),
    [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")],
    ids="gzip bzip2 xz".split(),
)
def test_compressed(tmp_path, compress, name):
    path = tmp_path / "table.csv"
    path.write_bytes(compress(PLAIN.encode()))
    table = load_csv(path)
    np.testing.assert_array_equal(table.target, 0.5 * np.arange(12))
    assert table.notes == (f"the file is compressed ({name})",)


def test_zipped(tmp_path):
    path = tmp_path / "table.zip"
    path.write_bytes(zipped("inner.csv", rows=PLAIN))
    assert load_csv(path).notes == ("the file is compressed (zip, inner.csv)",)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1252", "utf-8"])
def test_encodings(tmp_path, encoding):
    path = tmp_path / "table.csv"
    path.write_bytes(("gr\u00f6\u00dfe,b,ziel\n" + PLAIN).encode(encoding))
    table = load_csv(path)
    assert table.feature_names == ("gr\u00f6\u00dfe", "b") and table.target_name == "ziel"
    told = () if encoding == "utf-8" else (f"the file is encoded in {encoding}",)
    assert table.notes == told


def test_the_target_by_name_or_number(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,c\n" + PLAIN)
    for target in ("a", "1"):
        table = load_csv(path, target=target)
        assert table.feature_names == ("b", "c") and table.target_name == "a"
        np.testing.assert_array_equal(table.target, 5 * np.arange(12) % 13)
    with pytest.raises(
        DataFileError, match=r"no column is called 'aa'; is it 'a'\? There are a, b"
    ):
        load_csv(path, target="aa")
    with pytest.raises(DataFileError, match="no column is called '4'. There are a, b, c"):
        load_csv(path, target="4")


def test_names_that_come_twice(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,a,c\n" + PLAIN)
    table = load_csv(path)
    assert table.feature_names == ("a", "a.1")
    assert table.notes == ("several columns are called 'a'; the others have .1, .2, ... appended",)
    with pytest.raises(DataFileError, match="several columns are called 'a'"):
        load_csv(path, target="a")


def test_gaps_are_left_out_and_told(tmp_path):
    table = read(tmp_path, "a,b,c\n" + PLAIN + "1,,3\n1,nan,3\n1,?,3\n1,2\n")
    assert len(table.target) == 12
    assert table.notes == (
        "4 of 16 rows have a cell that is empty, NA or ? (most in column 'b') and were left out",
    )


def test_columns_that_tell_nothing_are_left_out_and_told(tmp_path):
    rows = "".join(f"{i * i},7,,{i % 5}\n" for i in range(12))
    table = read(tmp_path, "a,seven,gap,target\n" + rows)
    assert table.feature_names == ("a",)
    assert table.notes == (
        "columns without any value were left out: 'gap'",
        "column 'seven' has one value alone and was left out",
    )


def test_text_of_a_few_kinds_becomes_columns(tmp_path):
    rows = "".join(f"{i * i},{'fm'[i % 2]},{i % 7}\n" for i in range(12))
    table = read(tmp_path, "a,sex,target\n" + rows)
    assert table.feature_names == ("a", "sex=f", "sex=m")
    np.testing.assert_array_equal(table.features[:, 1], np.arange(12) % 2 == 0)
    assert table.notes == ("column 'sex' holds text of 2 kinds, and became a column for each",)


@pytest.mark.parametrize("kinds", [("yes", "no"), ("True", "False")])
def test_a_target_of_classes(tmp_path, kinds):
    rows = "".join(f"{i * i},{i % 7},{kinds[i % 2]}\n" for i in range(12))
    table = read(tmp_path, "a,b,target\n" + rows)
    assert table.classes == tuple(sorted(kinds))
    assert [table.classes[int(place)] for place in table.target[:2]] == list(kinds)
    split = split_table(table, seed=0, test_fraction=0.25)
    assert split.y_train.dtype == torch.int64 and len(split.y_test) == 3
    assert (split.y_mean, split.y_scale) == (0.0, 1.0)


def test_a_header_without_a_name_for_the_index(tmp_path):
    """As R writes a table."""
    table = read(
        tmp_path,
        "a,b,target\n" + "".join(f"{i}," + row + "\n" for i, row in enumerate(PLAIN.splitlines())),
    )
    assert table.features.shape == (12, 2) and "numbers the rows" in table.notes[0]


def test_without_pandas(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pyro-implicit\[main\]"):
        read(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ("123", True),
        ("012", True),
        (["0.5", "1.5", "2.5"], False),
        (list(map(str, range(30))), False),
    ],
)
def test_whole_numbers_that_may_be_labels_are_told(tmp_path, labels, told):
    rows = [f"{i / 7:.3f},{labels[i % len(labels)]}" for i in range(60)]
    notes = read(tmp_path, "\n".join(["a,kind", *rows])).notes
    assert any("taken for a quantity" in note for note in notes) == told


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [("a", "-999", True), ("y", "9999", True), ("a", "-999.5", False), ("a", "9", False)],
)
def test_numbers_that_may_stand_for_no_value_are_told(tmp_path, column, value, told):
    rows = [[f"{20 + i % 17}", f"{50 + i % 13}.5"] for i in range(60)]
    for row in rows[::7]:
        row["ay".index(column)] = value
    notes = read(tmp_path, "\n".join(["a,y", *map(",".join, rows)])).notes
    found = [note for note in notes if "stands for no value" in note]
    assert [note.split("'")[1] for note in found] == [column] * told


def test_a_target_is_numbered_as_in_the_file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,a,b,y\n" + "".join(f"{i},{i % 3},{i % 5},{i % 7}\n" for i in range(1, 22)))
    assert [load_csv(path, target=str(n)).target_name for n in (2, 3, 4)] == ["a", "b", "y"]
    for target in ("1", "id"):
        with pytest.raises(DataFileError, match="'id'. numbers the rows and was left out"):
            load_csv(path, target=target)
