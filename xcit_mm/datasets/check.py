"""Everything about a dataset that a run would skip, drop, convert or stop at, before the run."""

import io
import json
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..engine.config.data import check_classes, check_data, leaf_datasets
from ..environment import quiet, require, require_one_stack
from ..errors import UserError, printable, reason
from ..files import write_whole
from .annotations import LOST_SHARE, STOPS, Problem
from .images import BadImageError, LoadImage, conversions

ALL_SPLITS = ('train', 'val', 'test')
CONVERTED = 'converted'
SKIPPED = 'skipped'  # another one takes its place in a training, a black one in an evaluation
PIPELINE_FAILS = 'the pipeline fails on it'
UNUSABLE = 'the annotation file cannot be used'
ENDS_THE_PROCESS = 'reading it ends the process'
NO_CLASS = 'labels of no class'
SMALL_SIDE = 32  # pixels: images below are sent through the whole pipeline
TRIES = 8  # of the pipeline on each: some fail when they are flipped
CHUNK = 16  # images that a process is given at a time
LARGEST_LABEL = 255  # mmseg cuts labels to 8 bits
TABLE_WIDTH = 160  # characters where the output is no terminal


class Finding(NamedTuple):
    """Something about a file or an annotation.

    Attributes:
        split: 'train', 'val' or 'test'.
        kind: Of what sort it is.
        fate: What a run does about it.
        file: Path of the image.
        annotation_id: In the annotation file; None if it is the image.
        detail: What is particular about this one; may be empty.
        is_bad: Whether it is a sample that cannot be read, which a run allows a share of.
    """

    split: str
    kind: str
    fate: str
    file: str
    annotation_id: int | None = None
    detail: str = ''
    is_bad: bool = False


@dataclass
class Report:
    """What a check found.

    Attributes:
        images: How many of each split are read.
        findings: All of them.
        failures: Why a run would stop; empty if it would not.
    """

    images: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def check_dataset(
    cfg: Config, splits: Sequence[str] = ALL_SPLITS, workers: int | None = None
) -> Report:
    """Read every image and annotation of a config as a run would.

    Args:
        cfg: The config, as :func:`xcit_mm.engine.config.load.load_config` gives it.
        splits: Which to look at; a test set that is the validation set is left out.
        workers: Processes that read; None: one for each core.

    Raises:
        UserError: If there is nothing to look at: folders or files are missing, an annotation
            file is none, or its classes are not those of the config.
    """
    datasets = {split: (cfg.get(f'{split}_dataloader') or {}).get('dataset') for split in splits}
    if datasets.get('test') == datasets.get('val'):
        datasets.pop('test', None)
    datasets = {split: dataset for split, dataset in datasets.items() if dataset}

    check_data(cfg, tuple(datasets))
    require_one_stack()
    require('mmcv')
    require(f'{cfg.default_scope}.datasets')
    if cfg.default_scope == 'mmdet':
        from . import coco  # noqa: F401  registered; it needs mmdet
    check_classes(cfg, tuple(datasets))
    init_default_scope(cfg.default_scope)

    report = Report()
    for split, given in datasets.items():
        report.images[split] = 0
        for leaf in leaf_datasets(given):
            dataset, findings = _built(leaf, split)
            report.findings += findings
            if dataset is None:
                continue
            if hasattr(dataset, 'misplaced'):
                why = dataset.misplaced(max(LOST_SHARE, cfg.max_bad_share))
                report.failures += [f'{split}: {dataset.ann_file}: {why}'] if why else []
            report.images[split] += len(dataset)
            for found in _track(_Reader(cfg, split, dataset), workers or _cores()):
                report.findings += found
    # In order, as processes end in any.
    report.findings.sort(key=lambda f: (ALL_SPLITS.index(f.split), f.kind, f.file))
    report.failures += _failures(cfg, report)
    return report


