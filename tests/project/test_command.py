"""The command ``xcit``: the tools and the configs by their names."""

import os
import subprocess
import sys

import pytest
from helpers import ROOT

import xcit_mm_command
from xcit_mm import UserError
from xcit_mm.base import shipped
from xcit_mm.config.load import load_config

DETECTOR = 'mask_rcnn_xcit_n12_16_shapes'
LINES = """
import sys, xcit_mm_command
for line in sys.argv[1:]:
    sys.argv = ['xcit', *line.split()]
    try:
        xcit_mm_command.main()
    except SystemExit as end:
        print(end.code)
print({'torch', 'mmengine', 'numpy', 'xcit_mm'} & sys.modules.keys())
"""


def said(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, 'argv', ['xcit', *arguments])
    code = 0
    try:
        xcit_mm_command.main()
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


def test_the_command_alone_lists_all_tools_and_configs(monkeypatch, capsys):
    code, text, _ = said(monkeypatch, capsys)
    assert (code, text, '') == said(monkeypatch, capsys, '--help')
    words = text.split()
    assert {*shipped.tools(), 'check-dataset'} <= {*words}
    configs = said(monkeypatch, capsys, 'configs')[1].splitlines()
    assert configs == sorted(path.stem for path in ROOT.glob('configs/*.py'))
    for name in configs:
        start, _, end = name.partition('_xcit_')
        assert {f'{start}_xcit_', end} <= {*words}


def test_help_of_the_command_and_of_a_tool_needs_no_import_of_what_takes_seconds():
    lines = ['--help', '--version', f'configs {DETECTOR}', 'train --help', 'get_flops --help']
    done = subprocess.run(
        [sys.executable, '-c', LINES, *lines], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == 'set()'
    assert str(ROOT / f'configs/{DETECTOR}.py') in done.stdout.splitlines()
    assert 'usage: xcit train [-h]' in done.stdout
    assert 'usage: xcit get_flops [-h]' in done.stdout


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['trian'], 'trian is not a command; did you mean train?'),
        (['zzz'], 'zzz is not a command; xcit lists all commands'),
        (['configs', 'mask_rcnn_xcit_s12_8'], 'did you mean mask_rcnn_xcit_s12_8_3x?'),
        (['configs', DETECTOR, 'b'], f'{DETECTOR} b is not a config'),
        (['--completion', 'tcsh'], '--completion tcsh; name one of bash, zsh, fish, powershell'),
    ],
)
def test_what_it_does_not_know_is_a_sentence(monkeypatch, capsys, arguments, message):
    code, _, error = said(monkeypatch, capsys, *arguments)
    assert code == 2
    assert error.startswith('xcit: ')
    assert message in error


def test_an_error_of_a_tool_begins_with_the_command():
    command = [sys.executable, '-m', 'xcit_mm', 'infer', 'no_config', 'no.pth', 'no.jpg']
    done = subprocess.run(
        [*command, '--out', 'nowhere'], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith('xcit infer: ')


@pytest.mark.parametrize(
    ('line', 'expected'),
    [
        ('xcit tr', {'train'}),
        ('xcit conf', {'config', 'configs'}),
        ('xcit config distill_', {'distill_xcit_n12_16_shapes', 'distill_xcit_s12_16_100e'}),
        ('xcit train mask_rcnn_xcit_s24', {f'mask_rcnn_xcit_s24_{p}_3x' for p in (16, 8)}),
        ('xcit export --format o', {'onnx', 'openvino'}),
        ('xcit --completion f', {'fish'}),
    ],
)
def test_a_shell_completes_commands_options_and_configs(tmp_path, line, expected):
    asked = dict(_ARGCOMPLETE='1', COMP_LINE=line, COMP_POINT=str(len(line)), COMP_TYPE='9')
    asked |= dict(_ARGCOMPLETE_STDOUT_FILENAME=str(tmp_path / 'answer'), _ARGCOMPLETE_IFS='\n')
    command = [sys.executable, '-c', 'import xcit_mm_command; xcit_mm_command.main()']
    subprocess.run(command, cwd=ROOT, env=os.environ | asked, check=True)
    assert {word.strip() for word in (tmp_path / 'answer').read_text().split()} == expected


@pytest.mark.parametrize('shell', xcit_mm_command.SHELLS)
def test_the_code_for_each_shell_asks_xcit(monkeypatch, capsys, shell):
    code, text, _ = said(monkeypatch, capsys, '--completion', shell)
    assert code == 0
    assert '_ARGCOMPLETE' in text
    assert 'xcit' in text


@pytest.mark.parametrize('name', [DETECTOR, f'{DETECTOR}.py', f'configs/{DETECTOR}.py'])
def test_a_config_of_the_package_is_found_by_its_name(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    cfg = load_config(name)
    assert cfg.filename == str(ROOT / f'configs/{DETECTOR}.py')
    assert cfg.work_dir == f'work_dirs/{DETECTOR}'


def test_a_file_of_the_user_comes_before_a_config_of_the_package(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / f'{DETECTOR}.py'
    own.write_text('model = dict(type="Own")')
    assert load_config(f'{DETECTOR}.py').model.type == 'Own'
    with pytest.raises(UserError, match=r'did you mean mask_rcnn_xcit_s12_8_3x\?'):
        load_config('mask_rcnn_xcit_s12_8_3')
    with pytest.raises(UserError, match='elsewhere/mask_rcnn_xcit_s12_8_3x does not exist'):
        load_config('elsewhere/mask_rcnn_xcit_s12_8_3x')


def test_outside_of_a_clone_sentences_name_the_command(monkeypatch):
    text = 'run tools/check_dataset.py CONFIG'
    assert shipped.commands(text) == text
    monkeypatch.setattr(shipped, 'IN_CLONE', False)
    assert shipped.commands(text) == 'run xcit check-dataset CONFIG'
    for path in (
        'tools/mine.py',
        '/home/me/tools/train.py',
        'my_tools/test.py',
        '../tools/test.py',
    ):
        assert shipped.commands(f'{path} cannot be read') == f'{path} cannot be read'
    assert shipped.install('export') == 'pip install "xcit_mm[export]"'
