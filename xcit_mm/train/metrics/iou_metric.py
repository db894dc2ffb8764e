"""mmseg's IoU metric with the confusions of classes, for images of any size. Needs mmseg."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.registry import METRICS
from mmseg.evaluation import IoUMetric
from torch import Tensor

from ...base.console import only_warnings
from ...base.geometry import tiles, whole
from ...large.files.image_source import TILE
from ...predict.errors.error_tables import ErrorTables

NO_CLASS = 'no class'
Cells = tuple[np.ndarray, np.ndarray]  # the places of a matrix that are not 0, and their values


@METRICS.register_module()
class ClassIoUMetric(IoUMetric):
    """mmseg's ``IoUMetric``, but it keeps the IoU and the confusions of each class.

    It has the arguments of ``IoUMetric``. Pixels are counted in whole numbers. (mmseg adds them up
    in float32.) A large image has ``label_windows`` instead of labels in memory, and only the first
    of the processes that share it has its prediction.

    Attributes:
        class_iou: After an evaluation the IoU in percent by class name; NaN for a class that is
            neither in the labels nor predicted.
        class_figures: Likewise, each figure by its name and the name of the class: IoU, Acc, and
            what else ``iou_metrics`` asks for.
    """

    def process(self, data_batch: dict, data_samples: Sequence[dict[str, Any]]) -> None:
        """Count the pixels of each pair of a label and a prediction in each image."""
        for sample in data_samples:
            start = len(self.results)
            if 'label_windows' not in sample:
                super().process(data_batch, [sample])
            elif 'pred_sem_seg' in sample:
                self.results.append(self._cells_of_windows(sample))
            # At most one result for an image, because mmengine drops what fills the last batch.
            self.results[start:] = [(sample.get('img_path', ''), r) for r in self.results[start:]]

    def _cells_of_windows(self, sample: dict[str, Any]) -> Cells:
        predicted, number = sample['pred_sem_seg']['data'][0], len(self.dataset_meta['classes'])
        confusion = np.zeros((number + 1) ** 2, int)
        for window in tiles(whole(predicted.shape), TILE):
            labels = sample['label_windows'].read(window).astype(np.int64)
            pair = predicted[tuple(window)].long(), torch.from_numpy(labels)
            places, values = self.intersect_and_union(*pair, number, self.ignore_index)
            confusion[places] += values
        return _cells(confusion)

    @staticmethod
    def intersect_and_union(
        pred_label: Tensor, label: Tensor, num_classes: int, ignore_index: int
    ) -> Cells:
        """Count the pixels of each pair of classes; the last class is for all other values.

        mmseg counts intersections and unions here. A matrix for each image would need too much
        memory: of 150 classes, 180 KB.
        """
        is_labeled = label != ignore_index
        pair = (labels[is_labeled].long() for labels in (label, pred_label))
        label, predicted = (
            torch.where((labels >= 0) & (labels < num_classes), labels, num_classes)
            for labels in pair
        )
        places = label * (num_classes + 1) + predicted
        return _cells(torch.bincount(places, minlength=(num_classes + 1) ** 2).cpu().numpy())

    def compute_metrics(self, results: list) -> dict[str, float]:
        if self.format_only:
            return super().compute_metrics(results)
        classes = tuple(self.dataset_meta['classes'])
        number = len(classes)
        confusion = np.zeros((number + 1) ** 2, int)
        for _, (places, values) in results:
            confusion[places] += values
        confusion = confusion.reshape(number + 1, number + 1)
        self._confusion, self._images = confusion, results
        areas = confusion.diagonal(), confusion.sum(0), confusion.sum(1)
        common, predicted, labeled = (
            torch.from_numpy(area[:number].astype(float)) for area in areas
        )
        union = predicted + labeled - common
        self._ious = (common / union * 100).tolist()
        self.class_iou = dict(zip(classes, self._ious, strict=True))
        areas = common, union, predicted, labeled
        figures = self.total_area_to_metrics(*areas, self.metrics, self.nan_to_num, self.beta)
        self.class_figures = {
            name: dict(zip(classes, (100 * values).tolist(), strict=True))
            for name, values in figures.items()
            if name != 'aAcc'
        }
        with only_warnings(MMLogger.get_current_instance()):  # it logs a table of the classes
            return super().compute_metrics([areas])

    def error_tables(self) -> list[ErrorTables]:
        """Return the errors of the last evaluation, in the process that computed its metrics."""
        if self.format_only:
            return []
        classes = tuple(self.dataset_meta['classes'])
        has_rest = self._confusion[-1].any() or self._confusion[:, -1].any()
        size = len(classes) + bool(has_rest)
        return [
            ErrorTables(
                of='pixels',
                classes=classes,
                rest=NO_CLASS if has_rest else '',
                confusion=self._confusion[:size, :size],
                images=[(name, dict(_areas(cells, len(classes)))) for name, cells in self._images],
                by_class={'IoU percent': self._ious},
            )
        ]


def _cells(confusion: np.ndarray) -> Cells:
    places = np.flatnonzero(confusion)
    return places, confusion[places]


def _areas(cells: Cells, number: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield each class of an image with its annotated, predicted and correct pixels."""
    places, values = cells
    labels, predicted = np.divmod(places, number + 1)
    for i in np.union1d(labels, predicted):
        is_label, is_predicted = labels == i, predicted == i
        if i < number:
            chosen = is_label, is_predicted, is_label & is_predicted
            yield int(i), tuple(int(values[c].sum()) for c in chosen)
