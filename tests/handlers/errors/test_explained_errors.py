"""Raw errors that data have caused, in words of the data; others stay as they are."""

from __future__ import annotations

import os
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_implicit import (
    BayesianModule,
    HyperNetworkGuide,
    LinearisedELBO,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError
from pyro_implicit.handlers.errors import explained_errors as explained_errors_file
from pyro_implicit.handlers.errors.explained_errors import explained, explained_errors
from tests.handlers.calls_on_data import CALLS, X, calls_of, line


@pytest.mark.parametrize(
    "layer, x",
    [
        (nn.Linear(2, 1), X.double()),
        (nn.Linear(2, 1), X.long()),
        (nn.Linear(2, 1).double(), X),
        (nn.Conv1d(4, 1, 1), X.double()),
        (nn.Bilinear(2, 2, 1), X.double()),
    ],
)
def test_numbers_of_different_types(layer: nn.Module, x: Tensor) -> None:
    inputs = (x, x) if isinstance(layer, nn.Bilinear) else (x,)
    with pytest.raises(ArgumentError, match=f"argument 0 is of type {x.dtype}.*x.float") as caught:
        with explained_errors(inputs, {}):
            layer(*inputs)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_data_have_not_caused_stays_as_it_is() -> None:
    for error in (RuntimeError("out of memory"), ValueError("no"), ArgumentError("clear")):
        assert explained(error, (X,), {}) is None
        with pytest.raises(type(error)) as caught, explained_errors((X,), {"y": X}):
            raise error
        assert caught.value is error
    # no argument that could have another type
    assert explained(RuntimeError("mat1 and mat2 must have the same dtype"), (3,), {}) is None


@pytest.mark.parametrize("validates", [True, False])
def test_guides_and_fit_tell(validates: bool) -> None:
    net = BayesianModule(nn.Linear(2, 1), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Any = None) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("rows", 4):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    y = torch.zeros(4)
    with pyro.validation_enabled(validates):
        with pytest.raises(ArgumentError, match="'?x'? is of type torch.float64|argument 0 is of"):
            HyperNetworkGuide(model).setup(X.double(), y)
        with pytest.raises(ArgumentError, match="numbers of different types"):
            fit(model, HyperNetworkGuide(model), X.double(), y, progress=False)
        more = torch.ones(5, 2)
        message = "plate 'rows' has 4 rows and site 'y' in it has 5"
        for y in (torch.zeros(5), torch.zeros(4)):
            with pytest.raises(ShapeError, match=message):
                fit(model, HyperNetworkGuide(model), more, y, progress=False)
        with pytest.raises(ShapeError, match=message):
            HyperNetworkGuide(model).setup(more, torch.zeros(5))


def test_labels_of_whole_numbers() -> None:
    def model(y: Tensor) -> None:
        p = pyro.sample("p", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 4):
            pyro.sample("y", dist.Bernoulli(logits=p), obs=y)

    labels = torch.tensor([0, 1, 1, 0])
    with pytest.raises(ArgumentError, match=r"whole numbers, as dist.Bernoulli.*obs=y.float\(\)"):
        fit(model, HyperNetworkGuide(model), labels, progress=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_made_of_a_fitted_guide_tells_too() -> None:
    net = BayesianModule(nn.Linear(2, 1), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Any = None) -> Any:
        f = net(x).squeeze(-1)
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    y = torch.zeros(4)
    guide = HyperNetworkGuide(model, init_from=None).setup(X, y)
    with pytest.raises(ShapeError, match="order of the model's own"):
        fit(model, guide, y, X, progress=False)
    for x, kind, message in (
        (X.double(), ArgumentError, "numbers of different types: argument 0 is of type"),
        (torch.ones(4, 3), ShapeError, r"argument 0 has shape \(4, 3\)"),
    ):
        with pytest.raises(kind, match=message):
            predict(model, guide, x, num_samples=2)
        with pytest.raises(kind, match=message):
            evaluate(model, guide, x, y, num_samples=2)
        with pytest.raises(kind, match=message):
            log_predictive_density(model, guide, x, y, num_samples=2)


@pytest.mark.parametrize("kind", [lambda x: x.numpy(), lambda x: x.tolist()])
def test_arrays_and_lists_in_place_of_tensors(kind: Any) -> None:
    net = nn.Linear(2, 1)
    name = type(kind(X)).__name__
    with pytest.raises(ArgumentError, match=f"argument 0 is a {name}, .*torch.as_tensor") as caught:
        with explained_errors((kind(X),), {"n": 3}):
            net(kind(X))
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(ArgumentError, match="y is a ndarray"):
        with explained_errors((X,), {"y": X.numpy()}):
            X.numpy().numel()


def test_a_number_in_place_of_observations() -> None:
    def model(y: Any) -> None:
        pyro.sample("y", dist.Normal(pyro.sample("w", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    guide = HyperNetworkGuide(model, init_from=None)
    guide.setup(torch.tensor(3.0))
    with pytest.raises(ArgumentError, match=r"'y' is observed at 3.0, a float.*tensor\(3.0\)"):
        log_predictive_density(model, guide, 3.0, num_samples=2)


def test_missing_arguments_and_other_containers() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x = torch.ones(4)
    guide = HyperNetworkGuide(model, init_from=None)
    fit(model, guide, x, x, num_steps=1, progress=False)
    with pytest.raises(ArgumentError, match=r"missing 1 .* 'y'. .* need a default, as in def mod"):
        predict(model, guide, x, num_samples=2)
    with pytest.raises(ArgumentError, match="2 positional arguments but 3 were .* given by name"):
        fit(model, guide, x, x, 100, progress=False)
    loader = DataLoader(TensorDataset(x, x))
    with pytest.raises(ArgumentError, match="argument 0 .* is a DataLoader; write batches=loader"):
        fit(model, guide, loader, num_steps=1)
    other = HyperNetworkGuide(lambda data: model(data.exp(), x), init_from=None)
    with pytest.raises(ArgumentError, match=r"argument 0 is a tuple, .* \*data for a tuple"):
        fit(other.model, other, (x, x), num_steps=1)


def test_a_call_within_a_model_that_lacks_an_argument_stays() -> None:
    def link(x: Tensor, slope: Tensor) -> Tensor:
        return x * slope

    def model(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        link(x)  # type: ignore[call-arg]

    def other(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        link(x, x, x)  # type: ignore[call-arg]

    def of_pyro(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(0.0))

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'scale'$"):
        HyperNetworkGuide(of_pyro, init_from=None).setup(X)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'slope'$"):
        HyperNetworkGuide(model, init_from=None).setup(X)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given$"):
        HyperNetworkGuide(other, init_from=None).setup(X)


def test_other_errors_of_types_stay() -> None:
    for value in ("text", [], [X], {"a": 1}, 3.0):
        with pytest.raises(TypeError, match="^no$"), explained_errors((X, value), {}):
            raise TypeError("no")


def test_observations_that_are_true_or_false() -> None:
    with pytest.raises(ArgumentError, match=r"true or false.*obs=y.float"):
        with explained_errors((X, X > 0), {}):
            dist.Normal(0.0, 1.0).log_prob(X > 0)
    with pytest.raises(ShapeError, match="other numbers of rows: argument 0 has shape"):
        with explained_errors((X, X[:3]), {}):
            X + X[:3]


@pytest.mark.parametrize("pack", [tuple, list])
def test_all_data_in_one_argument(pack: Any) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=y)

    data, guide = pack((X, X[:, 0])), HyperNetworkGuide(model, init_from=None)
    match = rf"argument 0 is a {pack.__name__} of 2 tensors, .* Write \*data, so that each is"
    with pytest.raises(ArgumentError, match=match):
        fit(model, guide, data, num_steps=2, progress=False)
    with pytest.raises(ArgumentError, match=match):
        predict(model, guide.setup(*data), data, num_samples=2)


def test_a_model_may_take_a_tuple() -> None:
    def model(data: tuple[Tensor, Tensor]) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(data[0])):
            pyro.sample("y", dist.Normal((data[0] * w).sum(-1), 1.0), obs=data[1])

    guide = HyperNetworkGuide(model, init_from=None)
    fit(model, guide, (X, X[:, 0]), num_steps=2, progress=False)


@pytest.mark.long
@pytest.mark.parametrize("init_from", ["auto", None])
def test_a_series_that_is_filled_in_place(init_from: Any) -> None:
    y = torch.linspace(-1.0, 1.0, 6)

    def model(y: Tensor) -> None:
        phi, mean = pyro.sample("phi", dist.Normal(0.0, 0.5)), torch.zeros(len(y))
        for t in range(1, len(y)):
            mean[t] = phi * mean[t - 1] + y[t - 1]
        with pyro.plate("times", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(ArgumentError, match=r"writes into a tensor .* torch.stack\(values, -1\)"):
        fit(model, HyperNetworkGuide(model, init_from=init_from), y, num_steps=5, progress=False)

    def joined(y: Tensor) -> None:
        phi, means = pyro.sample("phi", dist.Normal(0.0, 0.5)), [torch.tensor(0.0)]
        for t in range(1, len(y)):
            means.append(phi * means[-1] + y[t - 1])
        mean = torch.stack(means, -1)
        with pyro.plate("times", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    fit(joined, HyperNetworkGuide(joined, init_from=init_from), y, num_steps=5, progress=False)


@pytest.mark.parametrize("name", CALLS)
def test_all_data_in_one_object(name: str) -> None:
    guide = HyperNetworkGuide(line).setup(X, X[:, 0])
    packed = TensorDataset(X, X[:, 0])
    with pytest.raises(ArgumentError, match=r"argument 0 is a TensorDataset.*\*dataset.tensors"):
        CALLS[name](guide, packed)
    with pytest.raises(ArgumentError, match=r"argument 0 is a dict of 2 tensors.*Write \*\*data"):
        CALLS[name](guide, {"x": X, "y": X[:, 0]})


def test_sites_of_the_same_name() -> None:
    def twice(x: Tensor, y: Tensor | None = None) -> None:
        w = [pyro.sample("w", dist.Normal(0.0, 1.0)) for _ in range(2)]
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w[0] + w[1], 1.0), obs=y)

    for call in (
        lambda: HyperNetworkGuide(twice).setup(X, X[:, 0]),
        lambda: fit(twice, HyperNetworkGuide(twice), X, X[:, 0], progress=False),
    ):
        with pytest.raises(SiteError, match="several sites named 'w'") as caught:
            call()
        assert "Trace Shapes" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "validation"])
def test_a_table_of_pandas(name: str) -> None:
    pandas = pytest.importorskip("pandas")

    def by_column(x: Any, y: Any = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(w[..., 0] * x[0, 1], 1.0), obs=y)

    guide = HyperNetworkGuide(line).setup(X, X[:, 0])
    table = pandas.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [0.0, 1.0, 2.0, 3.0]})
    with pytest.raises(ArgumentError, match=r"argument 0 is a DataFrame.*torch.as_tensor"):
        calls_of(by_column)[name](guide, table, X[:, 0])


def test_a_model_that_takes_a_dictionary_keeps_its_own_errors() -> None:
    assert explained(KeyError("z"), ({"x": X, "y": X},), {}) is None


def counted(total: Tensor, y: Any = None) -> None:
    weights = pyro.sample("weights", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("rows", len(total)):
        pyro.sample("y", dist.DirichletMultinomial(weights, total_count=total), obs=y)


def test_rows_of_different_counts() -> None:
    total, y = torch.tensor([3.0, 5.0]), torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 1.0]])

    def guide(*args: Any) -> None:
        pyro.sample("weights", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))

    for call in (
        lambda: predict(counted, guide, total, num_samples=2),
        lambda: to_arviz(counted, guide, total, y, num_samples=2),
    ):
        with pytest.raises(SiteError, match=r"rows of different counts.*'log_likelihood'"):
            call()
    groups = ("posterior", "log_likelihood")
    data = to_arviz(counted, guide, total, y, num_samples=2, groups=groups)
    assert data["log_likelihood"]["y"].shape == (1, 2, 2)
    assert predict(counted, guide, total * 0 + 3, num_samples=2)["y"].shape == (2, 2, 3)


