"""Settings of Sphinx: ``python -m sphinx -W --keep-going docs site`` builds the pages as a site."""

import re
from pathlib import Path
from typing import Any

from ckptplan.version import __version__

project = "ckptplan"
release = version = __version__
copyright = "the authors of ckptplan"  # noqa: A001 - Sphinx's name

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]

autodoc_typehints = "none"  # they are in the signature, as written
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"ckptplan {__version__}"
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_show_sphinx = False

_HERE = Path(__file__).parent


def _name_files(_app: Any, page: str, text: list[str]) -> None:
    """Turn links to files beside the pages, as ../README.md, into the names of these files."""
    folder = (_HERE / page).parent

    def name(found: re.Match[str]) -> str:
        target = (folder / found[2].partition("#")[0]).resolve()
        outside = target.exists() and not target.is_relative_to(_HERE)
        return f"{found[1]} (`{target.relative_to(_HERE.parent)}`)" if outside else found[0]

    text[0] = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#][^)]*)\)", name, text[0])


def setup(app: Any) -> None:
    """Take up what this project adds."""
    app.connect("source-read", _name_files)
