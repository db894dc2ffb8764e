"""The classes of a classifier, from the folders of its training images."""

from pathlib import Path

from mmengine.config import Config

from ..base.errors import UserError
from ..base.finder import subfolders
from .tree import class_name, split_datasets

MODEL, DATASET = 'ImageClassifier', 'ClassFolders'
SPLITS = ('train', 'val', 'test')
NUMBER = 'model.backbone.num_classes'


def use_folders_as_classes(cfg: Config) -> list[str]:
    """Set the classes of the datasets, and of the head of a classifier, if the config names none.

    The folders of the training images are the classes, also of a validation that lacks some. Edits
    ``cfg`` and returns sentences for the log.
    """
    datasets = [dataset for split in SPLITS for dataset in split_datasets(cfg, split)]
    named = [dataset for dataset in datasets if class_name(dataset.get('type')) == DATASET]
    if class_name((cfg.get('model') or {}).get('type')) != MODEL or not named:
        return []
    source = next((dataset for dataset in named if _folder(dataset).is_dir()), None)
    if source is None:  # the check of the data says what is missing
        return []
    names = tuple((source.get('metainfo') or {}).get('classes') or ())
    names = names or tuple(path.name for path in subfolders(_folder(source)))
    if len(names) < 2:
        raise UserError(
            f'{_folder(source)} has {len(names)} folders of classes, but a classifier needs at '
            'least 2: add a folder of images for each class, or set data_root'
        )
    for dataset in named:
        if not (dataset.get('metainfo') or {}).get('classes'):
            dataset.metainfo = dict(classes=names)
    if cfg.model.backbone.get('num_classes') is not None:
        return []
    cfg.model.backbone.num_classes = len(names)
    return [f'{NUMBER}={len(names)}: the folders in {_folder(source)} are the classes.']


def _folder(dataset: dict) -> Path:
    prefix = (dataset.get('data_prefix') or {}).get('img') or ''
    return Path(dataset.get('data_root') or '', prefix)
