"""One curve in each service, over the kills and resumes of a run."""

import json
import os
import signal
import struct
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from helpers.evaluated_runs import evaluated_run, resumed_run
from helpers.processes import forked, in_child
from helpers.wandb_server import wandb_server
from mmengine.config import Config
from mmengine.hooks import Hook

from xcit_mm import UserError
from xcit_mm.config.adapt import LOGGERS, adapt_for_training
from xcit_mm.train.hooks.mlflow_curves import _valid

Points = list[tuple[str, int, float]]
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


@pytest.fixture(scope='module')
def database(tmp_path_factory) -> str:
    """A file of MLflow, whose making takes longer than a run."""
    import mlflow
    import tensorboard
    import wandb

    assert mlflow and tensorboard and wandb  # imported here, not in each fork
    return f'sqlite:///{tmp_path_factory.mktemp("mlflow")}/mlflow.db'


@pytest.fixture(autouse=True)
def _offline(monkeypatch, database):
    """The packages read these variables once in a process, so all runs are forks."""
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    monkeypatch.setenv('MLFLOW_TRACKING_URI', database)


@pytest.fixture(scope='module')
def whole(tmp_path_factory) -> Points:
    """The points of a run that nothing interrupts."""
    work_dir = tmp_path_factory.mktemp('whole')
    interval = {'default_hooks.checkpoint.interval': 4}
    forked(1, lambda _: evaluated_run(work_dir, steps=12, **interval).train())
    return logged(work_dir)


def killed_and_resumed(work_dir: Path, services: tuple[str, ...] = SERVICES) -> None:
    """Kill a run after its sixth step, in a fork, with checkpoints of the steps 4, 8 and 12."""
    interval = {'default_hooks.checkpoint.interval': 4, 'steps': 12}

    def start() -> None:
        runner = evaluated_run(work_dir, *services, **interval)
        runner.register_hook(KillHook(6))
        runner.train()

    assert in_child(start) == signal.SIGKILL
    forked(1, lambda _: resumed_run(work_dir, *services, **interval).train())


READERS = {in_tensorboard: 1e-6, in_wandb: 0, in_mlflow: 0}  # TensorBoard stores float32


@pytest.mark.slow
def test_after_a_kill_all_services_show_the_curve_of_an_uninterrupted_run(tmp_path, whole):
    killed_and_resumed(tmp_path / 'run')
    assert logged(tmp_path / 'run') == whole
    logs = [path.read_text() for path in tmp_path.glob('run/*/*.log')]
    assert logs and not any('keeps its steps' in text for text in logs)
    for read, error in READERS.items():
        points = read(tmp_path / 'run')
        assert [point[:2] for point in points] == [point[:2] for point in whole], read
        assert [v for *_, v in points] == pytest.approx([v for *_, v in whole], rel=error, abs=0)


@pytest.mark.slow
def test_a_resumed_run_of_a_server_of_wandb_continues_its_curve(tmp_path, monkeypatch, whole):
    """The server lacks the steps that the package had not sent when it was killed."""
    with wandb_server() as (address, history):
        for name, value in dict(MODE='online', BASE_URL=address, API_KEY='a' * 40).items():
            monkeypatch.setenv(f'WANDB_{name}', value)
        killed_and_resumed(tmp_path, services=('WandbHook',))
        rows = [json.loads(line) for line in history]
    points = [(k, row['_step'], v) for row in rows for k, v in row.items() if k[0] != '_']
    assert sorted(points) == whole


class Unauthorized(BaseHTTPRequestHandler):
    """A service that accepts no token."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get('Content-Length', 0)))
        body = b'{"errors": [{"message": "unauthorized"}]}'
        self.send_response(401)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_) -> None:
        """Print nothing."""


@pytest.fixture
def unauthorized() -> Iterator[str]:
    with ThreadingHTTPServer(('127.0.0.1', 0), Unauthorized) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


def in_fork(function) -> str:
    """Return the sentence of the UserError that a function in a fork raises, or ''."""
    read, write = os.pipe()

    def call() -> None:
        try:
            function()
        except UserError as error:
            os.write(write, str(error).encode())

    in_child(call)
    os.close(write)
    with os.fdopen(read) as pipe:
        return pipe.read()


def test_a_wrong_token_is_refused_before_anything_is_moved(tmp_path, monkeypatch, unauthorized):
    (tmp_path / 'iter_7.pth').touch()
    monkeypatch.setenv('MLFLOW_TRACKING_URI', unauthorized)
    sentence = in_fork(lambda: evaluated_run(tmp_path, 'MLflowHook', steps=2).train())
    assert sentence.startswith('--logger mlflow cannot start (') and 'unauthorized' in sentence
    assert 'check MLFLOW_TRACKING_URI, the token and the network' in sentence
    assert (tmp_path / 'iter_7.pth').exists()


def test_a_service_that_fails_during_a_run_gets_its_steps_later(tmp_path, database, whole):
    """The file of MLflow is away from the fifth step to the tenth, over two checkpoints."""
    file = Path(database.removeprefix('sqlite:///'))

    class AwayHook(Hook):
        def after_train_iter(self, runner, **_) -> None:
            if runner.iter + 1 == 4:
                file.rename(file.with_suffix('.away'))
                file.mkdir()
            elif runner.iter + 1 == 10:
                file.rmdir()
                file.with_suffix('.away').rename(file)

    def train() -> None:
        interval = {'default_hooks.checkpoint.interval': 4}
        runner = evaluated_run(tmp_path, 'MLflowHook', steps=12, **interval)
        runner.register_hook(AwayHook())
        runner.train()

    forked(1, lambda _: train())
    assert in_mlflow(tmp_path) == whole
    text = ''.join(path.read_text() for path in tmp_path.glob('*/*.log'))
    assert '--logger mlflow: steps cannot be sent (' in text and 'losses.jsonl' in text


def test_loggers_of_the_command_line_become_hooks():
    cfg = Config(dict(default_hooks=dict(), work_dir='nowhere', launcher='none'))
    adapt_for_training(cfg, loggers=['wandb', 'tensorboard'])
    added = {name: hook.type for name, hook in cfg.default_hooks.items() if name in LOGGERS}
    assert added == {name: LOGGERS[name] for name in ('wandb', 'tensorboard')}


@pytest.mark.parametrize(
    ('name', 'valid'),
    [('coco/a:b*_AP', 'coco/a_b__AP'), ('car/', 'car/_'), ('a//./b', 'a/_/_/b')],
)
def test_mlflow_accepts_the_names_of_any_classes(name, valid):
    validate = pytest.importorskip('mlflow.utils.validation')._validate_metric_name
    assert _valid(name) == valid
    validate(valid)
