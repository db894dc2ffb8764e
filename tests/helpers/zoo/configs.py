"""The models of the configs that mmdet and mmseg install."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope
from torch import distributed as dist
from torch import nn

from xcit_mm.base.environment import quiet
from xcit_mm.config.tree import nodes, replace_nodes

LEFT_OUT = ('batch_augments', 'pretrained', 'teacher_ckpt')  # downloads, and sizes of images


@dataclass(frozen=True, eq=False)
class ZooConfig:
    """The model of a config, whose ``name`` is ``<package>/<family>/<file>``."""

    name: str
    model: ConfigDict

    @property
    def package(self) -> str:
        return self.name.split('/')[0]

    @property
    def size(self) -> float:
        """The sum of all numbers of the backbone, above all its depths and widths."""
        backbone = next(iter(values(self.model, 'backbone')), None)
        return sum(value for _, value in nodes(backbone) if isinstance(value, (int, float)))

    def build(self, device: str = 'cpu') -> nn.Module:
        """Build the model, on the CPU or on the meta device."""
        scope = DefaultScope.overwrite_default_scope(self.package)
        with scope, quiet(), _one_process(), torch.device(device):
            return MODELS.build(deepcopy(self.model))  # the packages edit it


def families() -> dict[str, Path]:
    """Return the folders of configs by package and name, as in ``mmdet/atss``."""
    roots = {
        package: Path(*find_spec(package).submodule_search_locations, '.mim', 'configs')
        for package in ('mmdet', 'mmseg')
    }
    return {
        f'{package}/{folder.name}': folder
        for package, root in roots.items()
        for folder in sorted(root.iterdir())
        if folder.name[0] != '_'
    }


def read(family: str) -> list[ZooConfig]:
    """Read the configs of a family that have a model; one that cannot be read is left out."""
    folder = families()[family]
    configs = []
    for path in sorted(folder.rglob('*.py')):
        try:
            with quiet():
                model = Config.fromfile(path).get('model')
        except Exception:  # a config is code: it can raise anything
            continue
        if model is not None:  # else a part of other configs
            name = f'{family}/{path.relative_to(folder).as_posix()}'
            model = replace_nodes(model, partial(_local, root=folder.parents[1]))
            configs.append(ZooConfig(name, model))
    return configs


def values(model: ConfigDict, name: str) -> list[Any]:
    """Return all values of a name in a config, from the outside in."""
    return [node[name] for _, node in nodes(model) if isinstance(node, dict) and name in node]


@contextmanager
def _one_process() -> Iterator[None]:
    """Make this process a distributed run of its own, as mmcv's SyncBatchNorm requires."""
    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _local(node: Any, root: Path) -> Any:
    """Remove weights and LEFT_OUT from a part of a config; find paths such as a teacher's."""
    if isinstance(node, dict):
        if 'checkpoint' in node:  # of an init_cfg
            return None
        node.update(dict.fromkeys(node.keys() & set(LEFT_OUT)))
    return str(root / node) if str(node).startswith('configs/') else node
