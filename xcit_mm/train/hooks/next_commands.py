"""The commands that come after a training, with the paths of the run."""

import shlex
from pathlib import Path

from mmengine.runner import Runner
from torch.utils.data import Dataset

from ...base.shipped import commands

FRAMEWORKS = ('mmdet', 'mmseg')  # of the models that all three commands read


def next_commands(runner: Runner, checkpoint: str) -> list[str]:
    """Return commands that test a checkpoint of a run, predict with it, and export it.

    The config is the one in the work dir, which contains the options of the command line.
    """
    config = Path(runner.work_dir, Path(runner.cfg.filename or '').name)
    if runner.cfg.get('default_scope') not in FRAMEWORKS or not config.is_file():
        return []
    model = f'{_typed(config)} {_typed(checkpoint)}'
    folders = set()
    if runner.val_loop is not None:  # without images that the model was trained on
        folders = _folders_of(runner.val_dataloader.dataset)
        trained = _folders_of(runner.train_dataloader.dataset)
        folders = {f for f in folders if not any(other.is_relative_to(f) for other in trained)}
    lines = [f'tools/test.py {model}'] if runner.cfg.get('test_dataloader') else []
    if runner.cfg.get('stream') is not None:
        lines.append(f'tools/infer.py {model} IMAGES --stream --out predicted')
    else:
        shown = _typed(*folders) if len(folders) == 1 else 'IMAGES'
        lines.append(f'tools/infer.py {model} {shown} --out predicted')
        lines.append(f'tools/export.py {model} --out {shlex.quote(config.stem)}.onnx')
    return [commands(line) for line in lines]


def _folders_of(dataset: Dataset) -> set[Path]:
    """Return the folders of the images of a dataset, which others may wrap or join."""
    if hasattr(dataset, 'dataset'):
        return _folders_of(dataset.dataset)
    if hasattr(dataset, 'datasets'):
        return set().union(*map(_folders_of, dataset.datasets))
    prefix = getattr(dataset, 'data_prefix', None) or {}
    folder = prefix.get('img') or prefix.get('img_path')
    return {Path(folder).resolve()} if folder and Path(folder).is_dir() else set()  # without ..


def _typed(path: Path | str) -> str:
    """Return a path as the user types it, relative to the current folder if it is inside."""
    path = Path(path)
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(path))
