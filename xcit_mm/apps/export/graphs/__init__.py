"""What an exported file computes: a graph for each kind of head, from pixels to its results.

``graph`` says what a graph is. Graphs of segmentors build on ``segmentor``, graphs of detectors on
``detector`` and on the operators in ``boxes``. Before a graph is written, modules of fixed size are
replaced (``dynamic_sizes``), layers are converted (``float16``), and it is recorded (``capture``).
"""

from torch import nn

from ....base.errors import UserError
from ....large.maps.known_models import predicts_heights
from .detr import DetrGraph
from .graph import BackboneGraph, Graph
from .mask2former import Mask2FormerGraph, Mask2FormerSegmentorGraph
from .one_stage import OneStageGraph
from .segmentor import SegmentorGraph
from .two_stage import TwoStageGraph

DETECTORS = (TwoStageGraph, OneStageGraph, DetrGraph, Mask2FormerGraph)


def build_graph(model: nn.Module, part: str) -> Graph:
    """Return the graph of a model, or of its backbone.

    Raises:
        UserError: If the model cannot be exported as a whole.
    """
    if part == 'backbone':
        return BackboneGraph(model)
    if predicts_heights(model):
        raise UserError(
            'a model of heights cannot be exported as a whole: --part backbone exports its maps'
        )
    if hasattr(model, 'encode_decode'):
        has_queries = type(model.decode_head).__name__ == 'Mask2FormerHead'
        return (Mask2FormerSegmentorGraph if has_queries else SegmentorGraph)(model)
    for graph in DETECTORS:
        heads = {name: type(getattr(model, name, None)).__name__ for name in graph.HEADS}
        if all(head in graph.HEADS[name] for name, head in heads.items()):
            return graph(model)
    supported = {head for graph in DETECTORS for heads in graph.HEADS.values() for head in heads}
    raise UserError(
        f'{type(model).__name__} cannot be exported as a whole: only detectors with '
        f'{", ".join(sorted(supported))} can; --part backbone exports its maps'
    )