class Group:
    """Has nothing."""


@pytest.mark.parametrize("sizes", [[1, 2, 3], torch.ones(3).numpy(), 3, (1, 2, 3)])
@pytest.mark.parametrize("call", [evaluate, to_arviz, log_predictive_density, predict])
def test_what_a_model_says_of_itself_is_no_news_of_its_arguments(call: Any, sizes: Any) -> None:
    def model(x: Tensor, sizes: Any, y: Any = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        if sizes != 2 if isinstance(sizes, int) else len(sizes) != 2:
            raise ValueError("two groups are expected")
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x[:, 0] * w, 1.0), obs=y)

    fine = 2 if isinstance(sizes, int) else sizes[:2]
    guide = HyperNetworkGuide(model).setup(X, fine, X[:, 0])
    with pytest.raises(ValueError, match="^two groups are expected") as caught:
        call(model, guide, X, sizes, X[:, 0], num_samples=2)
    assert not isinstance(caught.value, ArgumentError)


def test_an_attribute_that_is_missing_elsewhere_is_not_that_of_a_number() -> None:
    def run(n: int) -> None:
        Group().size  # type: ignore[attr-defined]  # noqa: B018

    with pytest.raises(AttributeError, match="'Group'"), explained_errors((3,), {}):
        run(3)


