"""Graphs for Deepness, a QGIS plugin that predicts maps tile by tile."""

import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....base.errors import UserError
from ....predict.results import SCORE_THR
from .graph import Graph

DETECTIONS, PROBABILITIES = 'detections', 'probabilities'
OVERLAP = 15  # percent of the side of a tile
# Deepness compares the boxes of neighboring tiles, whatever their class.
IOU_THRESHOLD = 0.5


class DeepnessGraph(Graph):
    """A graph for square tiles with values from 0 to 1 in RGB order, and with a single output.

    The output of a segmentor is ``probabilities`` (B, K, side, side): of K classes, or of the
    foreground if it is the only class. The output of a detector is ``detections`` (1, 4 + K, n), as
    in Ultralytics' YOLO files: the center, the width and the height of each box, and its score in
    the row of its class.
    """

    def __init__(self, graph: Graph, side: int, num_classes: int, is_bgr: bool) -> None:
        nn.Module.__init__(self)
        if not {'logits', 'boxes'} & {*graph.outputs}:
            raise UserError(
                'Deepness reads classes of pixels or boxes, but the outputs are '
                f'{", ".join(graph.outputs)}: of a panoptic model, export the objects with '
                '--cfg-options model.test_cfg.instance_on=True'
            )
        self.inner = graph  # fx has its own attribute ``graph``
        self.side, self.num_classes, self.is_bgr = side, num_classes, is_bgr
        self.channels, self.batched, self.NARROW = graph.channels, graph.batched, graph.NARROW
        self.outputs = (PROBABILITIES if 'logits' in graph.outputs else DETECTIONS,)

    @property
    def model(self) -> nn.Module:
        """The model of the inner graph, which is not a child a second time."""
        return self.inner.model

    def forward(self, image: Tensor) -> tuple[Tensor]:
        return (self._output(self.inner(self._pixels(image))),)

    def reference(self, image: Tensor) -> tuple[Tensor]:
        return (self._output(self.inner.reference(self._pixels(image))),)

    def with_more_objects(self, image: Tensor) -> 'DeepnessGraph | None':
        graph = self.inner.with_more_objects(self._pixels(image))
        if graph is None:
            return None
        return DeepnessGraph(graph, self.side, self.num_classes, self.is_bgr)

    def prepare(self, pixels: Tensor) -> Tensor:
        """Cut out the first tile, and fill it up with zeros as Deepness does."""
        tile = pixels[..., : self.side, : self.side]
        height, width = tile.shape[2:]
        tile = F.pad(tile, (0, self.side - width, 0, self.side - height)) / 255
        return tile.flip(1) if self.is_bgr else tile

    def compared(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the objects of detections as other detectors do."""
        if PROBABILITIES in outputs:
            return dict(outputs)
        center, size, scores = outputs[DETECTIONS][0].split([2, 2, self.num_classes])
        scores, labels = scores.max(0)
        return dict(
            boxes=torch.cat([center - size / 2, center + size / 2]).T, scores=scores, labels=labels
        )

    def metadata(self, classes: Sequence[str], resolution: float | None) -> dict[str, str]:
        """Return what Deepness reads: JSON by its names.

        Args:
            classes: The names of the classes.
            resolution: Of the images that the model was trained on, in meters per pixel.
        """
        content = dict(tile_size=self.side, tiles_overlap=OVERLAP)
        if resolution is not None:
            content['resolution'] = 100 * resolution  # in centimeters
        if self.outputs == (DETECTIONS,):
            content |= dict(
                model_type='Detector',
                det_type='YOLO_Ultralytics',
                det_conf=SCORE_THR,
                det_iou_thresh=IOU_THRESHOLD,
                det_remove_overlap=False,
            )
        else:
            head = self.model.decode_head
            is_binary = head.out_channels == 1
            classes = classes[-1:] if is_binary else classes
            # Between classes, the most probable one is chosen, whatever its probability.
            threshold = head.threshold if is_binary else 0
            content |= dict(model_type='Segmentor', seg_thresh=threshold, seg_small_segment=0)
        content['class_names'] = dict(enumerate(classes))
        return {name: json.dumps(value) for name, value in content.items()}

    def _pixels(self, image: Tensor) -> Tensor:
        return 255 * (image.flip(1) if self.is_bgr else image)

    def _output(self, values: Sequence[Tensor]) -> Tensor:
        named = dict(zip(self.inner.outputs, values, strict=True))
        if 'logits' in named:
            logits = named['logits']
            return logits.softmax(1) if logits.shape[1] > 1 else logits.sigmoid()
        (left, top, right, bottom), scores = named['boxes'].T, named['scores']
        box = torch.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top])
        classes = torch.arange(self.num_classes, device=scores.device)[:, None]
        return torch.cat([box, torch.where(classes == named['labels'], scores, 0.0)])[None]
