"""A survey of the zoos of mmdet and mmseg: the operators that their models call, and what runs."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..config.tree import nodes
from ..engine.build_model import FRAMEWORKS
from ..environment import require_framework
from ..errors import reason
from ..mmcv_ops import OPERATORS
from .configs import ZooConfig, family_of, read
from .operators import operators
from .trial import try_model


def survey(families: Iterable[str], progress: Callable[[str], None]) -> tuple[str, bool]:
    """Build all models of some families, or of all, and try one config of each family.

    Args:
        families: As in ``mmdet/atss``; none means all.
        progress: Called with a line about each step.

    Returns:
        Tables in Markdown, and whether a model needs an operator that is missing.

    Raises:
        UserError: If there is no such family.
        DependencyError: If mmdet or mmseg is missing.
    """
    for package in FRAMEWORKS:
        require_framework(package)
    configs, unusable = read(families)
    progress(f'{len(configs)} configs have a model, {len(unusable)} cannot be read')
    called = _operators_of(configs, unusable)
    progress(f'{len(called)} models can be built')
    # Last, and so kept: most operators, and of these the smallest.
    order = sorted(configs, key=lambda c: (len(called.get(c.name, ())), c.name in called, -c.size))
    outcomes = []
    for _, config in sorted({config.family: config for config in order}.items()):
        outcomes.append(try_model(config))
        progress(f'{config.name}: {outcomes[-1].failure or "passes"}')
    failures = [(o.config.name, o.failure) for o in outcomes if o.failure]
    families = {*(o.config.family for o in outcomes), *map(family_of, unusable)}
    counts = Counter((name, path.split('/')[0]) for path in called for name in called[path])
    names = sorted({name for name, _ in counts})
    missing = sorted({*names} - {operator.__name__ for operator in OPERATORS})
    parts = [
        _table(
            ('operator', *FRAMEWORKS), [(n, *(counts[n, f] for f in FRAMEWORKS)) for n in names]
        ),
        f'{len(called)} models; missing operators: {", ".join(missing) or "none"}.',
        f'{len(outcomes) - len(failures)} of {len(families)} families train and predict.',
        _table(('config', 'what fails'), failures),
        _table(('config', 'why it cannot be read or built'), unusable.items()),
    ]
    lacks_operator = bool(missing) or any(o.lacks_operator for o in outcomes)
    return '\n\n'.join(filter(None, parts)) + '\n', lacks_operator


def _operators_of(configs: Iterable[ZooConfig], unusable: dict[str, str]) -> dict[str, set[str]]:
    """Return the operators of each config; note in ``unusable`` those that cannot be built."""
    called = {}
    known: dict[Any, set[str] | str] = {}
    for config in configs:
        words = config.package, _words(config.model)
        if words not in known:
            try:
                known[words] = operators(config)
            except Exception as error:  # a package is missing, most often
                known[words] = reason(error)
        if isinstance(known[words], str):
            unusable[config.name] = known[words]
        else:
            called[config.name] = known[words]
    return called


def _words(model: dict) -> frozenset[str]:
    """Return the names and texts in a config; configs with the same ones have the same classes."""
    words = (word for place, value in nodes(model) for word in (place.rpartition('.')[2], value))
    return frozenset(word for word in words if isinstance(word, str) and not word.isdecimal())


def _table(header: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    rows = [header, ['---'] * len(header), *rows]
    lines = (' | '.join(str(cell).replace('|', '/') for cell in row) for row in rows)
    return '\n'.join(f'| {line} |' for line in lines) if len(rows) > 2 else ''