def test_what_another_library_raises_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """By where its file is, not by its name."""
    code = compile("def run(x):\n    raise RuntimeError('a list of what')", "/lib/other.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    with pytest.raises(RuntimeError, match="^a list of what"), explained_errors(([1.0],), {}):
        names["run"]([1.0])
    monkeypatch.setattr(explained_errors_file, "_LIBRARY_FOLDERS", ("/lib",))
    with pytest.raises(ArgumentError, match="argument 0 is a list"), explained_errors(([1.0],), {}):
        names["run"]([1.0])


def test_lists_that_nobody_speaks_of_are_not_to_blame() -> None:
    table = {"a": 0.0}

    def model(x: Tensor, names: list[str]) -> None:
        pyro.sample("w", dist.Normal(table[names[1]], 1.0))

    def misspelt(x: Tensor, layers: list[int]) -> None:
        pyro.sample("w", dist.Normal(x.shap[0], 1.0))  # type: ignore[attr-defined]

    x = torch.ones(3)
    for program, other, kind in ((model, ["a", "b"], KeyError), (misspelt, [3, 4], AttributeError)):
        with pytest.raises(kind), explained_errors((x, other), {}):
            program(x, other)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("values", "use"),
    [
        ([1.0, 2.0], lambda x: torch.stack(x)),
        ([[0, 1], [1, 0]], lambda x: torch.zeros(3)[x]),
        ([1.0, 2.0], lambda x: x[0].numel()),
    ],
)
def test_lists_of_numbers_are_to_blame_for_what_torch_says_of_entries(
    values: Any, use: Any
) -> None:
    with (
        pytest.raises(ArgumentError, match="argument 0 is a list"),
        explained_errors((values,), {}),
    ):
        use(values)


