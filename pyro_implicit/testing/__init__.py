"""The checks that every guide, objective and generator must pass, for those written elsewhere."""

from pyro_implicit.testing.generator import check_generator
from pyro_implicit.testing.guide import check_guide
from pyro_implicit.testing.models import MODELS, ROWS, Case
from pyro_implicit.testing.objective import check_objective

__all__ = ["MODELS", "ROWS", "Case", "check_generator", "check_guide", "check_objective"]
