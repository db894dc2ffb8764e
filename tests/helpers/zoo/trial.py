"""One training step and one prediction of a model, on random images."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from mmengine.logging import MessageHub
from mmengine.registry import DefaultScope
from torch import nn

from helpers.zoo.configs import ZooConfig
from helpers.zoo.images import images
from xcit_mm.base.environment import quiet
from xcit_mm.base.errors import MissingOperatorError, reason
from xcit_mm.config.tree import replace_nodes

SIZES = (128, 512)  # pixels; some models pool large regions
NUM_BOXES = 50  # proposals, and predictions
MAX_CLASSES = 1000  # of a model; with the 13,204 of V3Det, DINO takes 14 GB


@dataclass(frozen=True)
class Outcome:
    """What a config did; an empty ``failure`` means that it trains and predicts."""

    failure: str = ''
    lacks_operator: bool = False


def try_model(config: ZooConfig) -> Outcome:
    """Compute a gradient and a prediction of a model, on the smallest images that it can take."""
    for size in SIZES:
        outcome = _try_size(config, size)
        if not outcome.failure or outcome.lacks_operator:
            break
    return outcome


def _try_size(config: ZooConfig, size: int) -> Outcome:
    torch.manual_seed(0)
    stage = 'building'
    sized = replace(config, model=replace_nodes(config.model, _with_size(size)))
    scope = DefaultScope.overwrite_default_scope(config.package)
    try:
        with scope, quiet():
            model = sized.build()
            model.init_weights()
            for parameter in model.parameters():
                # TridentNet leaves some as the memory was, for the weights that it downloads.
                parameter.data.nan_to_num_().clamp_(-20, 20)
            stage = 'training'
            _train(model, images(sized.model, size, training=True))
            stage = 'prediction'
            _predict(model, images(sized.model, size, training=False))
    except Exception as error:
        lacks_operator = isinstance(error, MissingOperatorError)
        return Outcome(f'{stage}: {reason(error)}', lacks_operator)
    return Outcome()


def _train(model: nn.Module, data: dict[str, Any]) -> None:
    model.train()
    # What the runner tells in training; some heads warm up.
    MessageHub.get_current_instance().update_info_dict(dict(iter=0, max_iters=1, epoch=0))
    loss, _ = model.parse_losses(model(**model.data_preprocessor(data, training=True), mode='loss'))
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients or not all(t.isfinite().all() for t in (loss, *gradients)):
        raise ValueError(f'the loss is {loss.item()} and has {len(gradients)} gradients')


def _predict(model: nn.Module, data: dict[str, Any]) -> None:
    model.eval()
    data = {name: values[:1] for name, values in data.items()}  # some predict one image at a time
    with torch.no_grad():
        model(**model.data_preprocessor(data, training=False), mode='predict')


def _with_size(size: int) -> Callable[[Any], Any]:
    """Return a function that sets the size of images in a config and limits its numbers."""

    def adapted(node: Any) -> Any:
        if isinstance(node, dict):
            for name in ('max_per_img', 'num_proposals'):
                if isinstance(node.get(name), int):
                    node[name] = min(node[name], NUM_BOXES)
            if isinstance(node.get('num_classes'), int):
                node.num_classes = min(node.num_classes, MAX_CLASSES)
            if 'img_size' in node:
                node.img_size = (size, size)
            if node.get('type') == 'SegDataPreProcessor' and 'size_divisor' not in node:
                node.size = (size, size)
        return node

    return adapted
