"""The check of a whole dataset before a run: what the run would drop, or stop at."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from torch.utils.data import Dataset

from ...base.environment import quiet, require_framework
from ...base.errors import UserError, printable, reason
from ...config.rules import check_classes, check_data
from ...config.tree import class_name, sampled_datasets, split_datasets, typed_nodes
from ..datasets.labels import LabelRule
from ..datasets.samples import seed_all
from ..transforms.decode import UNREADABLE, BadImageError, LoadImage, image_loader
from ..transforms.height_labels import HeightRule
from .annotations import LOST_SHARE, STOPS
from .examples import (
    LABELS,
    ExampleCounter,
    Examples,
    is_measured,
    missing_classes,
    refusal,
)
from .read_data import opener, read_in_parallel, whole_scenes
from .sample_check import PIPELINE_FAILS, SampleCheck

SPLITS = ('train', 'val', 'test')
NO_CLASS = 'labels of no class'
DARK = 'nearly black, as 12 bits and values from 0 to 1 are when they are read as 8 bits'
SKIPPED = 'skipped'
DARKEST = 15  # of 255: the largest value of 12 bits in the upper half of 16
NO_LOGARITHM = 'heights that the loss cannot use'
MAX_LISTED = 5  # labels of an image
# The transforms that read segments, objects or heights.
SEGMENTS = ('LoadPanoptic', 'LoadObjects', 'LoadHeights')


@dataclass(frozen=True)
class Finding:
    """A problem of an image, or of an annotation if it has an ``annotation_id``."""

    split: str
    kind: str
    consequence: str  # what a run does about it
    file: str
    annotation_id: int | float | str | None = None  # as in the file
    detail: str = ''
    is_bad: bool = False  # whether the image cannot be used


@dataclass
class Report:
    """What a run would do with a dataset.

    Attributes:
        images: The number of images of each split.
        remarks: What was converted in the annotation files.
        findings: The problems of images and annotations.
        examples: The number of objects, pixels or images of each class in each split.
        failures: The reasons why a run would stop.
    """

    images: dict[str, int]
    remarks: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    examples: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def check_dataset(
    cfg: Config, splits: Sequence[str] = SPLITS, workers: int | None = None
) -> Report:
    """Read every image and annotation of an adapted config as a run would.

    Each sample runs once through the pipeline and the model's preprocessor. A test set that is the
    validation set is checked once. Without ``workers``, there is one process per core.
    """
    datasets = {}
    for split in splits:
        leaves = split_datasets(cfg, split)
        if leaves and leaves != datasets.get('val'):
            datasets[split] = leaves
    check_data(cfg, tuple(datasets))
    require_framework(cfg.default_scope)
    check_classes(cfg, tuple(datasets))
    init_default_scope(cfg.default_scope)

    report = Report(dict.fromkeys(datasets, 0))
    examples, classes = {}, ()
    for split, leaves in datasets.items():
        sampled = [*sampled_datasets(cfg[f'{split}_dataloader'].dataset)]
        for leaf in leaves:
            dataset = _read_annotations(cfg, split, leaf, report)
            if dataset is None:
                continue
            check = SampleCheck(cfg, split, dataset) if leaf in sampled else None
            images = _Images(cfg, split, whole_scenes(dataset), check)
            for seen in read_in_parallel(images, workers, f'Reading {split}'):
                report.images[split] += 1
                report.findings += seen.findings
                if seen.examples is not None:
                    total = examples.get(split)
                    examples[split] = seen.examples if total is None else total + seen.examples
                    classes = dataset.metainfo['classes']
        for mixing in sampled:
            if mixing not in leaves and not report.failures:
                with quiet():
                    mixed = DATASETS.build(mixing)
                samples = _Samples(split, mixed, SampleCheck(cfg, split, mixed))
                for seen in read_in_parallel(samples, workers, f'Trying {split}'):
                    report.findings += seen.findings
    for split, of_split in examples.items():
        report.examples[split] = dict(zip(classes, of_split.counts.tolist(), strict=True))
        why = refusal(split, of_split, classes) if is_measured(cfg, split) else ''
        report.failures += [why] if why else []
    report.remarks += missing_classes(examples, classes)
    _conclude(report, cfg.max_bad_share)
    return report


def _conclude(report: Report, max_bad_share: float) -> None:
    """Sort the findings, and add the reasons why a run would stop at them."""
    # The pipeline may draw a window from another scene, one that is already reported.
    reported = {(f.split, f.file) for f in report.findings if f.is_bad and f.kind != PIPELINE_FAILS}
    report.findings = sorted(
        (
            f
            for f in report.findings
            if f.kind != PIPELINE_FAILS or (f.split, f.file) not in reported
        ),
        key=lambda f: (SPLITS.index(f.split), f.kind, f.consequence, f.file),
    )
    stopping = Counter((f.split, f.kind) for f in report.findings if f.consequence == STOPS)
    report.failures += [f'{split}: {count} x {kind}' for (split, kind), count in stopping.items()]
    bad = len({f.file for f in report.findings if f.split == 'train' and f.is_bad})
    if bad > max_bad_share * report.images.get('train', 0):
        report.failures.append(
            f'train: {bad} of {report.images["train"]} images are bad, more than the share of '
            f'{max_bad_share:g} that max_bad_share allows'
        )


def print_report(report: Report) -> None:
    """Print why a run would stop, and each kind of finding with its count and first example."""
    for failure in report.failures:
        print(f'A run would stop: {printable(failure)}.')
    for remark in report.remarks:
        print(printable(remark))
    by_kind = attrgetter('split', 'kind', 'consequence')
    for (split, kind, consequence), group in groupby(report.findings, by_kind):
        first, *others = group
        subject = 'image: ' if first.is_bad else ''
        annotation = '' if first.annotation_id is None else f' (annotation {first.annotation_id})'
        example = f'{first.file}{annotation}{first.detail and f": {first.detail}"}'
        print(f'{split}: {1 + len(others)} x {subject}{kind} ({consequence}), such as:')
        print(f'    {printable(example)}')
    print(f'Images read: {", ".join(f"{n} of {split}" for split, n in report.images.items())}.')
    print(f'A run would {"" if report.failures else "not "}stop at this data.')


def _read_annotations(cfg: Config, split: str, leaf: dict, report: Report) -> Any | None:
    """Report what is wrong with annotations, and return the dataset unless none can be used."""
    with quiet():  # pycocotools prints, and the log repeats what is reported here
        dataset = DATASETS.build({**leaf, 'lazy_init': True})
        try:
            dataset.full_init()
        except UserError as error:
            unusable = error
    if getattr(dataset, 'remark', ''):
        report.remarks.append(f'{split}: {dataset.remark}')
    report.findings += [
        Finding(split, kind, dataset.consequence(kind), image, annotation_id)
        for kind, image, annotation_id in getattr(dataset, 'problems', [])
    ]
    if not dataset._fully_initialized:
        report.failures.append(f'{split}: {unusable}')
        return None
    if hasattr(dataset, 'misplaced'):
        why = dataset.misplaced(max(LOST_SHARE, cfg.max_bad_share))
        report.failures += [f'{split}: {dataset.ann_file}: {why}'] if why else []
    return dataset


@dataclass(frozen=True)  # PyTorch would turn arrays in a tuple into tensors
class _Seen:
    """The problems of an image, and its examples."""

    findings: list[Finding]
    examples: Examples | None = None


class _Samples(Dataset):
    """The problems that a run would have with each sample of a dataset."""

    def __init__(self, split: str, dataset: Any, check: SampleCheck | None) -> None:
        self.split, self.dataset, self._check = split, dataset, check

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> _Seen:
        return _Seen(self._of_sample(index))

    def _of_sample(self, index: int) -> list[Finding]:
        # A dataset of windows may have fewer windows than scenes.
        if self._check is None or index >= len(self._check):
            return []
        seed_all(index)
        problem = self._check(index)
        if problem is None:
            return []
        kind, file, detail = problem
        is_bad = kind == PIPELINE_FAILS
        consequence = SKIPPED if is_bad and self.split == 'train' else STOPS
        return [Finding(self.split, kind, consequence, file, None, detail, is_bad)]


class _Images(_Samples):
    """The findings of each image of a dataset, and its examples."""

    def __init__(self, cfg: Config, split: str, dataset: Any, check: SampleCheck | None) -> None:
        super().__init__(split, dataset, check)
        self.count = ExampleCounter(dataset)
        transforms = dataset.pipeline.transforms
        self.open = opener(dataset)
        self.load = self.open or image_loader(dataset)
        self.load_labels = [t for t in transforms if type(t).__name__ in LABELS]
        self.load_segments = [t for t in transforms if type(t).__name__ in SEGMENTS]
        head = cfg.get('model', {}).get('decode_head')
        self.head = head[-1] if isinstance(head, (list, tuple)) else head

    def __getitem__(self, index: int) -> _Seen:
        info = self.dataset.get_data_info(index)
        examples = self.count.in_list(info)
        finding, info = self._of_file(info)
        if examples is None and finding is None:
            examples = self.count.in_labels(info)
        is_usable = finding is None or (not finding.is_bad and finding.consequence != STOPS)
        findings = self._of_sample(index) if is_usable else []
        return _Seen([finding, *findings] if finding else findings, examples)

    def _of_file(self, info: dict) -> tuple[Finding | None, dict]:
        """Return what is wrong with an image or its labels, and what was loaded."""
        file = str(info['img_path'])
        try:
            info = self.load(info)
            for load in (*self.load_segments, *(self.load_labels if self.head else ())):
                info = load(info)
            checks = {NO_LOGARITHM: self._wrong_heights, NO_CLASS: self._wrong_labels}
            for kind, check in checks.items() if self.head else ():
                if detail := check(info):
                    return Finding(self.split, kind, STOPS, file, None, detail), info
        except Exception as error:  # decoders and transforms raise many kinds
            is_known = isinstance(error, BadImageError)
            kind, detail = error.args if is_known else (UNREADABLE, reason(error))
            consequence = SKIPPED if self.split == 'train' else STOPS
            return Finding(self.split, kind, consequence, file, None, detail, True), info
        if self.open:
            try:
                self.open.read_through(info)
            except Exception as error:  # in a step, when no other image can replace it
                finding = Finding(self.split, UNREADABLE, STOPS, file, None, reason(error), True)
                return finding, info
        elif type(self.load) is LoadImage and (largest := info['img'].max()) <= DARKEST:
            detail = f'its largest value is {largest:g} of 255 (see docs/your_data.md)'
            return Finding(self.split, DARK, 'used as it is', file, None, detail), info
        return None, info

    def _wrong_heights(self, info: dict) -> str:
        """Describe a height at which ``LabelCheckHook`` would stop the run."""
        losses = (class_name(node['type']) for _, node in typed_nodes(self.head))
        rule = HeightRule.of_losses(losses)
        heights = info.get('gt_depth_map', np.zeros(0)) if self.split == 'train' else np.zeros(0)
        wrong = rule.broken_by(heights)[:1].tolist()
        return rule.refusal(*wrong, info['seg_map_path']) if wrong else ''

    def _wrong_labels(self, info: dict) -> str:
        """Describe the labels at which ``LabelCheckHook`` would stop the run."""
        labels = info.get('gt_seg_map', np.zeros(0))
        if 'label_windows' in info:
            labels = np.flatnonzero(info['label_windows'].counts)
        if labels.ndim > 2:
            return f'{info["seg_map_path"]} has {labels.shape[-1]} channels'
        rule = LabelRule.of_head(
            self.head.get('num_classes', len(self.dataset.metainfo['classes'])),
            self.head.get('out_channels'),
            self.head.get('ignore_index', 255),
        )
        wrong = np.unique(rule.broken_by(labels))[:MAX_LISTED]
        first = bool(info.get('reduce_zero_label'))
        listed = ', '.join(str(label + first) for label in wrong.tolist())
        return listed and f'{info["seg_map_path"]} has {listed}'
