"""The rules for runs on whole images: crops, batches, and enough images for them."""

from contextlib import suppress
from filecmp import cmp
from itertools import islice
from pathlib import Path

from mmengine.config import Config

from ..base.errors import ArgumentError, UserError
from ..base.finder import find_files
from .tree import class_name, dataset_class, registered_class, split_datasets, typed_nodes

IMAGES_SCOPE = 'mmengine'  # of pretraining, distillation and classifiers
CROPS = 'MultiCrop'
FOLDERS = ('ClassFolders', 'UnlabeledImages')
WHERE = ('data_root', 'data_prefix', 'suffixes')  # arguments of both


def check_images(cfg: Config) -> None:
    """Refuse crops and batches that a training on whole images cannot use.

    The classes of such trainings are registered: see
    :func:`~xcit_mm.base.environment.require_framework`.
    """
    if cfg.default_scope != IMAGES_SCOPE:
        return
    place = 'train_dataloader'
    crops = [n for n in typed_nodes(cfg[place], place) if class_name(n[1]['type']) == CROPS]
    for where, node in crops:
        arguments = {name: value for name, value in node.items() if name != 'type'}
        try:
            registered_class(CROPS, IMAGES_SCOPE)(**arguments)
        except ArgumentError as error:
            raise UserError(f'{where}: {error}') from None
    size = cfg[place].get('batch_size', 1)
    if crops and size == 1:
        raise UserError(
            f'{place}.batch_size=1: a training without labels compares the images of a batch: '
            'write at least 2'
        )
    is_mixed = (cfg.get('model') or {}).get('mixup') is not None
    if is_mixed and size % 2:
        raise UserError(
            f'{place}.batch_size={size}: model.mixup mixes the images of a batch in pairs: write '
            'an even number, or mixup=None'
        )
    sampler = class_name((cfg[place].get('sampler') or {}).get('type'))
    is_endless = sampler == 'InfiniteSampler'
    if is_mixed and not (is_endless or cfg[place].get('drop_last')):
        raise UserError(
            f'{place}.drop_last=False: model.mixup mixes the images of a batch in pairs, and the '
            'last batch may have an odd number: write drop_last=True'
        )
    _require_images(cfg, size, bool(crops))


def _require_images(cfg: Config, size: int, are_compared: bool) -> None:
    """Refuse fewer images than a batch has, or copies of one file if images ``are_compared``.

    Only as many files as a batch has are counted and compared.
    """
    folders: list[str] = []
    files: list[Path] = []
    for dataset in split_datasets(cfg, 'train'):
        kind = dataset_class(dataset, IMAGES_SCOPE)
        if kind is None or kind.__name__ not in FOLDERS or dataset.get('indices') is not None:
            return  # their images are not files in a folder, or not all of them
        given = {name: dataset[name] for name in WHERE if name in dataset}
        lister = kind(**given, lazy_init=True)  # with the defaults of its arguments
        folders.append(str(Path(lister.data_prefix['img'])))
        files += islice(find_files(Path(folders[-1]), lister.suffixes), size)
    if 0 < len(files) < size:  # the dataset refuses an empty folder
        raise UserError(
            f'train_dataloader.batch_size={size}, but {", ".join(folders)} has {len(files)} '
            'images: write a smaller batch_size, or add images'
        )
    if are_compared and files and all(_is_copy(files[0], file) for file in files):
        raise UserError(
            f'{len(files)} images in {", ".join(folders)} are copies of one file ({files[0]}), but '
            'a training without labels learns how images differ: add other images'
        )


def _is_copy(file: Path, other: Path) -> bool:
    with suppress(OSError):  # the training says what is wrong with a file
        return cmp(file, other, shallow=False)
    return False
