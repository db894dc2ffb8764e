"""Training and testing, as ``tools/train.py`` and ``tools/test.py`` call them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process

from ..base.files import require_writable_file
from ..config.adapt import adapt, adapt_for_test, adapt_for_training
from ..config.build_model import config_errors
from ..config.load import load_config
from ..config.rules import check
from ..network.weights.pretrained import download_pretrained, read_all_safely
from .checkpoints.run_lock import run_lock
from .report.tables import write_metrics
from .runner import build_runner


def train(
    config: str,
    work_dir: str | None = None,
    *,
    resume: bool | str = False,
    launcher: str = 'none',
    trust_checkpoint: bool = False,
    options: Mapping[str, Any] | None = None,
    loggers: Sequence[str] = (),
    graphs: bool = False,
) -> None:
    """Train a model, evaluate it, and log the metrics and where the files are.

    A script must call it below ``if __name__ == '__main__'``: data workers import the script again.

    Args:
        config: Path of a config file.
        work_dir: Folder to write to. Default: ``work_dirs/<name of the config>``.
        resume: Resume from the newest whole checkpoint in ``work_dir``, or from this file.
            Otherwise the files of an earlier run are moved into a folder ``earlier_*`` there.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.
        trust_checkpoint: Read checkpoints that hold more than weights; the code in them is run.
        options: Dotted names and values that replace values of the config
            (see :func:`~xcit_mm.config.load.load_config`).
        loggers: Where losses and metrics are written as well: 'tensorboard', 'wandb', 'mlflow'.
        graphs: Whether to replay CUDA graphs, as with ``graphs=True`` in the config.

    Raises:
        UserError: If the config, an option, the data or a checkpoint is wrong; if another run
            trains in ``work_dir``; if the losses are not finite, too much of the data is bad, or
            the disk is full; if the processes of a launcher differ, or one is missing.
        Interrupted: At SIGTERM and SIGINT, with the place where the run stopped.
    """
    cfg = load_config(config, options, work_dir, launcher)
    with config_errors(cfg):
        changes = adapt(cfg)
        notes = adapt_for_training(cfg, options, resume, trust_checkpoint, loggers, graphs)
        check(cfg, 'train')
        with run_lock(cfg), read_all_safely(cfg.trust_checkpoint):
            if not (cfg.get('resume') or cfg.get('load_from')):
                notes += download_pretrained(cfg)
            build_runner(cfg, notes, 'train', changes).train()


def test(
    config: str,
    checkpoint: str,
    work_dir: str | None = None,
    *,
    show_dir: str | None = None,
    errors_dir: str | None = None,
    out: str | None = None,
    launcher: str = 'none',
    trust_checkpoint: bool = False,
    options: Mapping[str, Any] | None = None,
    tta: bool = False,
    dtype: str | None = None,
    compiled: bool = False,
) -> dict[str, float]:
    """Evaluate a checkpoint on the test set of a config.

    Args:
        config: Path of a config file.
        checkpoint: File or URL of a released model, or of a checkpoint of this config.
        work_dir: Folder of the log. Default: ``work_dirs/<name of the config>``.
        show_dir: Folder for a picture of every prediction. Default: no pictures.
        errors_dir: Folder for tables and pictures of the errors; see
            :class:`~xcit_mm.predict.errors.error_tables.ErrorTables`. Default: none.
        out: JSON file to write the metrics to. Default: none.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.
        trust_checkpoint: Read a checkpoint that holds more than weights; the code in it is run.
        options: Dotted names and values that replace values of the config.
        tta: Merge the predictions for several sizes of each image, plain and mirrored.
        dtype: See :func:`xcit_mm.load_model`.
        compiled: See :func:`xcit_mm.load_model`.

    Returns:
        The metrics by name: from 0 to 1 in COCO, in percent for segmentation, and in the unit of
        the labels for heights.

    Raises:
        UserError: If the config, an option, the data or the checkpoint is wrong, or if the
            processes of a launcher differ, or one is missing.
    """
    cfg = load_config(config, options, work_dir, launcher)
    with config_errors(cfg):
        changes = adapt(cfg)
        notes = adapt_for_test(
            cfg, checkpoint, show_dir, errors_dir, trust_checkpoint, tta, dtype, compiled
        )
        check(cfg, 'test')
        if out is not None:
            require_writable_file(Path(out))
        with read_all_safely(cfg.trust_checkpoint):
            runner = build_runner(cfg, notes, 'test', changes)
            metrics = runner.test()
    if show_dir is not None:
        runner.logger.info('pictures    %s', show_dir)
    if errors_dir is not None:
        runner.logger.info('errors      %s', errors_dir)
    if out is not None and is_main_process():
        write_metrics(Path(out), config, checkpoint, metrics, runner.test_loop.evaluator)
        runner.logger.info('metrics     %s', out)
    return metrics
