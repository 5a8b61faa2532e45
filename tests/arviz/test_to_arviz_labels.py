"""Names and labels of dimensions, and names of variables."""

from __future__ import annotations

import functools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.contrib.autoname import scope
from pyro.infer.autoguide import AutoNormal

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.arviz.compatibility import import_arviz
from pyro_implicit.arviz.to_arviz import to_arviz
from pyro_implicit.exceptions import ArgumentError, SiteError

arviz = import_arviz()
X, Y = torch.randn(6, 3), torch.randn(6)


def model(x, y=None, offset=0.0):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("group", 2):
        pyro.sample("v", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.deterministic("mean", x @ w + offset)
        pyro.sample("y", dist.Normal(x @ w + offset, 1.0), obs=y)


def export(program=model, *args, **options):
    options = {"num_samples": 2, **options}
    return to_arviz(program, AutoNormal(program), *(args or (X, Y)), **options)


def dims(data, group, name):
    return data[group][name].dims[0 if group.endswith("data") else 2 :]


def test_dims_and_coords_from_plates():
    data = export()
    assert dims(data, "posterior", "w") == ("w_dim_0",)
    assert dims(data, "posterior", "v") == ("group", "v_dim_0")
    assert dims(data, "prior", "v") == ("group", "v_dim_0")
    assert dims(data, "posterior", "mean") == ("data",)
    for group in ("posterior_predictive", "log_likelihood", "observed_data"):
        assert dims(data, group, "y") == ("data",)
        assert list(data[group].coords["data"].values) == list(range(6))
    assert dims(data, "constant_data", "x") == ("data", "x_dim_0")
    assert list(data["posterior"].coords["group"].values) == [0, 1]


def test_dims_and_coords_of_the_user():
    labels = {"input": ["a", "b", "c"], "data": [f"row{i}" for i in range(6)]}
    names = {"w": ["input"], "v": ["output"], "x": ["row", "input"], "y": ["data"]}
    data = export(coords=labels, dims=names)
    assert dims(data, "posterior", "w") == ("input",)
    assert dims(data, "posterior", "v") == ("group", "output")  # only those without a plate
    assert dims(data, "constant_data", "x") == ("row", "input")  # all of them
    assert list(data["posterior"].coords["input"].values) == ["a", "b", "c"]
    assert list(data["log_likelihood"].coords["data"].values) == labels["data"]
    assert data["posterior"]["w"].sel(input="b").shape == (1, 2)


def test_log_likelihood_follows_the_names_of_the_observed_value():
    def program(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc, 1.0).expand([6, 3]).to_event(1), obs=y)

    data = export(program, X, dims={"y": ["person", "item"]})
    assert dims(data, "observed_data", "y") == ("person", "item")
    assert dims(data, "log_likelihood", "y") == ("person",)
    assert data["log_likelihood"]["y"].shape == (1, 2, 6)


def test_a_batch_dimension_without_a_plate_is_no_datum():
    def program(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y), dim=-2):
            pyro.sample("y", dist.Normal(loc, 1.0).expand([6, 3]), obs=y)

    data = export(program, X)
    assert dims(data, "observed_data", "y") == ("data", "y_dim_0")
    assert dims(data, "log_likelihood", "y") == ("data",)


