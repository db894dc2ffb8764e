"""The models of the configs that mmdet and mmseg install."""

from collections.abc import Iterable, Iterator
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

from ..base.environment import quiet
from ..base.errors import UserError, did_you_mean, reason
from ..config.build_model import FRAMEWORKS
from ..config.tree import dicts, leaves, replace_nodes

LEFT_OUT = ('batch_augments', 'pretrained', 'teacher_ckpt')  # downloads, and sizes of images


@dataclass(frozen=True)
class ZooConfig:
    """The model of a config, whose ``name`` is ``<package>/<family>/<file>``."""

    name: str
    model: ConfigDict

    @property
    def package(self) -> str:
        """'mmdet' or 'mmseg'."""
        return self.name.split('/')[0]

    @property
    def family(self) -> str:
        """The package and the folder, as in ``mmdet/atss``."""
        return family_of(self.name)

    @property
    def size(self) -> float:
        """The sum of all numbers of the backbone, above all its depths and widths."""
        backbone = next(iter(values(self.model, 'backbone')), None)
        return sum(value for _, value in leaves(backbone) if isinstance(value, (int, float)))

    def build(self, device: str = 'cpu') -> nn.Module:
        """Build the model, on the CPU or on the meta device."""
        scope = DefaultScope.overwrite_default_scope(self.package)
        with scope, quiet(), _one_process(), torch.device(device):
            return MODELS.build(deepcopy(self.model))  # the packages edit it


def family_of(name: str) -> str:
    """Return the package and the folder of a config, as in ``mmdet/atss``."""
    return '/'.join(name.split('/')[:2])


def read(families: Iterable[str] = ()) -> tuple[list[ZooConfig], dict[str, str]]:
    """Read the configs of some families, or of all.

    Returns:
        The configs that have a model, and the reason for each that cannot be read.

    Raises:
        UserError: If there is no such family.
    """
    configs, unread = [], {}
    for folder in _folders(families):
        for path in sorted(folder.rglob('*.py')):
            name = f'{folder.parents[2].name}/{path.relative_to(folder.parent).as_posix()}'
            try:
                with quiet():
                    model = Config.fromfile(path).get('model')
            except Exception as error:  # a config is code: it can raise anything
                unread[name] = reason(error)
            else:
                if model is not None:  # else a part of other configs
                    local = partial(_local, root=folder.parents[1])
                    configs.append(ZooConfig(name, replace_nodes(model, local)))
    return configs, unread


def values(model: ConfigDict, name: str) -> list[Any]:
    """Return all values of a name in a config, from the outside in."""
    return [node[name] for _, node in dicts(model) if name in node]


def _folders(families: Iterable[str]) -> list[Path]:
    every = {}
    for package in FRAMEWORKS:
        root = Path(*find_spec(package).submodule_search_locations, '.mim', 'configs')
        folders = sorted(path for path in root.iterdir() if path.name[0] != '_')
        every |= {f'{package}/{folder.name}': folder for folder in folders}
    for family in families:
        if family not in every:
            hint = did_you_mean(family, every)
            raise UserError(f'{family} is not a family of configs, such as mmdet/atss{hint}')
    return [every[family] for family in families or every]


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
