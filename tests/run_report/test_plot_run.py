"""The command line of tools/plot_run.py, and the option of tools/train.py for TensorBoard."""

import json
from functools import partial
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.in_process import call_tool
from PIL import Image

SEGMENTOR = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'


@pytest.fixture
def plot_run(monkeypatch, capfd):
    """Call the tool as a user types it; returns its exit code and what it prints."""
    return partial(call_tool, monkeypatch, capfd, 'plot_run.py')


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / 'run'
    folder.mkdir()
    lines = [json.dumps(dict(iter=step, loss=1 / step)) for step in (1, 2, 3)]
    (folder / 'losses.jsonl').write_text('\n'.join(lines))
    return folder


def test_out_names_a_picture_a_page_or_a_folder_for_both(plot_run, run, tmp_path):
    for out, message in (
        (tmp_path / 'a.pdf', 'a.pdf: neither .png nor .html'),
        (run / 'losses.jsonl/new', 'cannot be written to (NotADirectoryError'),
    ):
        code, _, errors = plot_run(run, '--out', out)
        assert code == 2 and message in errors and 'Traceback' not in errors
    assert [path.name for path in tmp_path.iterdir()] == ['run']
    for out, files in (
        ('a.png', ['a.png']),
        ('new/a.html', ['new/a.html']),
        ('folder', ['folder/report.png', 'folder/report.html']),
    ):
        code, output, _ = plot_run(run, '--out', tmp_path / out)
        paths = [tmp_path / name for name in files]
        assert (code, output) == (0, f'Written: {", ".join(map(str, paths))}\n')
    assert Image.open(paths[0]).size > (500, 300)
    assert '<h1>run</h1>' in paths[1].read_text()
    assert [path.name for path in (tmp_path / 'new').iterdir()] == ['a.html']


def test_runs_that_cannot_be_drawn_are_left_out_with_a_note(plot_run, run, tmp_path):
    damaged, empty, picture = (tmp_path / name for name in ('damaged \x1b[2J', 'empty', 'a.png'))
    damaged.mkdir()
    empty.mkdir()
    picture.touch()
    (damaged / 'losses.jsonl').write_text('{"iter": "\\u001b[2J"}\n')
    for folders, expected, message in (
        ([run, empty], 0, f'left out: {empty} holds no run'),
        ([run, picture], 0, f'left out: {picture} holds no run'),
        ([run, tmp_path / 'missing'], 1, 'missing does not exist'),
        ([run, damaged], 1, 'losses.jsonl cannot be read (ValueError: its iter is '),
        ([damaged], 2, 'losses.jsonl cannot be read (ValueError: its iter is '),
        ([empty], 2, 'holds no run'),
    ):
        out = tmp_path / f'{len(list(tmp_path.iterdir()))}.html'
        code, _, errors = plot_run(*folders, '--out', out)
        assert code == expected and message in errors
        assert '\x1b' not in errors and 'Traceback' not in errors
        assert out.exists() == (code < 2)


def test_a_training_writes_for_tensorboard_and_a_report(monkeypatch, capfd, shapes_root, tmp_path):
    settings = [f'data_root={shapes_root}', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2']
    settings += ['train_dataloader.num_workers=0', 'train_dataloader.batch_size=2']
    arguments = ['--work-dir', tmp_path, '--tensorboard', '--cfg-options', *settings]
    code, output, errors = call_tool(monkeypatch, capfd, 'train.py', SEGMENTOR, *arguments)
    assert code == 0, errors[-3000:]
    assert f'report      {tmp_path / "report.html"}' in output + errors
    assert list((tmp_path / 'tensorboard').iterdir())

    (metrics,) = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').open()]
    page = (tmp_path / 'report.html').read_text()
    pictures = list((tmp_path / 'pictures').iterdir())
    assert page.count('data:image/jpeg') == len(pictures) == 4
    assert f'<td>{metrics["mIoU"]:.4g}</td>' in page
