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
    images = None if runner.val_loop is None else _folder_of(runner.val_dataloader.dataset)
    lines = [f'tools/test.py {model}'] if runner.cfg.get('test_dataloader') else []
    if runner.cfg.get('stream') is not None:
        lines.append(f'tools/infer.py {model} IMAGES --stream --out predicted')
    else:
        shown = _typed(Path(images).resolve()) if images else 'IMAGES'  # without ..
        lines.append(f'tools/infer.py {model} {shown} --out predicted')
        lines.append(f'tools/export.py {model} --out {shlex.quote(config.stem)}.onnx')
    return [commands(line) for line in lines]


def _folder_of(dataset: Dataset) -> str | None:
    """Return the folder of the images of a dataset, which others may wrap."""
    while hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    prefix = getattr(dataset, 'data_prefix', None) or {}
    folder = prefix.get('img') or prefix.get('img_path')
    return str(folder) if folder and Path(folder).is_dir() else None


def _typed(path: Path | str) -> str:
    """Return a path as the user types it, relative to the current folder if it is inside."""
    path = Path(path)
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(path))
