"""docs/errors.md has every message that the package and its tools end with, and no other.

On the page a message is a row of a table, in backticks as it is printed, with VALUE for what
differs from case to case. Beside it stands what it means and what to do, written by hand.
"""

import ast
import re
from collections.abc import Iterator

from helpers import ROOT

from xcit_mm.datasets import annotations, images

PAGE = ROOT / 'docs' / 'errors.md'
VALUE = '…'
ROW = re.compile(r'^\| `([^`]+)` \| (.*) \|$', re.MULTILINE)
# The rest of the page: what others say, which nothing here can hold against its source.
OTHERS = '## Of other packages'
ALSO = {'NotImplementedError', 'BadImageError'}  # beside UserError and all that is derived from it
METHODS = {('parser', 'error'), ('problems', 'append')}  # which take messages, too
REASONS = {'_why_unreadable', '_sentence', '_nothing_in'}  # functions that give the ends of some
SOURCES = sorted([*(ROOT / 'xcit_mm').rglob('*.py'), *(ROOT / 'tools').glob('*.py')])


class Messages(ast.NodeVisitor):
    """The messages of a module, with their lines.

    Args:
        kinds: The names of the errors.
        module: Its tree; constants in capitals at the top of it are put in.
    """

    def __init__(self, kinds: set[str], module: ast.Module) -> None:
        self.found: list[tuple[str, int]] = []
        self._kinds = kinds
        self._constants = {
            node.targets[0].id: node.value
            for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        self.visit(module)

    def visit_Call(self, node: ast.Call) -> None:
        of = getattr(node.func, 'value', None)
        method = getattr(of, 'id', None), getattr(node.func, 'attr', None)
        if node.args and (getattr(node.func, 'id', None) in self._kinds or method in METHODS):
            self._add(node.args[0])
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in REASONS:
            for end in ast.walk(node):
                if isinstance(end, ast.Return) and end.value is not None:
                    self._add(end.value)
        self.generic_visit(node)

    def _add(self, node: ast.expr) -> None:
        text = re.sub(f'{VALUE}+', VALUE, ' '.join(self._text(node).split()))
        if re.search('[a-z]{2}', text):
            self.found.append((text, node.lineno))

    def _text(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return ''.join(map(self._text, node.values))
        if isinstance(node, ast.FormattedValue):
            return self._text(node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._text(node.left) + self._text(node.right)
        if isinstance(node, ast.BoolOp):  # value and 'text'
            return self._text(node.values[-1])
        if isinstance(node, ast.Name) and node.id.isupper() and node.id in self._constants:
            return self._text(self._constants[node.id])
        return VALUE


def error_names(modules: list[ast.Module]) -> set[str]:
    """UserError, all that is derived from it, and ALSO."""
    classes = [n for module in modules for n in ast.walk(module) if isinstance(n, ast.ClassDef)]
    names = {'UserError'}
    for _ in classes:  # as deep as they can be derived from each other
        names |= {c.name for c in classes if names & {getattr(b, 'id', None) for b in c.bases}}
    return names | ALSO


def messages() -> Iterator[tuple[str, str]]:
    """Every message, with the place that it comes from."""
    modules = [ast.parse(path.read_text()) for path in SOURCES]
    kinds = error_names(modules)
    for path, module in zip(SOURCES, modules, strict=True):
        for text, line in Messages(kinds, module).found:
            yield text, f'{path.relative_to(ROOT)}:{line}'
    for kind in kinds_of_bad_data():
        yield kind, 'xcit_mm/datasets'


def kinds_of_bad_data() -> set[str]:
    """What tools/check_dataset.py and the log call an image or an annotation."""
    of_images = {text for text in vars(images).values() if re.match(r'its? ', str(text))}
    of_annotations = {annotations.NO_OBJECTS, annotations.TOO_SMALL}
    return of_images | of_annotations | {*annotations.IN_TRAINING, *annotations.IN_EVALUATION}


def rows() -> dict[str, str]:
    """The remedies of the page by their messages."""
    page = PAGE.read_text().partition(OTHERS)[0]
    return {text.replace('\\|', '|'): remedy for text, remedy in ROW.findall(page)}


def test_every_message_is_on_the_page():
    missing = {text: place for text, place in messages() if text not in rows()}
    paste = ''.join(f'| `{text}` |  |    <- {place}\n' for text, place in missing.items())
    assert not missing, f'not on {PAGE.name}, to be pasted and explained:\n{paste}'


def test_no_message_is_explained_twice():
    texts = [text for text, _ in ROW.findall(PAGE.read_text().partition(OTHERS)[0])]
    assert len(texts) == len(set(texts)), {text for text in texts if texts.count(text) > 1}


def test_every_row_is_a_message():
    stale = rows().keys() - {text for text, _ in messages()}
    assert not stale, f'on {PAGE.name}, and said nowhere:\n' + '\n'.join(sorted(stale))


def test_every_row_says_what_to_do():
    assert [text for text, remedy in rows().items() if len(remedy.split()) < 3] == []
