"""The site: ``./scripts/test --docs`` builds it. All pages are plain Markdown."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tomllib

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_ext"), str(ROOT)]
ONLINE = os.environ.get("XMP_DOCS_ONLINE") == "1"  # ./scripts/test --docs-online

import xmp  # noqa: E402  (without torch and JAX)

project = "xmp"
author = "the xmp authors"
release = version = xmp.__version__
hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
home = hatch["metadata"]["hooks"]["custom"]["home"]
repository = home or "https://repository.invalid/xmp"  # RFC 2606: no one can register it

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "navigation",  # docs/_ext: the table below
    "public_names",  # the list of docs/api.md, with signatures and docstrings
    "repository_links",  # links to files that are no pages
]
exclude_patterns = ["trials", "_*", "*/_*"]
if ONLINE:
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }
    linkcheck_anchors = False
    linkcheck_timeout = 30

# A title and a page for each entry of the side bar; what follows in a list is below that page.
navigation = [
    ("Start", "guide/first-launch", [
        "guide/replicas", "guide/arguments-and-results", "guide/gangs", "guide/devices",
        "guide/start-methods",
        "guide/options", "guide/index",
    ]),
    ("Notebooks", "guide/notebooks", []),
    ("Scripts", "guide/xmp-run", ["guide/other-launchers"]),
    ("TPU VMs and Kaggle", "guide/tpu", []),
    ("GPUs", "guide/gpus", ["guide/torch"]),
    ("JAX", "guide/jax", []),
    ("Hosts", "guide/placed-hosts", [
        "guide/ssh", "guide/ray", "guide/local-hosts", "scale",
    ]),
    ("When it fails", "guide/failures", ["guide/timeouts", "errors"]),
    ("Watch", "guide/watch", ["guide/output"]),
    ("Debug", "guide/debug", []),
    ("Test", "guide/testing", []),
    ("Data parallel", "guide/data-parallel", []),
    ("Coming from …", "coming-from", [
        f"coming-from/{page.stem}" for page in sorted((DOCS / "coming-from").glob("*.md"))
    ]),
    ("Command line", "guide/commands", ["guide/environment-variables"]),
    ("API", "api", ["api/testing", "api/compat"]),
    ("How it works", "guide/how-it-works", []),
    ("Benchmarks", "bench", []),
    ("Security", "guide/security", []),
    ("Limits", "guide/limits", []),
    ("Changelog", "changelog", []),
]  # fmt: skip

# The pages that `xmp explain` prints are in the package; git ignores the copies in docs/errors.
CODES = sorted((ROOT / "xmp/_explain").glob("*.md"))
copies = {str(page.relative_to(ROOT)): f"errors/{page.stem}" for page in CODES}
(DOCS / "errors").mkdir(exist_ok=True)
for page in CODES:
    copy = DOCS / "errors" / page.name
    if not copy.exists() or copy.read_text() != page.read_text():
        copy.write_text(page.read_text())
navigation.append(("", "errors", [f"{page.stem} </errors/{page.stem}>" for page in CODES]))

# --- Markdown -------------------------------------------------------------------------------------
myst_heading_anchors = 3
smartquotes_action = "D"  # dashes alone: "fork" is a value
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = True
copybutton_exclude = ".linenos, .gp"

# --- docstrings -----------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"  # most classes are made by xmp, not by its users
default_role = "code"
add_module_names = False
python_maximum_signature_line_length = 140  # with the modules of types, which are not shown
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_preprocess_types = True

# --- how it looks ---------------------------------------------------------------------------------
html_theme = "furo"
html_title = "xmp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options: dict[str, object] = {"top_of_page_buttons": []}
if home:
    html_theme_options.update(
        source_repository=home, source_branch="main", source_directory="docs/"
    )
pygments_style = "friendly"
pygments_dark_style = "github-dark"
