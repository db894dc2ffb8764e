"""One curve in each service, over the kills and resumes of a run."""

import json
import math
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.evaluated_runs import evaluated_run, resumed_run
from helpers.processes import forked, in_child
from helpers.resumed_runs import StopHook
from mmengine.hooks import Hook

from xcit_mm import UserError
from xcit_mm.config.adapt import LOGGERS
from xcit_mm.engine.hooks.curves import CurveHook
from xcit_mm.engine.hooks.mlflow_curves import MLflowHook
from xcit_mm.engine.hooks.wandb_curves import WandbHook
from xcit_mm.errors import DependencyError

Points = list[tuple[str, int, float]]
NOWHERE = 'http://127.0.0.1:1'
BLOCK = 32768  # bytes of LevelDB's log, the format of W&B's files
SERVICES = tuple(LOGGERS.values())


class KillHook(Hook):
    """Kill the process of a run after an iteration; atexit handlers do not run."""

    priority = 'LOWEST'

    def __init__(self, after: int) -> None:
        self.after = after

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 == self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def logged(work_dir: Path) -> Points:
    """The points of losses.jsonl and metrics.jsonl, sorted."""
    return sorted(
        (f'{prefix}/{name}', line['iter'], value)
        for file, prefix in (('losses.jsonl', 'train'), ('metrics.jsonl', 'val'))
        for line in map(json.loads, (work_dir / file).open())
        for name, value in line.items()
        if name not in ('iter', 'epoch', 'base_lr')
    )


def in_wandb(work_dir: Path) -> Points:
    """The points in all offline runs of a work dir, as "wandb sync" would upload them."""
    return sorted(
        (name, int(row['_step']), value)
        for path in work_dir.glob('wandb/offline-run-*/*.wandb')
        for row in _histories(path.read_bytes())
        for name, value in row.items()
        if not name.startswith('_')
    )


def _histories(data: bytes) -> Iterator[dict[str, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    position, content = 7, b''  # after the header of the file
    while position + 7 <= len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack('<IHB', data[position : position + 7])
        content += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # the whole of a record, or its last part
            record, content = Record.FromString(content), b''
            if record.HasField('history'):
                items = record.history.item
                yield {i.key or '/'.join(i.nested_key): json.loads(i.value_json) for i in items}


def in_mlflow(work_dir: Path) -> Points:
    from mlflow import MlflowClient

    client = MlflowClient()
    run_id = json.loads((work_dir / 'curve_ids.json').read_text())['mlflow']
    assert client.get_run(run_id).info.status == 'FINISHED'
    names = client.get_run(run_id).data.metrics
    points = [point for name in names for point in client.get_metric_history(run_id, name)]
    return sorted((point.key, point.step, point.value) for point in points)


def in_tensorboard(work_dir: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(work_dir / 'tensorboard'))
    events.Reload()
    return sorted((t, e.step, e.value) for t in events.Tags()['scalars'] for e in events.Scalars(t))


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    monkeypatch.setenv('MLFLOW_TRACKING_URI', f'sqlite:///{tmp_path}/mlflow.db')


@pytest.fixture(scope='module')
def whole(tmp_path_factory) -> Points:
    """The points of a run that nothing interrupts."""
    work_dir = tmp_path_factory.mktemp('whole')
    evaluated_run(work_dir, steps=12, **{'default_hooks.checkpoint.interval': 4}).train()
    return logged(work_dir)


def killed_and_resumed(work_dir: Path, **changes) -> None:
    """Kill a run twice, in forks: with a checkpoint of 4, killed at 6, and of 8, killed at 10."""
    interval = {'default_hooks.checkpoint.interval': 4, 'steps': 12}

    def start(after: int | None, make, **kwargs) -> None:
        runner = make(work_dir, *SERVICES, **interval, **kwargs)
        if after:
            runner.register_hook(KillHook(after))
        runner.train()

    assert in_child(lambda: start(6, evaluated_run)) == signal.SIGKILL
    assert in_child(lambda: start(10, resumed_run)) == signal.SIGKILL
    forked(1, lambda _: start(None, resumed_run, **changes))



READERS = {in_tensorboard: 1e-6, in_wandb: 0, in_mlflow: 0}  # TensorBoard stores float32


def test_after_two_kills_all_services_show_the_curve_of_an_uninterrupted_run(tmp_path, whole):
    killed_and_resumed(tmp_path / 'run')
    assert logged(tmp_path / 'run') == whole
    for read, error in READERS.items():
        points = read(tmp_path / 'run')
        assert [point[:2] for point in points] == [point[:2] for point in whole], read
        assert [v for *_, v in points] == pytest.approx([v for *_, v in whole], rel=error, abs=0)


def test_a_resume_that_differs_shows_its_own_steps(tmp_path, whole):
    changes = {'train_dataloader.batch_size': 5}
    killed_and_resumed(tmp_path / 'run', **changes)
    own = logged(tmp_path / 'run')
    assert own != whole and len(own) == len(whole)
    for read, error in READERS.items():
        points = read(tmp_path / 'run')
        assert [v for *_, v in points] == pytest.approx([v for *_, v in own], rel=error, abs=0)
