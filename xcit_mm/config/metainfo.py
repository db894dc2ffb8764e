"""The names and colors of the classes of a dataset, as its config has them."""

from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..base.colors import class_colors, is_palette
from .tree import dataset_class, split_datasets


def metainfo_of(dataset: dict, scope: str) -> dict[str, Any]:
    """Return the ``metainfo`` with which a dataset of a config is built.

    The values in the config take precedence over the ``METAINFO`` of the dataset's class. Classes
    without colors in the config get the colors of the classes with the same names in ``METAINFO``.
    ``palette`` is None unless the color of every class is known.
    """
    own = dataset.get('metainfo') or {}
    defaults = getattr(dataset_class(dataset, scope), 'METAINFO', {})
    info = {**defaults, **own}
    names = info.get('classes')
    if isinstance(names, str) and Path(names).is_file():  # one class a line, as in mmengine
        info['classes'] = names = Path(names).read_text(encoding='utf-8').splitlines()
    if not isinstance(names, (list, tuple)):
        return info
    known = dict(zip(defaults.get('classes', ()), defaults.get('palette') or (), strict=False))
    of_names = [known.get(name) for name in names]
    palettes = (info.get('palette'), of_names)
    info['palette'] = next((p for p in palettes if is_palette(p, len(names))), None)
    return info


def fill_palettes(cfg: Config) -> list[str]:
    """Write the colors of classes that a config names without their colors.

    Without them, mmseg would choose random colors and mmdet would use the colors of other classes,
    so the pictures drawn during training would differ from those drawn later. Edits ``cfg`` and
    returns a sentence for the log.
    """
    scope, filled = cfg.get('default_scope'), []
    for split in ('train', 'val', 'test'):
        for dataset in split_datasets(cfg, split):
            metainfo = dataset.get('metainfo')
            if not isinstance(metainfo, dict) or metainfo.get('palette'):
                continue
            info = metainfo_of(dataset, scope)
            names, palette = info.get('classes'), info.get('palette')
            if isinstance(names, (list, tuple)) and (palette or scope == 'mmseg'):
                metainfo['palette'] = [*map(list, class_colors(palette, len(names)))]
                filled.append(split)
    splits = ', '.join(dict.fromkeys(filled))
    return [f'{splits} data: metainfo.palette has the colors of all pictures.'] if filled else []
