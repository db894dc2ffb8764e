"""The command line of tools/plot_run.py, and the option of tools/train.py for TensorBoard."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from PIL import Image

from xcit_mm.engine import train
from xcit_mm.errors import DependencyError

SEGMENTOR = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'


@pytest.fixture
def plot_run(monkeypatch, capsys):
    """Call the tool as a user types it; gives its exit code and what it prints."""

    def call(*args: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, 'argv', ['plot_run.py', *map(str, args)])
        code = 0
        try:
            runpy.run_path(str(ROOT / 'tools/plot_run.py'), run_name='__main__')
        except SystemExit as end:
            code = end.code
        output = capsys.readouterr()
        return code, output.out + output.err

    return call


@pytest.fixture
def run(tmp_path) -> Path:
    """A work dir with three iterations."""
    folder = tmp_path / 'run'
    folder.mkdir()
    lines = [json.dumps(dict(iter=step, loss=1 / step, lr=0.1)) for step in (1, 2, 3)]
    (folder / 'losses.jsonl').write_text('\n'.join(lines))
    return folder


@pytest.mark.parametrize(
    ('out', 'files'),
    [
        ('a.png', ['a.png']),
        ('new/a.html', ['new/a.html']),
        ('folder', ['folder/report.html', 'folder/report.png']),
    ],
)
def test_what_out_names_is_written(plot_run, run, tmp_path, out, files):
    code, printed = plot_run(run, '--out', tmp_path / out)
    assert code == 0
    written = [path for path in tmp_path.rglob('*.*') if path.parent != run and path.is_file()]
    assert sorted(str(path.relative_to(tmp_path)) for path in written) == files
    for path in written:
        assert str(path) in printed
        if path.suffix == '.png':
            assert Image.open(path).size > (500, 300)
        else:
            assert '<h1>run</h1>' in path.read_text()


def test_a_missing_folder_is_left_out_and_the_exit_code_says_so(plot_run, run, tmp_path):
    code, printed = plot_run(run, tmp_path / 'missing', '--out', tmp_path / 'a.html')
    assert code == 1 and (tmp_path / 'a.html').is_file()
    assert f'left out: {tmp_path / "missing"} does not exist' in printed


def test_all_that_is_in_a_folder_can_be_drawn_again_and_again(plot_run, run, tmp_path):
    out = tmp_path / 'report'
    assert plot_run(*tmp_path.iterdir(), '--out', out)[0] == 0
    assert plot_run(run, '--out', tmp_path / 'a.png')[0] == 0
    code, printed = plot_run(*tmp_path.iterdir(), '--out', out)
    assert code == 0
    assert f'left out: {out} holds no run' in printed
    assert f'left out: {tmp_path / "a.png"} is no folder' in printed
    assert plot_run(out, '--out', tmp_path / 'b.png')[0] == 2


def test_wrong_input_is_said_in_a_sentence_and_nothing_is_written(plot_run, run, tmp_path):
    for args, said in (
        ([tmp_path / 'missing', '--out', tmp_path / 'new'], 'missing does not exist'),
        ([run, '--out', tmp_path / 'a.pdf'], 'a.pdf: neither .png nor .html'),
        ([run, '--out', run / 'losses.jsonl/new'], 'cannot be written to (NotADirectoryError'),
    ):
        code, printed = plot_run(*args)
        assert code == 2 and said in printed and 'Traceback' not in printed
    assert [path.name for path in tmp_path.iterdir()] == ['run']


def test_a_damaged_log_is_said_in_a_line_and_the_other_runs_are_drawn(plot_run, run, tmp_path):
    damaged = tmp_path / 'damaged \x1b[2J'
    damaged.mkdir()
    (damaged / 'losses.jsonl').write_text('{"iter": "\\u001b[2J"}\n')
    for args, code in (([damaged], 2), ([damaged, run], 1)):
        code_found, printed = plot_run(*args, '--out', tmp_path / 'a.html')
        assert code_found == code
        assert 'losses.jsonl cannot be read (ValueError: its iter is ' in printed
        assert '\x1b' not in printed and 'Traceback' not in printed


def test_without_tensorboard_the_option_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'tensorboard', None)
    with pytest.raises(DependencyError, match='tensorboard is not installed: pip install'):
        train(str(SEGMENTOR), str(tmp_path / 'work'), tensorboard=True)
    assert not (tmp_path / 'work').exists()


def test_a_training_writes_for_tensorboard_and_a_report(run_tool, shapes_root, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = [f'data_root={shapes_root}', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2']
    settings += ['train_dataloader.num_workers=0', 'train_dataloader.persistent_workers=False']
    settings += ['default_hooks.logger.interval=1', 'train_dataloader.batch_size=2']
    arguments = ['--work-dir', tmp_path, '--tensorboard', '--cfg-options', *settings]
    done = run_tool('train.py', SEGMENTOR, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f'report      {tmp_path / "report.html"}' in done.stdout + done.stderr

    events = EventAccumulator(str(tmp_path / 'tensorboard'))
    events.Reload()
    logged = [json.loads(line) for line in (tmp_path / 'losses.jsonl').open()]
    seen = {event.step: event.value for event in events.Scalars('train/loss')}
    assert seen == pytest.approx({line['iter']: line['loss'] for line in logged})
    (metrics,) = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').open()]
    for name in ('mIoU', 'mAcc', 'aAcc'):
        (event,) = events.Scalars(f'val/{name}')
        assert (event.step, event.value) == (2, pytest.approx(metrics[name]))

    page = (tmp_path / 'report.html').read_text()
    pictures = list((tmp_path / 'pictures').iterdir())
    assert page.count('data:image/jpeg') == len(pictures) == 4
    assert f'<td>{metrics["mIoU"]:.2f}</td>' in page
