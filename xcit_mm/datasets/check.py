"""Read a whole dataset before a run, and report what the run would drop, convert or stop at."""

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader, Dataset

from ..environment import quiet, require_framework
from ..errors import UserError, printable, reason
from ..files import write_json
from .annotations import LOST_SHARE, STOPS
from .config import check_classes, check_data, leaf_datasets
from .images import BadImageError, LoadImage, conversions

SPLITS = ('train', 'val', 'test')
CONVERTED = 'converted'
SKIPPED = 'skipped'  # a training takes another image instead
PIPELINE_FAILS = 'the pipeline fails on it'
NO_CLASS = 'labels of no class'
SMALL_SIDE = 32  # pixels; smaller images go through the whole pipeline
TRIES = 8  # of the pipeline on a small image, as augmentations are random


class Finding(NamedTuple):
    """A problem or conversion of an image, or of an annotation if it has an ``annotation_id``."""

    split: str
    kind: str
    consequence: str  # what a run does about it
    file: str
    annotation_id: int | None = None
    detail: str = ''
    is_bad: bool = False  # whether the image cannot be used


@dataclass
class Report:
    """The number of images of each split, the findings, and the reasons why a run would stop."""

    images: dict[str, int]
    findings: list[Finding] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def check_dataset(
    cfg: Config, splits: Sequence[str] = SPLITS, workers: int | None = None
) -> Report:
    """Read every image and annotation of a config as a run would.

    Args:
        cfg: The config, after :func:`xcit_mm.engine.config.adapt.adapt`.
        splits: The splits to check; a test set that is the validation set is checked once.
        workers: The number of processes that read; None for one per core.

    Raises:
        UserError: If files are missing, the classes of a file and the config differ, or a
            process crashes while it reads.
    """
    datasets = {}
    for split in splits:
        dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset')
        if dataset and dataset != datasets.get('val'):
            datasets[split] = dataset

    check_data(cfg, tuple(datasets))
    require_framework(cfg.default_scope)
    check_classes(cfg, tuple(datasets))
    init_default_scope(cfg.default_scope)

    if workers is None:
        has_affinity = hasattr(os, 'sched_getaffinity')
        workers = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()
    report = Report(images=dict.fromkeys(datasets, 0))
    for split, dataset in datasets.items():
        for leaf in leaf_datasets(dataset):
            _check_annotations_and_images(cfg, split, leaf, workers, report)
    report.findings.sort(key=lambda finding: (SPLITS.index(finding.split), *finding[1:4]))

    stopping = Counter((f.split, f.kind) for f in report.findings if f.consequence == STOPS)
    report.failures += [f'{split}: {count} x {kind}' for (split, kind), count in stopping.items()]
    bad = len({f.file for f in report.findings if f.split == 'train' and f.is_bad})
    if bad > cfg.max_bad_share * report.images.get('train', 0):
        report.failures.append(
            f'train: {bad} of {report.images["train"]} images are bad, more than the share of '
            f'{cfg.max_bad_share:g} that max_bad_share allows'
        )
    return report


def print_report(report: Report) -> None:
    """Print why a run would stop, and each kind of finding with its count and first example."""
    for failure in report.failures:
        print(f'A run would stop: {printable(failure)}.')
    for (split, kind, consequence), group in groupby(report.findings, key=lambda f: f[:3]):
        first, *others = group
        subject = 'image: ' if first.is_bad else ''
        annotation = '' if first.annotation_id is None else f' (annotation {first.annotation_id})'
        example = f'{first.file}{annotation}{first.detail and f": {first.detail}"}'
        print(f'{split}: {1 + len(others)} x {subject}{kind} ({consequence}), the first:')
        print(f'    {printable(example)}')
    if report.findings:
        print('--out FILE writes all of them.')
    print(f'Images read: {", ".join(f"{n} of {split}" for split, n in report.images.items())}.')
    print(f'A run would {"" if report.failures else "not "}stop at this data.')


def write_report(path: Path, report: Report) -> None:
    """Write the whole report as JSON."""
    counts = {split: Counter() for split in report.images}
    for finding in report.findings:
        counts[finding.split][finding.kind] += 1
    findings = [finding._asdict() for finding in report.findings]
    content = {**vars(report), 'counts': counts, 'findings': findings}
    write_json(path, content)