def print_report(report: Report) -> None:
    """Print whether and why a run would stop, and the findings as a table, counted by kind."""
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    for failure in report.failures:
        console.print(f'A run would stop: {printable(failure)}.', markup=False, highlight=False)
    table = Table('split', 'what', 'count', 'what happens', 'the first one')
    counts = Counter((f.split, f.kind, f.fate) for f in report.findings)
    firsts = {(f.split, f.kind, f.fate): f for f in reversed(report.findings)}
    for key, count in counts.items():
        first = firsts[key]
        number = '' if first.annotation_id is None else f' (annotation {first.annotation_id})'
        detail = first.detail and f': {first.detail}'
        split, kind, fate = key
        what = f'image: {kind}' if first.is_bad else kind
        table.add_row(split, what, str(count), fate, printable(f'{first.file}{number}{detail}'))
    table.columns[-1].overflow = 'fold'
    if counts:
        console.print(table, markup=False)
        console.print('--out FILE writes each one of them.', markup=False)
    read = ', '.join(f'{count} of {split}' for split, count in report.images.items())
    console.print(f'Images read: {read}.', markup=False, highlight=False)
    verdict = 'would stop' if report.failures else 'would not stop'
    console.print(f'A run {verdict} at this data.')


def write_report(path: Path, report: Report) -> None:
    """Write all of a report as JSON, whole or not at all."""
    counts: dict[str, dict[str, int]] = {split: {} for split in report.images}
    for finding in report.findings:
        counts[finding.split].setdefault(finding.kind, 0)
        counts[finding.split][finding.kind] += 1
    findings = [finding._asdict() for finding in report.findings]
    with write_whole(path, 'w') as file:
        content = dict(
            images=report.images, counts=counts, failures=report.failures, findings=findings
        )
        json.dump(content, file, indent=2)


class _Reader:
    """What a process does with the images of a dataset."""

    def __init__(self, cfg: Config, split: str, dataset: Any) -> None:
        self.split = split
        self.dataset = dataset
        is_skipped = split == 'train' or cfg.get('skip_bad_in_evaluation', False)
        self.fate = SKIPPED if is_skipped else STOPS
        transforms = dataset.pipeline.transforms
        self.load = next((t for t in transforms if isinstance(t, LoadImage)), LoadImage())
        heads = cfg.get('model', {}).get('decode_head')
        self.head = heads[-1] if isinstance(heads, (list, tuple)) else heads

    def inspect(self, index: int) -> list[Finding]:
        """Everything about an image; no exception leaves it."""
        file = self.file(index)
        findings = []
        try:
            info = self.load(self.dataset.get_data_info(index))
            for kind in conversions(self.load.read(file)):
                findings.append(Finding(self.split, kind, CONVERTED, file))
            if self.head and info.get('seg_map_path') is not None:
                findings += self._labels(info)
            if min(info['img_shape']) < SMALL_SIDE:
                findings += self._whole_pipeline(index)
        except BadImageError as error:
            findings.append(self.bad(index, error.kind, error.detail))
        except Exception as error:  # of decoders: whatever it is, it is this image
            findings.append(self.bad(index, PIPELINE_FAILS, reason(error)))
        return findings

    def file(self, index: int) -> str:
        return str(self.dataset.get_data_info(index)['img_path'])

    def bad(self, index: int, kind: str, detail: str = '') -> Finding:
        return Finding(self.split, kind, self.fate, self.file(index), detail=detail, is_bad=True)

    def _whole_pipeline(self, index: int) -> Iterator[Finding]:
        for seed in range(TRIES):
            random.seed(seed)
            np.random.seed(seed)
            try:
                self.dataset.pipeline(self.dataset.get_data_info(index))
            except Exception as error:  # of transforms that expect more pixels
                yield self.bad(index, PIPELINE_FAILS, reason(error))
                return

    def _labels(self, info: dict) -> Iterator[Finding]:
        """Labels that ``LabelCheckHook`` stops at, and those that mmseg would cut to 8 bits."""
        with Image.open(io.BytesIO(self.load.read(info['seg_map_path']))) as image:
            labels = np.asarray(image)
        known = self._known_labels(info)
        wrong = [label for label in np.unique(labels).tolist() if label not in known]
        if labels.ndim != 2:
            detail = f'{info["seg_map_path"]} has {labels.shape[-1]} channels'
        elif wrong:
            detail = f'{info["seg_map_path"]} has {", ".join(map(str, wrong[:5]))}'
        else:
            return
        yield Finding(self.split, NO_CLASS, STOPS, info['img_path'], detail=detail)

    def _known_labels(self, info: dict) -> set[int]:
        """The values of a label file that become a class, or are ignored."""
        num_classes = self.head.get('num_classes', len(self.dataset.metainfo['classes']))
        if self.head.get('out_channels') == 1:  # one output for two classes: a probability
            num_classes = max(num_classes, 2)
        known = {*range(num_classes), self.head.get('ignore_index', 255)}
        final = {label: label for label in range(LARGEST_LABEL + 1)}
        if info.get('reduce_zero_label'):
            final = {label: 255 if label in (0, 255) else label - 1 for label in final}
        renamed = info.get('label_map') or {}
        return {label for label, value in final.items() if renamed.get(value, value) in known}


