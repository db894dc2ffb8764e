"""A survey of the zoos of mmdet and mmseg: the operators that their models call, and what runs."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..base.environment import require_framework
from ..base.errors import reason
from ..config.build_model import FRAMEWORKS
from ..config.tree import nodes
from ..mmcv_ops import OPERATORS
from .configs import ZooConfig, family_of, read
from .operators import operators
from .trial import Outcome, try_model


def survey(families: Iterable[str], progress: Callable[[str], None]) -> tuple[str, bool]:
    """Build all models of some families (``mmdet/atss``), or of all, and try a config of each.

    ``progress`` is called with a line about each step. Returns tables in Markdown, and whether a
    model needs an operator that is missing.

    Raises:
        UserError: If there is no such family.
        DependencyError: If mmdet or mmseg is missing.
    """
    for package in FRAMEWORKS:
        require_framework(package)
    configs, unusable = read(families)
    progress(f'{len(configs)} configs have a model, {len(unusable)} cannot be read')
    called, unbuilt = _operators_of(configs)
    unusable |= unbuilt
    progress(f'{len(called)} models can be built')
    # Last, and so kept: most operators, and of these the smallest.
    order = sorted(configs, key=lambda c: (len(called.get(c.name, ())), c.name in called, -c.size))
    outcomes = []
    for _, config in sorted({config.family: config for config in order}.items()):
        outcomes.append(try_model(config))
        progress(f'{config.name}: {outcomes[-1].failure or "passes"}')
    lacks_operator = any(outcome.lacks_operator for outcome in outcomes)
    report, missing = _report(called, unusable, outcomes)
    return report, lacks_operator or bool(missing)


def _report(
    called: dict[str, set[str]], unusable: dict[str, str], outcomes: list[Outcome]
) -> tuple[str, list[str]]:
    """Return the tables, and the operators that are missing."""
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
    return '\n\n'.join(filter(None, parts)) + '\n', missing


def _operators_of(configs: Iterable[ZooConfig]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Return the operators of each config, and the reason for each that cannot be built."""
    called, unbuilt = {}, {}
    known: dict[Any, set[str] | str] = {}
    for config in configs:
        words = config.package, _words(config.model)
        if words not in known:
            try:
                known[words] = operators(config)
            except Exception as error:  # a package is missing, most often
                known[words] = reason(error)
        if isinstance(known[words], str):
            unbuilt[config.name] = known[words]
        else:
            called[config.name] = known[words]
    return called, unbuilt


def _words(model: dict) -> frozenset[str]:
    """Return the names and texts in a config; configs with the same ones have the same classes."""
    words = (word for place, value in nodes(model) for word in (place.rpartition('.')[2], value))
    return frozenset(word for word in words if isinstance(word, str) and not word.isdecimal())


def _table(header: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    rows = [header, ['---'] * len(header), *rows]
    lines = (' | '.join(str(cell).replace('|', '/') for cell in row) for row in rows)
    return '\n'.join(f'| {line} |' for line in lines) if len(rows) > 2 else ''