def _check_annotations_and_images(
    cfg: Config, split: str, dataset_config: dict, workers: int, report: Report
) -> None:
    with quiet():  # pycocotools prints, and the log repeats what is reported here
        dataset = DATASETS.build({**dataset_config, 'lazy_init': True})
        try:
            dataset.full_init()
        except UserError as error:
            unusable = error
    report.findings += [
        Finding(split, kind, dataset.consequence(kind), image, annotation_id)
        for kind, image, annotation_id in getattr(dataset, 'problems', [])
    ]
    if not dataset._fully_initialized:
        report.failures.append(f'{split}: {unusable}')
        return
    if hasattr(dataset, 'misplaced'):
        why = dataset.misplaced(max(LOST_SHARE, cfg.max_bad_share))
        report.failures += [f'{split}: {dataset.ann_file}: {why}'] if why else []

    images = _CheckedImages(cfg, split, dataset)
    loader = DataLoader(
        images,
        batch_size=None,
        collate_fn=list,
        num_workers=workers,
        prefetch_factor=1,
        multiprocessing_context='fork' if sys.platform == 'linux' else None,
    )
    done = 0
    try:
        for findings in track(loader, f'Reading {split}', console=Console(stderr=True)):
            report.findings += findings
            done += 1
    except RuntimeError as error:  # a worker has at most one image
        files = [images.file(index) for index in range(len(images))[done : done + workers]]
        raise UserError(
            f'{split}: a process crashed ({reason(error)}) that read one of {", ".join(files)}: '
            'remove that image; --workers 1 names it alone'
        ) from None
    report.images[split] += done


class _CheckedImages(Dataset):
    """The findings of each image of a dataset."""

    def __init__(self, cfg: Config, split: str, dataset: Any) -> None:
        self.split = split
        self.dataset = dataset
        transforms = dataset.pipeline.transforms
        self.load = next((t for t in transforms if isinstance(t, LoadImage)), LoadImage())
        self.load_labels = [t for t in transforms if type(t).__name__ == 'LoadAnnotations']
        head = cfg.get('model', {}).get('decode_head')
        self.head = head[-1] if isinstance(head, (list, tuple)) else head

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> list[Finding]:
        cv2.setNumThreads(0)  # the workers share the cores
        file, findings = self.file(index), []
        try:
            info = self.load(self.dataset.get_data_info(index))
            kinds = conversions(self.load.read(file))
            findings += [Finding(self.split, kind, CONVERTED, file) for kind in kinds]
            findings += self._wrong_labels(info) if self.head else []
            for seed in range(TRIES if min(info['img_shape']) < SMALL_SIDE else 0):
                random.seed(seed)
                np.random.seed(seed)
                self.dataset.pipeline(self.dataset.get_data_info(index))
        except Exception as error:  # decoders and transforms raise many kinds
            is_known = isinstance(error, BadImageError)
            kind, detail = error.args if is_known else (PIPELINE_FAILS, reason(error))
            consequence = SKIPPED if self.split == 'train' else STOPS
            findings.append(Finding(self.split, kind, consequence, file, None, detail, True))
        return findings

    def file(self, index: int) -> str:
        return str(self.dataset.get_data_info(index)['img_path'])

    def _wrong_labels(self, info: dict) -> Iterator[Finding]:
        """Find labels at which ``LabelCheckHook`` would stop the run."""
        for load in self.load_labels:
            info = load(info)
        labels = info.get('gt_seg_map', np.zeros(0))
        num_classes = self.head.get('num_classes', len(self.dataset.metainfo['classes']))
        if self.head.get('out_channels') == 1:  # one probability for two classes
            num_classes = max(num_classes, 2)
        allowed = {*range(num_classes), self.head.get('ignore_index', 255)}
        wrong = [label for label in np.unique(labels).tolist() if label not in allowed]
        actual = ', '.join(str(label + bool(info['reduce_zero_label'])) for label in wrong[:5])
        if labels.ndim > 2:
            actual = f'{labels.shape[-1]} channels'
        if actual:
            detail = f'{info["seg_map_path"]} has {actual}'
            yield Finding(self.split, NO_CLASS, STOPS, info['img_path'], detail=detail)
