"""Accuracy, speed and size of exported files and of PyTorch, on the test set of a config."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import FileHandler
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.environment import quiet
from ...config.adapt import adapt_for_test
from ...config.build_model import config_errors
from ...config.load import load_config
from ...config.rules import check
from ...network.weights.pretrained import read_all_safely
from ...train.runner import build_runner
from .comparison import pixels
from .formats import format_of, load_runtime
from .formats.format import Runtime


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

    The arguments are the options of tools/evaluate_export.py.

    Returns:
        The result of PyTorch, then the result of each file.
    """
    runtimes = [load_runtime(path, trust_checkpoint) for path in paths]
    cfg = load_config(config, options)
    notes = adapt_for_test(cfg, checkpoint, trust_checkpoint=trust_checkpoint)
    check(cfg, 'test')
    trust = read_all_safely(cfg.trust_checkpoint)
    with config_errors(cfg), trust, quiet(), TemporaryDirectory() as cfg.work_dir:
        runner = _runner_without_file(cfg, notes)
        loader = runner.test_loop.dataloader
        runner.load_or_resume()
        model = runner.model.cpu().eval()
        steps = [(None, model.test_step)]
        steps += [(Path(p), partial(_step, r, model)) for p, r in zip(paths, runtimes, strict=True)]
        candidates = []
        for path, step in steps:
            candidates.append(_Candidate(path, step, runner.build_evaluator(cfg.test_evaluator)))
            candidates[-1].evaluator.dataset_meta = loader.dataset.metainfo
        for batch in loader:
            for candidate in candidates:
                candidate.step(batch)
        return [candidate.result(len(loader.dataset)) for candidate in candidates]


def _runner_without_file(cfg: Config, notes: list[str]) -> Runner:
    """Build a runner whose logger writes no file into the temporary work dir."""
    # mmengine shares loggers and folders between runs of one name and second.
    cfg.experiment_name = Path(cfg.work_dir).name
    runner = build_runner(cfg, notes, 'test')
    for handler in list(runner.logger.handlers):
        if isinstance(handler, FileHandler):
            runner.logger.removeHandler(handler)
            handler.close()
    return runner


@dataclass
class _Candidate:
    """PyTorch's model or an exported file, with the metrics and times of its predictions."""

    path: Path | None  # None for PyTorch
    test_step: Callable[[dict[str, Any]], list]  # as in a model of mmengine
    evaluator: Evaluator
    times: list[float] = field(default_factory=list)  # in milliseconds

    def step(self, batch: dict[str, Any]) -> None:
        """Predict a batch."""
        with torch.no_grad():
            if not self.times:  # the first call of a runtime allocates memory
                self.test_step(copy.deepcopy(batch))
            data = copy.deepcopy(batch)
            start = perf_counter()
            samples = self.test_step(data)
            self.times.append((perf_counter() - start) * 1e3)
            self.evaluator.process(data_samples=samples, data_batch=batch)

    def result(self, number: int) -> Evaluated:
        """Return the result for a number of images."""
        metrics = self.evaluator.evaluate(number)
        time = median(self.times)
        if self.path is None:
            return Evaluated('PyTorch', None, time, metrics)
        return Evaluated(self.path.name, format_of(self.path).size(self.path), time, metrics)


def _step(run: Runtime, model: nn.Module, batch: dict[str, Any]) -> list:
    """Predict a batch with an exported file, as ``test_step`` of its model does."""
    for inputs, sample in zip(batch['inputs'], batch['data_samples'], strict=True):
        outputs = run(pixels(inputs, model.data_preprocessor))
        if 'logits' in outputs:
            model.postprocess_result(outputs['logits'], [sample])
        else:
            _add_objects(sample, outputs)
    return batch['data_samples']


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
    """Return bool masks of the whole image (n, H, W) from masks of boxes or of the input."""
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    if masks.dtype == torch.bool:
        resized = F.interpolate(masks[:, None].float(), size, mode='bilinear', align_corners=False)
        return resized[:, 0] > 0.5
    pasted = torch.zeros(len(masks), *size, dtype=torch.bool)
    for i in range(len(masks)):
        mask, place = _do_paste_mask(masks[i : i + 1, None], boxes[i : i + 1], *size)
        pasted[(i, *place)] = mask[0] >= 0.5
    return pasted
