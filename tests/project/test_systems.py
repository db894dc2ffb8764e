"""Everything runs where POSIX's functions are missing and open files cannot be replaced."""

import ast
import json
from pathlib import PureWindowsPath

import pytest
from helpers import ROOT, wait_until, wait_until_session_ends
from helpers.random_weights import DETECTOR, SEGMENTOR
from helpers.resumed_runs import assert_same_run
from helpers.runs import Running, options
from helpers.systems import run, start

from tools import cli
from xcit_mm.base.files import valid_name
from xcit_mm.base.http import is_url
from xcit_mm.train.checkpoints.recipe import PATH

MODES = ('r', 'w', 'a', 'x', 'r+', 'w+')
PROGRAM = r"""
import sys
from pathlib import Path

from mmengine.config import Config

from xcit_mm.base.device import release_memory
from xcit_mm.base.errors import UserError
from xcit_mm.base.files import allocate, move_folder, write_beside, write_whole
from xcit_mm.base.free_memory import free_memory
from xcit_mm.base.launchers import number_of_cores
from xcit_mm.config.adapt import adapt
from xcit_mm.config.load import load_config
from xcit_mm.large.tokens.workspace import free_disk
from xcit_mm.predict.write.written import only_writer
from xcit_mm.train.checkpoints.run_lock import run_lock

folder = Path(sys.argv[1])
for text in ('one', 'zwölf'):  # the second replaces the first
    with write_whole(folder / 'a.txt', 'w') as file:
        file.write(text)
    with write_beside(folder / 'b') as output:
        output.mkdir()
assert (folder / 'a.txt').read_bytes() == 'zwölf'.encode()
(folder / 'c').mkdir()
move_folder(folder / 'b', folder / 'c')  # an empty one
allocate(folder / 'zeros', 3 * 2**20 + 1)
assert (folder / 'zeros').read_bytes() == bytes(3 * 2**20 + 1)
work_dir = Config(dict(work_dir=str(folder), launcher='none'))
for hold in (lambda: run_lock(work_dir), lambda: only_writer(folder)):
    try:
        with hold(), hold():
            raise SystemExit('two hold a folder')
    except UserError as error:
        print(error)
print(*adapt(load_config(sys.argv[2])))
assert number_of_cores() > 0 and free_memory() > 0 and free_disk(folder) > 0
release_memory()
"""

IN_TURN = """
import json
import runpy
import sys

for sys.argv in json.loads(sys.argv[1]):
    try:
        runpy.run_path(f'tools/{sys.argv[0]}', run_name='__main__')
    except SystemExit as end:
        if end.code:
            raise
"""


def test_files_locks_and_processes_need_nothing_of_posix(tmp_path):
    printed = run('-c', PROGRAM, tmp_path, DETECTOR)
    assert 'is in use by another training run' in printed
    assert 'another run writes its predictions' in printed
    assert 'Each data worker is a new process: this system has no fork server.' in printed


@pytest.mark.parametrize('path', [r'C:\data\coco', r'D:images', r'\\server\share\a.tif', 'C:/a,b'])
def test_paths_of_windows_are_paths_and_no_addresses(path):
    assert not is_url(path)
    assert path == r'D:images' or PATH.search(path)
    assert cli.parse_value(path) == (path if ',' not in path else ['C:/a', 'b'])
    name = valid_name(path)
    assert PureWindowsPath(name).name == name and not PureWindowsPath(name).drive
    folder = PureWindowsPath('out')
    assert (folder / name).parent == folder


@pytest.mark.parametrize('text', ['..', '. .', 'CON', 'nul.tif', 'com1', 'a\x07b', 'a.', 'a|b', ''])
def test_names_are_names_on_windows(text):
    name = valid_name(text)
    path = PureWindowsPath(name)
    assert path.name == name and not path.is_reserved() and not name.endswith(('.', ' '))


def opens_text(call: ast.Call) -> bool:
    """Whether a call is one of a path's ``read_text()``, ``write_text(...)`` and ``open('a')``."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ''
    if name == 'open':
        mode = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ''
        return mode in MODES
    return (name, len(call.args)) in (('read_text', 0), ('write_text', 1))


def test_text_files_have_an_encoding():
    """On Windows, Python's default is cp1252."""
    without = [
        f'{path.relative_to(ROOT)}:{node.lineno}'
        for folder in ('xcit_mm', 'tools', 'docs')
        for path in (ROOT / folder).rglob('*.py')
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        if isinstance(node, ast.Call)
        and opens_text(node)
        and 'encoding' not in {keyword.arg for keyword in node.keywords}
    ]
    assert without == []


@pytest.mark.slow
def test_a_training_there_is_killed_and_ends_like_an_uninterrupted_one(shapes_root, tmp_path):
    """With a data worker, which is a new process.

    The run that is not interrupted has the functions of POSIX.
    """

    def arguments(name, *more):
        options_of_run = [*options(shapes_root, 4), 'default_hooks.checkpoint.interval=1']
        options_of_run += ['train_dataloader.num_workers=1', 'train_dataloader.batch_size=2']
        return 'tools/train.py', SEGMENTOR, '--work-dir', tmp_path / name, *more, *options_of_run

    def has_saved():
        assert killed.poll() is None, killed.communicate()[0]
        return (folder / 'iter_1.pth').exists()

    folder = tmp_path / 'killed'
    whole = Running(*arguments('whole'), OMP_NUM_THREADS=1)
    killed = start(*arguments('killed'))
    wait_until(has_saved)
    killed.kill()
    killed.communicate()
    wait_until_session_ends(killed.pid)  # the data worker ends, too
    run(*arguments('killed', '--resume'))
    code, printed = whole.end()
    assert code == 0, printed
    assert_same_run(tmp_path / 'whole', folder, 4)


@pytest.mark.slow
def test_tools_predict_describe_check_and_export_there(shapes_root, weights, tmp_path):
    images, out, model = shapes_root / 'coco/val2017', tmp_path / 'out', tmp_path / 'model.onnx'
    infer = 'infer.py', DETECTOR, weights[DETECTOR], images, '--out', out, '--device', 'cpu'
    data = '--cfg-options', f'data_root={shapes_root}'
    check = 'check_dataset.py', SEGMENTOR, '--workers', 1, *data
    export = 'export.py', SEGMENTOR, weights[SEGMENTOR], '--out', model
    commands = infer, infer, check, export  # the second moves what the first wrote
    printed = run('-c', IN_TURN, json.dumps([[*map(str, command)] for command in commands]))
    assert 'Images read' in printed
    assert 'Written' in printed
    assert model.is_file()
    predictions = json.loads((out / 'predictions.json').read_text())
    assert len(predictions['images']) == len(list(images.iterdir()))
    assert all((out / image['picture']).is_file() for image in predictions['images'])
    assert len(list(out.glob('earlier_*'))) == 1
