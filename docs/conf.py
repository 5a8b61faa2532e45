"""The site: Sphinx with MyST-NB and Furo; `sphinx-build -W -b html docs docs/_build/html`."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

import pyro_implicit  # noqa: E402

project = "pyro_implicit"
author = "The pyro_implicit developers"
project_copyright = author
version = release = pyro_implicit.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "myst_nb",
    "sphinxcontrib.katex",
    "gathered_pages",
    "repository_links",
    "reference_pages",
    "public_names",
]
exclude_patterns = ["_build", "_ext", "_templates", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]

# Notebooks are shown with the outputs they are kept with: tests run them, the site does not.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

# The site is read without a network: KaTeX comes with its extension, where Sphinx's own MathJax is
# loaded from a server, and it makes MathML, which browsers draw with fonts and styles of their own.
katex_options = 'output: "mathml", throwOnError: false'
katex_css_path = "katex-math.css"  # the extension's; KaTeX's own style is for other output

autosummary_generate = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
add_module_names = False

# Every name of the package that a docstring points at must be there. Those of others are not looked
# up, so that the site is built without a network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!pyro_implicit\.).*"), (r"py:.*", r"pyro_implicit\..*\._.*")]

# A server that is slow or away for a moment is no broken link.
linkcheck_retries = 3
linkcheck_timeout = 30

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["print.css"]
html_title = f"pyro_implicit {release}"
html_copy_source = False
html_show_sourcelink = False
