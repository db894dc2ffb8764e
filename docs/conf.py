"""Configuration of the documentation site, which ``make docs`` builds in build/docs.

The source folder is the root of the repository, so that the links of a page lead to the same
pages, configs and other files on the site and in the repository.
"""

import importlib
import inspect
import pkgutil
import re
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import xcit_mm

DOCS = Path(__file__).parent
API = DOCS / 'api'  # written by write_api_pages
FRONT_PAGE = '<meta http-equiv="refresh" content="0; url=README.html">\n'

project = 'xcit_mm'
version = release = xcit_mm.__version__
root_doc = 'README'
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
include_patterns = ['*.md', 'docs/*.md', 'docs/api/*.rst']
# Sphinx would search all other folders for pages.
exclude_patterns = [f'{path.name}/**' for path in DOCS.parent.iterdir() if path != DOCS]
myst_heading_anchors = 3

autodoc_default_options = {'ignore-module-all': True, 'members': True, 'undoc-members': True}
autodoc_inherit_docstrings = False
autodoc_member_order = 'bysource'
napoleon_custom_sections = ['Shape']
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False

html_theme = 'furo'
html_title = f'xcit_mm {version}'
html_copy_source = False
html_show_copyright = False


@cache
def modules() -> dict[str, ModuleType]:
    """Import the package, and return all its modules by name."""
    names = [m.name for m in pkgutil.walk_packages(xcit_mm.__path__, 'xcit_mm.')]
    return {name: importlib.import_module(name) for name in ['xcit_mm', *names]}


def write_api_pages(app: Sphinx) -> None:
    """Write a page for each folder and file of the package, with a section for each module in it.

    Each page lists all pages at its side, which takes more than a minute with a page per module.
    """
    shutil.rmtree(API, ignore_errors=True)
    API.mkdir()
    rooms = [name for name in modules() if name.count('.') == 1]
    contents = ''.join(f'   {name.rpartition(".")[2]} <{name}>\n' for name in rooms)
    front = _section('xcit_mm', 'API reference', '=')
    (API / 'xcit_mm.rst').write_text(f'{front}\n.. toctree::\n   :maxdepth: 1\n\n{contents}')
    for room in rooms:
        below = [name for name in modules() if name.startswith(f'{room}.')]
        sections = [_section(room, room, '='), *(_section(name, name, '-') for name in below)]
        (API / f'{room}.rst').write_text('\n'.join(sections))


def _section(module: str, title: str, underline: str) -> str:
    return f'{title}\n{underline * len(title)}\n\n.. automodule:: {module}\n'


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the contents of the site to its front page, in the order of docs/README.md."""
    if page == root_doc:
        index = (DOCS / 'README.md').read_text()
        pages = [f'docs/{name}' for name in re.findall(r'\]\((\w+)\.md\)', index)]
        pages += ['docs/api/xcit_mm', 'CONTRIBUTING', 'CHANGELOG', 'SECURITY', 'docs/README']
        source[0] += '\n'.join(['\n```{toctree}', ':hidden:', *pages, '```'])


def skip_constants(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool:
    """Leave out what is neither a class, a function nor a property.

    The docstring of a class lists its attributes.
    """
    is_documentable = callable(member) or inspect.isdatadescriptor(member)
    return skip or not is_documentable


def finish(app: Sphinx, error: Exception | None) -> None:
    """Check that the reference is complete, and write the page at the address of the site."""
    if error or app.builder.name != 'html':
        return
    Path(app.outdir, 'index.html').write_text(FRONT_PAGE)
    documented = set(app.env.get_domain('py').objects)  # which objects.inv lists
    public = {
        f'{module}.{name}'
        for module in modules()
        for name, value in vars(modules()[module]).items()
        if not name.startswith('_')
        and (inspect.isclass(value) or inspect.isroutine(inspect.unwrap(value)))
        and value.__module__ == module
    }
    if missing := sorted(public - documented):
        raise ExtensionError(f'the API reference does not have {", ".join(missing)}')
    print(f'the API reference has all {len(public)} public classes and functions')


def setup(app: Sphinx) -> None:
    app.connect('builder-inited', write_api_pages)
    app.connect('source-read', add_contents)
    app.connect('autodoc-skip-member', skip_constants)
    app.connect('build-finished', finish)
