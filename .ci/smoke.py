"""A fit and a prediction by the installed package, in seconds: for a clean environment."""

import pyro
import pyro.distributions as dist
import torch

import pyro_implicit
from pyro_implicit import HyperNetworkGuide, fit, predict


def model(x, y=None):
    """A line with unknown noise."""
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(slope * x, noise), obs=y)


if __name__ == "__main__":
    x = torch.linspace(-1.0, 1.0, 50)
    y = 0.7 * x + 0.1 * torch.sin(40.0 * x)
    guide = HyperNetworkGuide(model)
    result = fit(model, guide, x, y, num_steps=300, seed=0, progress=False)
    slope = guide.median()["slope"].item()
    draws = predict(model, guide, x, num_samples=10)["y"]
    print(pyro_implicit.__version__, pyro_implicit.__file__, result.reason, f"slope {slope:.2f}")
    if not (0.5 < slope < 0.9 and draws.shape == (10, 50)):
        raise SystemExit("the fit is not what it should be")
