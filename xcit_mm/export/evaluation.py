"""Compare exported files with PyTorch on the test set of a config."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from logging import FileHandler
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.adapt import adapt_for_test
from ..config.config_errors import config_errors
from ..config.load import load_config
from ..config.rules import check
from ..engine.runner import build_runner
from ..environment import quiet
from ..errors import UserError, one_line, reason
from ..predictions.class_names import classes_and_palette
from ..weights.pretrained import read_all_safely
from ..weights.read import read_checkpoint
from .export import build_graph
from .images import pixels
from .runtime import Runtime, load_runtime

Step = Callable[[dict[str, Any]], list]  # as ``test_step`` of a model of mmengine


class Evaluated(NamedTuple):
    """The result of an exported file, or of PyTorch."""

    name: str
    size: int | None  # bytes; None for PyTorch
    milliseconds: float  # median over the images, from the resized image to its prediction
    metrics: dict[str, float]  # as ``tools/test.py`` returns them


def evaluate(
    config: str,
    checkpoint: str,
    paths: Sequence[str | Path],
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
) -> list[Evaluated]:
    """Evaluate PyTorch and exported files in turn, image by image, on the CPU.

    Args:
        config: Path of a config file.
        checkpoint: The checkpoint that the files were exported from.
        paths: Files that :func:`xcit_mm.export.export` has written.
        options: See :func:`xcit_mm.config.load.load_config`.
        trust_checkpoint: Run the code in the checkpoint and in the files; see
            :func:`xcit_mm.load_model` and :func:`xcit_mm.export.load_runtime`.

    Returns:
        PyTorch's result, then that of each file.

    Raises:
        UserError: If an input is wrong, or a file has only the maps of a backbone.
    """
    files = [Path(path) for path in paths]
    runtimes = [load_runtime(path, trust_checkpoint) for path in files]
    cfg = load_config(config, options)
    notes = adapt_for_test(cfg, checkpoint, trust_checkpoint=trust_checkpoint)
    check(cfg, 'test')
    trust = read_all_safely(cfg.trust_checkpoint)
    with config_errors(cfg, options), trust, quiet(), TemporaryDirectory() as cfg.work_dir:
        # mmengine shares loggers and folders between runs of one name and second.
        cfg.experiment_name = Path(cfg.work_dir).name
        runner = build_runner(cfg, notes, 'test')
        for handler in list(runner.logger.handlers):
            if isinstance(handler, FileHandler):  # in the temporary folder
                runner.logger.removeHandler(handler)
                handler.close()
        loader = runner.test_loop.dataloader
        runner.load_or_resume()
        model = runner.model.cpu().eval()
        outputs = build_graph(model, 'model').outputs
        classes, _ = classes_and_palette(
            cfg, read_checkpoint(checkpoint, trusted=trust_checkpoint), model
        )
        for path, run in zip(files, runtimes, strict=True):
            _require_same_model(path, run, outputs, json.dumps(classes))
        steps: list[Step] = [model.test_step, *(_step(model, run) for run in runtimes)]
        contexts = [nullcontext, *(partial(_named, path) for path in files)]
        evaluators = [runner.build_evaluator(cfg.test_evaluator) for _ in steps]
        times: list[list[float]] = [[] for _ in steps]
        for evaluator in evaluators:
            evaluator.dataset_meta = loader.dataset.metainfo
        for number, batch in enumerate(loader):
            rows = zip(contexts, steps, evaluators, times, strict=True)
            for context, step, evaluator, passed in rows:
                with context():
                    if number == 0:  # the first call of a runtime allocates memory
                        step(copy.deepcopy(batch))
                    data = copy.deepcopy(batch)
                    start = perf_counter()
                    with torch.no_grad():
                        samples = step(data)
                    passed.append((perf_counter() - start) * 1e3)
                    evaluator.process(data_samples=samples, data_batch=batch)
        metrics = []
        for context, evaluator in zip(contexts, evaluators, strict=True):
            with context():
                metrics.append(evaluator.evaluate(len(loader.dataset)))
    sizes = [None, *(_size(path) for path in files)]
    names = ['PyTorch', *(path.name for path in files)]
    return [Evaluated(*row) for row in zip(names, sizes, map(median, times), metrics, strict=True)]


def _require_same_model(path: Path, run: Runtime, outputs: Sequence[str], classes: str) -> None:
    known = run.metadata.get('classes', 'no classes')
    if run.outputs != outputs or known != classes:
        computed = f'{one_line(", ".join(run.outputs))} of {one_line(str(known))}'
        raise UserError(
            f'{path} computes {computed}, but the model of the config {", ".join(outputs)} of '
            f'{classes}: name a file of this checkpoint'
        )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file whose outputs fail where those of PyTorch did not."""
    try:
        yield
    except UserError as error:
        raise UserError(f'{path}: {error}') from error
    except Exception as error:  # of mmdet, mmseg and their metrics
        raise UserError(
            f'{path} computes outputs that do not fit the model ({reason(error)}): export it again'
        ) from error


def _size(path: Path) -> int:
    parts = (path, path.with_suffix('.bin')) if path.suffix == '.xml' else (path,)
    return sum(part.stat().st_size for part in parts)


def _step(model: nn.Module, run: Runtime) -> Step:
    """Return a function that predicts a batch with an exported file as a model does."""

    def step(batch: dict[str, Any]) -> list:
        samples = batch['data_samples']
        for inputs, sample in zip(batch['inputs'], samples, strict=True):
            outputs = run(pixels(inputs, model.data_preprocessor))
            if 'logits' in outputs:
                model.postprocess_result(outputs['logits'], [sample])
            else:
                _add_objects(sample, outputs)
        return samples

    return step


def _add_objects(sample: Any, outputs: dict[str, Tensor]) -> None:
    """Set the predictions of mmdet's sample, in the original size of the image."""
    from mmengine.structures import InstanceData, PixelData

    size = tuple(sample.ori_shape)
    if 'panoptic' in outputs:
        labels = outputs['panoptic'][None, None].double()  # holds whole numbers exactly
        labels = F.interpolate(labels, size, mode='nearest')[0].to(torch.int32)
        sample.pred_panoptic_seg = PixelData(sem_seg=labels)
    if 'boxes' in outputs:
        scale = outputs['boxes'].new_tensor(sample.scale_factor).repeat(2)
        boxes = outputs['boxes'] / scale
        objects = dict(bboxes=boxes, scores=outputs['scores'], labels=outputs['labels'])
        if 'masks' in outputs:
            objects['masks'] = _masks(outputs['masks'], boxes, size)
        sample.pred_instances = InstanceData(**objects)


def _masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return masks of the whole image (n, H, W), bool, from those of boxes or of the input."""
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    if masks.dtype == torch.bool:
        resized = F.interpolate(masks[:, None].float(), size, mode='bilinear', align_corners=False)
        return resized[:, 0] > 0.5
    pasted = torch.zeros(len(masks), *size, dtype=torch.bool)
    for i in range(len(masks)):
        mask, place = _do_paste_mask(masks[i : i + 1, None], boxes[i : i + 1], *size)
        pasted[(i, *place)] = mask[0] >= 0.5
    return pasted