@pytest.mark.parametrize(
    ("value", "use"),
    [
        ("rows.csv", lambda x: x @ torch.ones(2)),
        (3, lambda x: len(x)),
        (3.0, lambda x: x[0]),
        (3, lambda x: list(x)),
        (3.0, lambda x: x.shape),
    ],
)
def test_numbers_and_texts_are_to_blame_for_what_tensors_have(value: Any, use: Any) -> None:
    kind = f"argument 0 is a {type(value).__name__}, and the model says"
    with pytest.raises(ArgumentError, match=kind), explained_errors((value,), {}):
        use(value)


def test_options_are_not_to_blame_for_the_types_of_others() -> None:
    with pytest.raises(TypeError, match="'str'"), explained_errors((3,), {}):
        "rows.csv" @ torch.ones(2)  # type: ignore[operator]
    with pytest.raises(TypeError, match="'str'"), explained_errors((), {"link": "log"}):
        _ = 2 + "m"  # type: ignore[operator]


def test_libraries_are_folders_and_not_what_their_names_begin() -> None:
    beside = f"{explained_errors_file._LIBRARY_FOLDERS[-1].rstrip(os.sep)}_projects/model.py"
    for place, kind in ((beside, RuntimeError), (pyro.__file__, ArgumentError)):
        names: dict[str, Any] = {}
        exec(compile("def run(x):\n    raise RuntimeError('a list')", place, "exec"), names)
        with pytest.raises(kind), explained_errors(([1.0],), {}):
            names["run"]([1.0])


def test_a_dictionary_of_a_batch_for_a_model_of_one_dictionary() -> None:
    def model(batch: Any) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))

    batches = [{"x": torch.ones(3)}]
    with pytest.raises(ArgumentError, match=r"'x'. Model .* in batches are .*\[\(batch,\), "):
        fit(model, HyperNetworkGuide(model), batches=batches, num_steps=2, progress=False)


def test_held_out_arguments_of_a_model_of_names_alone() -> None:
    def model(*, x: Any) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=x)

    x = torch.ones(3)
    guide = HyperNetworkGuide(model)
    with pytest.raises(ArgumentError, match="takes 0 positional arguments but 1 positional"):
        fit(model, guide, x=x, validation=(x + 1,), num_steps=150, progress=False)


def _of_event(size: int, *, plate: bool = False) -> Any:
    """A model of a latent in a plate, or of an event; of none, a number."""

    def model(x: Tensor) -> None:
        if plate:
            with pyro.plate("columns", size):
                w = pyro.sample("w", dist.Normal(0.0, 1.0))
        else:
            shape = [size] if size else []
            w = pyro.sample("w", dist.Normal(torch.zeros(shape), 1.0).to_event(bool(size)))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w.sum(), 1.0), obs=x)

    return model


@pytest.mark.parametrize("kind", [HyperNetworkGuide, AutoNormal])
@pytest.mark.parametrize(
    "model", [_of_event(0), _of_event(3), _of_event(2, plate=True)], ids=["number", "3", "plate"]
)
def test_a_guide_of_another_model_by_its_shapes(kind: Any, model: Any) -> None:
    guide, x = kind(_of_event(2)), torch.ones(4)
    guide(x)
    objective = Trace_ELBO() if kind is AutoNormal else LinearisedELBO(2)
    with pytest.raises(ShapeError, match=r"'w'.* of another model"):
        fit(model, guide, x, objective=objective, num_steps=2, progress=False)
