"""What determines the result of a run: values of its config, versions, and the files it reads."""

import re
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config

from ...base.environment import versions
from ...base.errors import one_line
from ...base.processes import digest_of_file
from ...config.tree import class_name, leaf_datasets, leaves
from .regroup import SPEED_OPTIONS

# Names of values that change how the data is loaded, not what is loaded.
LOADING = {'num_workers', 'persistent_workers', 'prefetch_factor', 'pin_memory', 'timeout'}
# Names of values, and texts, that may differ between machines.
LOCAL, PATH = {'data_root', 'ann_file', 'checkpoint', 'store'}, re.compile(r'[/\\]| at 0x')
# Parts of a config that decide what a training run computes.
RECIPE_PARTS = ('model', 'optim_wrapper', 'param_scheduler', 'auto_scale_lr', 'train_dataloader')
# Names in them that do not: init_cfg is unset in a resumed run.
NOT_OF_RECIPE = LOADING | {'init_cfg', 'test_cfg', 'with_cp', *SPEED_OPTIONS}
# Constructors that read the same options; they make a group for each parameter, or merge groups.
CONSTRUCTORS = {'DefaultOptimWrapperConstructor', 'MergedGroupsConstructor'}
# Places whose values a resumed run reads from its checkpoint.
OF_CHECKPOINT = re.compile(
    r'optim_wrapper\.(optimizer|paramwise_cfg|constructor)\b|param_scheduler\b|auto_scale_lr\b'
)
MAX_CHANGES = 8  # most changes that a sentence names


def fingerprint(cfg: Config, splits: tuple[str, ...]) -> dict[str, str]:
    """Return what all processes of a run must share, for :func:`~.processes.require_same`.

    These are the versions of the packages, the recipe, and digests of the checkpoints and the
    annotation files. Paths may differ.
    """
    init_cfg = (cfg.model.get('backbone') or {}).get('init_cfg') or {}
    files = {
        'the checkpoint': cfg.get('load_from'),
        'the pretrained backbone': init_cfg.get('checkpoint'),
        'the teacher': (cfg.model.get('teacher') or {}).get('checkpoint'),
    }
    for split in splits:
        dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
        for number, leaf in enumerate(leaf_datasets(dataset), 1):
            if leaf.get('ann_file'):
                path = Path(leaf.get('data_root') or '', leaf['ann_file'])
                files[f'part {number} of the {split} data'] = path
    paths = {name: Path(file).expanduser() for name, file in files.items() if file}
    digests = {name: digest_of_file(path) for name, path in paths.items() if path.is_file()}
    values = {
        place: text
        for place, text in recipe_of(cfg).items()
        if place.rpartition('.')[2] not in LOCAL and not PATH.search(text)
    }
    return versions() | values | digests


def recipe_of(cfg: Config) -> dict[str, str]:
    """Return the values of a config that decide what training computes, by their places."""
    return {
        place: one_line(repr(value))
        for place, value in leaves({part: cfg.get(part) for part in RECIPE_PARTS})
        if value is not None
        and NOT_OF_RECIPE.isdisjoint(place.split('.'))
        and (place != 'optim_wrapper.constructor' or class_name(value) not in CONSTRUCTORS)
    }


def compare_recipes(
    before: Mapping[str, str], now: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Compare the recipes of a run before an interruption and after it.

    Returns sentences about what has changed, and the recipe that the run continues with.
    """
    changed = changed_places(before, now)
    ignored = {name for name in changed if OF_CHECKPOINT.match(name)}
    sentences = []
    if ignored:
        sentences.append(
            'A resumed run keeps the learning rate, the schedule and the other options of its '
            'optimizer; steps after the end of the schedule have its last learning rate. These '
            f'changes have no effect: {listed_changes(before, now, ignored)}. For a new schedule, '
            'start a run from the weights: --cfg-options load_from=FILE'
        )
    if changed - ignored:
        sentences.append(
            'The steps from here on differ from an uninterrupted run, because of these changes: '
            f'{listed_changes(before, now, changed - ignored)}'
        )
    continued = {name: before.get(name) if name in ignored else now.get(name) for name in changed}
    return sentences, {k: v for k, v in {**now, **continued}.items() if v is not None}


def changed_places(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def listed_changes(before: Mapping[str, str], now: Mapping[str, str], changed: set[str]) -> str:
    """List changes. Where a type has changed, the other values of the part belong to it."""
    retyped = tuple(name.removesuffix('type') for name in changed if name.endswith('.type'))
    changes = [
        f'{name}={one_line(now.get(name, "None"))} (before: {one_line(before.get(name, "None"))})'
        for name in sorted(changed)
        if not any(name.startswith(part) and name != f'{part}type' for part in retyped)
    ]
    more = f' and {len(changes) - MAX_CHANGES} more' if len(changes) > MAX_CHANGES else ''
    return f'{", ".join(changes[:MAX_CHANGES])}{more}'