@pytest.mark.long
@pytest.mark.parametrize("plate", ["x", "draw", "chain"])
def test_a_plate_named_like_a_variable_or_a_sample_dimension(plate, tmp_path):
    def program(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate(plate, len(x)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    data = export(program, X, Y)
    assert dims(data, "observed_data", "y") == (f"{plate}_dim",)
    data.to_netcdf(tmp_path / "data.nc")
    assert arviz.from_netcdf(tmp_path / "data.nc")["constant_data"]["x"].dims[0] == f"{plate}_dim"


@pytest.mark.long
def test_names_with_slashes_become_dots(tmp_path):
    scoped = scope(model, prefix="net")
    data = export(scoped, X, Y)
    assert {"net.w", "net.v", "net.mean"} == set(data["posterior"].data_vars)
    assert dims(data, "posterior", "net.v") == ("group", "net.v_dim_0")
    data.to_netcdf(tmp_path / "data.nc")
    assert "net.y" in arviz.from_netcdf(tmp_path / "data.nc")["log_likelihood"]


def test_names_that_become_one_are_an_error():
    def program():
        pyro.sample("a.b", dist.Normal(0.0, 1.0))
        pyro.sample("a/b", dist.Normal(0.0, 1.0))

    def guide():
        program()

    with pytest.raises(SiteError, match=r"'a/b' and 'a.b' would both be saved as 'a.b'"):
        to_arviz(program, guide, num_samples=1)


class Program(pyro.nn.PyroModule):
    def forward(self, x, y=None):
        return model(x, y)


@pytest.mark.parametrize(
    ("program", "args", "kwargs", "expected"),
    [
        (model, (X, Y), {}, {"x"}),
        (model, (X,), {"y": Y, "offset": torch.tensor(1.0)}, {"x", "offset"}),
        (Program(), (X, Y), {}, {"x"}),
        (functools.partial(model, y=Y), (X,), {}, {"x"}),
        (lambda *inputs, **more: model(inputs[0], **more), (X, X), {"y": Y}, {"inputs_0"}),
    ],
)
def test_constant_data_are_named_by_the_signature(program, args, kwargs, expected):
    data = to_arviz(program, AutoNormal(program), *args, num_samples=1, **kwargs)
    names = set(data["constant_data"].data_vars)
    assert expected <= names and "y" not in names


def test_a_hidden_signature_gives_numbered_arguments():
    class Hidden:
        __signature__ = "nonsense"

        def __call__(self, *args):
            return model(*args)

    data = export(Hidden(), X, Y)
    assert set(data["constant_data"].data_vars) == {"arg_0"}


@pytest.mark.parametrize("copy", [torch.clone, torch.Tensor.double, lambda y: y[:, None][:, 0]])
def test_an_argument_of_which_a_copy_is_observed_is_no_constant(copy):
    def program(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=copy(y))

    table = torch.randn(6, 2)  # both are views of one tensor
    data = export(program, table[:, 0], table[:, 1])
    assert set(data["constant_data"].data_vars) == {"x"}


def test_a_constant_that_fits_two_plates_gets_neither_name():
    def program(y, c):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 6, dim=-2), pyro.plate("columns", 6, dim=-1):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    data = export(program, torch.randn(6, 6), Y)
    assert dims(data, "constant_data", "c") == ("c_dim_0",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"nothing": ["a"]}}, r"dims names \['nothing'\], which are no variables"),
        ({"dims": {"w": ["a", "b"]}}, r"dims\['w'\] has 2 names; expected 1"),
        ({"dims": {"v": ["a", "b", "c"]}}, r"dims\['v'\] has 3 names; expected 2 .*, or 1 for"),
        ({"dims": {"v": ["a", "a"]}}, r"dims\['v'\] is \['a', 'a'\]; expected names that differ"),
        ({"dims": {"w": ["draw"]}}, r"found \['draw'\]"),
        ({"dims": {"w": ["x"]}}, r"found \['x'\]"),
        ({"dims": {"w": ["a"], "v": ["a"]}}, r"calls a dimension of size 4 'a', which has size 3"),
        ({"coords": {"nothing": [1]}}, "coords names 'nothing', which is no dimension"),
        ({"coords": {"w_dim_0": [1, 2]}}, r"coords\['w_dim_0'\] has 2 labels; expected 3"),
        ({"coords": {"w_dim_0": "abc"}}, r"coords\['w_dim_0'\]='abc'; expected a sequence"),
    ],
)
def test_names_and_labels_are_checked(options, message):
    with pytest.raises(ArgumentError, match=message):
        export(model, X, Y, **options)


def test_scalar_data():
    def program(y, c):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    data = export(program, torch.tensor(2.0), torch.tensor(3.0))
    assert data["observed_data"]["y"].dims == ("y_dim_0",)
    np.testing.assert_array_equal(data["constant_data"]["c"].values, [3.0])
    assert data["log_likelihood"]["y"].shape == (1, 2)


@pytest.mark.parametrize("name", ["chain", "draw"])
@pytest.mark.parametrize("is_data", [False, True])
def test_a_site_that_is_called_as_a_dimension_of_draws_is_refused(name, is_data):
    """ArviZ makes it a coordinate, whose values are then those of the draws."""

    def model(y=None):
        mean = pyro.sample("mean" if is_data else name, dist.Normal(0.0, 1.0))
        with pyro.plate("data", 3):
            pyro.sample(name if is_data else "y", dist.Normal(mean, 1.0), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(torch.zeros(3))
    with pytest.raises(ArgumentError, match=f"a site '{name}', and ArviZ calls a dimension"):
        to_arviz(model, guide, torch.zeros(3), num_samples=2)


def test_a_name_of_a_plate_for_a_dimension_of_another_size():
    def model(x, y=None):
        b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x * b).sum(-1), 1.0), obs=y)

    def guide(x, y=None):
        pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    found = r"dims\['b'\] calls a dimension of size 3 'data', which has size 6 elsewhere"
    with pytest.raises(ArgumentError, match=found):
        to_arviz(model, guide, X, Y, num_samples=2, dims={"b": ["data"]})


@pytest.mark.parametrize("groups", [None, ("posterior",), ("posterior", "posterior_predictive")])
def test_a_guide_of_another_model_is_refused(groups):
    def model(x, y=None):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(b, 1.0), obs=y)

    def guide(x, y=None):
        pyro.sample("w", dist.Normal(0.0, 1.0))

    with pytest.raises(SiteError, match=r"the guide draws \['w'\], none of which"):
        to_arviz(model, guide, X, Y, num_samples=2, groups=groups)


@pytest.mark.parametrize(
    "labels",
    [
        3,
        None,
        "abcdef",
        set(range(6)),
        iter(range(6)),
        torch.zeros(6, 2).numpy(),
        [[0], [1, 2], [], [], [], []],
    ],
)
def test_labels_that_are_no_sequence_are_refused(labels):
    with pytest.raises(ArgumentError, match=r"(?s)coords\['data'\]=.*a label for each entry"):
        export(coords={"data": labels})
