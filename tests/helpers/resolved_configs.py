"""The configs of configs/ with all that they inherit, as a text that shows what a change does.

``python tests/helpers/resolved_configs.py`` writes tests/expected/configs.txt. A section lists what
is usual for all configs, for all of a task, or where a config differs from its task.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from xcit_mm.config.load import READ, load_config
from xcit_mm.config.tree import dicts

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / 'tests/expected/configs.txt'
RENEW = 'python tests/helpers/resolved_configs.py'
# What follows from other values.
DERIVED = {'pretrained', 'work_dir'}
SAME_AS = {'test_dataloader': 'val_dataloader', 'test_evaluator': 'val_evaluator'}

Lines = dict[str, str]  # the values of a config, by their dotted places


def described(configs: dict[str, dict[str, Any]]) -> str:
    """Return the text for configs by name."""
    lines = {name: dict(_lines(cfg)) for name, cfg in sorted(configs.items())}
    usual = {k: v for k, v in _usual(lines.values()).items() if not k.startswith('model.')}
    sections = [_section('all', usual)]
    tasks: dict[str, dict[str, Lines]] = {}
    for name in lines:
        tasks.setdefault(name.split('_xcit_')[0], {})[name] = lines[name]
    for task, of_task in tasks.items():
        of_all = _usual(of_task.values())
        sections.append(_section(task, _difference(of_all, usual)))
        sections += [_section(name, _difference(own, of_all)) for name, own in of_task.items()]
    return '\n'.join(sections)


def _lines(cfg: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in sorted(cfg.keys() & READ - DERIVED):
        other = SAME_AS.get(name)
        same = other in cfg and cfg[name] == cfg[other]
        yield from [(name, other)] if same else _lines_of(cfg[name], name)


def _lines_of(node: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield a line for each dict that holds no other, and for each value of the others."""
    children = dict(node if isinstance(node, dict) else enumerate(node)) if _is_deep(node) else {}
    for name, child in children.items():
        yield from _lines_of(child, f'{place}.{name}')
    if not children:
        pairs = ', '.join(f'{k}={v!r}' for k, v in node.items()) if isinstance(node, dict) else ''
        yield place, f'dict({pairs})' if isinstance(node, dict) else repr(node)


def _is_deep(node: Any) -> bool:
    return any(part is not node for _, part in dicts(node))


def _usual(configs: Iterable[Lines]) -> Lines:
    """Return the lines that more than half of some configs have."""
    counts = Counter(line for lines in configs for line in lines.items())
    return dict(line for line, count in counts.items() if 2 * count > len(configs))


def _difference(lines: Lines, usual: Lines) -> Lines:
    places = sorted({*lines, *usual})
    return {p: lines.get(p, 'absent') for p in places if lines.get(p) != usual.get(p)}


def _section(title: str, lines: Lines) -> str:
    return '\n'.join((title, *(f'    {place} = {value}' for place, value in lines.items()), ''))


if __name__ == '__main__':
    paths = (ROOT / 'configs').glob('*.py')
    FILE.write_text(described({path.stem: load_config(path).to_dict() for path in paths}))