def _built(leaf: dict, split: str) -> tuple[Any, list[Finding]]:
    """A dataset, None if its annotation file cannot be used, and the problems of that."""
    with quiet():  # pycocotools, and the log of what is reported here
        dataset = DATASETS.build({**leaf, 'lazy_init': True})
        stopped = None
        try:
            dataset.full_init()
        except UserError as error:
            stopped = error
    problems: list[Problem] = getattr(dataset, 'problems', [])
    findings = [Finding(split, p.kind, dataset.fate(p.kind), *p[1:]) for p in problems]
    if stopped is None or dataset._fully_initialized:
        return dataset, findings
    why = str(stopped).removeprefix(f'{dataset.ann_file}: ')
    return None, [*findings, Finding(split, UNUSABLE, STOPS, dataset.ann_file, detail=why)]


def _failures(cfg: Config, report: Report) -> Iterator[str]:
    stopping = [f for f in report.findings if f.fate == STOPS]
    for finding in stopping:
        if finding.kind == UNUSABLE:
            yield f'{finding.split}: {finding.file}: {finding.detail}'
    counts = Counter((f.split, f.kind) for f in stopping if f.kind != UNUSABLE)
    for (split, kind), count in counts.items():
        yield f'{split}: {count} x {kind}'
    bad = len({f.file for f in report.findings if f.split == 'train' and f.is_bad})
    share = cfg.max_bad_share
    if bad > share * report.images.get('train', 0):
        yield (
            f'train: {bad} of {report.images["train"]} images are bad, more than the share of '
            f'{share:g} that max_bad_share allows'
        )


def _track(reader: _Reader, workers: int) -> Iterator[list[Finding]]:
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(f'Reading {reader.split}', total=len(reader.dataset))
        for found, done in _in_processes(reader, workers):
            progress.advance(task, done)
            yield found


def _in_processes(reader: _Reader, workers: int) -> Iterator[tuple[list[Finding], int]]:
    """The findings of some images at a time, and of how many; one may end its process."""
    count = len(reader.dataset)
    waiting = [range(i, min(i + CHUNK, count)) for i in range(0, count, CHUNK)]
    while waiting:
        done = set()
        for chunk, found in _attempt(reader, waiting, workers):
            done.add(chunk)
            yield found, len(chunk)
        unread = [chunk for chunk in waiting if chunk not in done]
        # They are begun in order: the culprit is among the first.
        suspects, waiting = unread[: 2 * workers + 1], unread[2 * workers + 1 :]
        for index in (index for chunk in suspects for index in chunk):
            attempt = list(_attempt(reader, [range(index, index + 1)], 1))
            yield attempt[0][1] if attempt else [reader.bad(index, ENDS_THE_PROCESS)], 1


def _attempt(
    reader: _Reader, chunks: Sequence[range], workers: int
) -> Iterator[tuple[range, list[Finding]]]:
    """The chunks that are read until a process ends, with their findings."""
    # As the loaders of a run do it; elsewhere fork is not safe.
    context = multiprocessing.get_context('fork' if sys.platform == 'linux' else 'spawn')
    workers = min(workers, len(chunks))
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(reader,))
    try:
        futures = {pool.submit(_inspect, chunk): chunk for chunk in chunks}
        for future in as_completed(futures):
            if not isinstance(future.exception(), BrokenProcessPool):
                yield futures[future], future.result()
    except BrokenProcessPool:  # while it was given the chunks
        pass
    finally:
        pool.shutdown(cancel_futures=True)


_reader: _Reader  # of this process


def _start(reader: _Reader) -> None:
    global _reader
    _reader = reader
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for these
    cv2.setNumThreads(0)  # they share the cores


def _inspect(chunk: range) -> list[Finding]:
    return [finding for index in chunk for finding in _reader.inspect(index)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
