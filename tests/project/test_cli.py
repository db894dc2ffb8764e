"""What all command lines do: arguments, errors, interruptions, output that nobody reads."""

import os
import resource
import runpy
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.runs import DETECTOR
from mmengine.config import DictAction

from tools import cli
from xcit_mm import XCiT

TOOLS = [
    path for path in (ROOT / 'tools').glob('*.py') if path.name not in ('__init__.py', 'cli.py')
]
# Calls every tool with an argument, and prints what is imported then.
ASK_ALL = """
import runpy, sys
for tool in sys.argv[2:]:
    sys.argv = [tool, sys.argv[1]]
    try:
        runpy.run_path(tool, run_name='__main__')
    except SystemExit as end:
        print(end.code, file=sys.stderr)
print({'torch', 'mmengine', 'numpy', 'xcit_mm'} & sys.modules.keys(), file=sys.stderr)
"""


@pytest.mark.parametrize(('argument', 'code'), [('--help', '0'), ('--helpp', '2')])
def test_help_and_a_wrong_argument_need_no_import_of_what_takes_seconds(argument, code):
    command = [sys.executable, '-c', ASK_ALL, argument, *TOOLS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, imported = done.stderr.splitlines()
    assert imported == 'set()'
    assert [line for line in lines if line.isdecimal()] == [code] * len(TOOLS)


def test_arguments_have_the_choices_and_defaults_of_the_package():
    from xcit_mm import benchmark, export
    from xcit_mm.attention import draw
    from xcit_mm.benchmark import measure
    from xcit_mm.datasets import download
    from xcit_mm.demo import page
    from xcit_mm.inference import infer
    from xcit_mm.models import xcit

    tool = {path.stem: runpy.run_path(str(path)) for path in TOOLS}
    assert tool['benchmark']['DTYPES'] == tuple(measure.DTYPES)
    assert tool['benchmark']['MODES'] == measure.MODES
    assert tool['benchmark']['NAMES'] == benchmark.NAMES
    assert tool['demo']['MAX_UPLOAD'] == page.MAX_UPLOAD
    assert tool['export_onnx']['PARTS'] == export.PARTS
    assert tool['get_flops']['ARCHS'] == tuple(xcit.ARCHS)
    assert tool['get_flops']['PATCH_SIZES'] == xcit.PATCH_SIZES
    assert tool['infer']['SCORE_THR'] == infer.SCORE_THR
    assert tool['prepare_data']['SPLITS'] == download.SPLITS
    roots = {name: dataset.root for name, dataset in download.DATASETS.items()}
    assert tool['prepare_data']['ROOTS'] == roots
    assert tool['visualize_attention']['PANEL_SIDE'] == draw.PANEL_SIDE


@pytest.mark.parametrize(
    'text', ['1', '-1e-3', 'None', 'true', "['a','b']", '1,', '[(1,2),[]]', '']
)
def test_an_option_is_read_as_mmengine_reads_it(text):
    assert cli.parse_value(text) == DictAction._parse_iterable(text)


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ("/x/New York,  NY (2)/it's here", ['/x/New York', "NY (2)/it's here"]),
        ('/x/two  spaces (2)', '/x/two  spaces (2)'),
        ('/x/comma (1,2)', '/x/comma (1,2)'),
        ('( 8, (1 , a b), [ ] )', (8, (1, 'a b'), [])),
    ],
)
def test_an_option_keeps_the_spaces_of_its_text(text, value):
    parser = ArgumentParser()
    cli.add_options_argument(parser)
    args = parser.parse_args(['--cfg-options', f'name={text}', '--cfg-options', 'other=1'])
    assert args.cfg_options == {'name': value, 'other': 1}


@pytest.mark.parametrize('option', ['data_root', 'scale=[1,2', 'scale=(1,2]', 'scale=(1),(2)]'])
def test_an_option_of_another_form_is_refused(monkeypatch, capfd, option):
    code, _, error = call_tool(monkeypatch, capfd, 'train.py', DETECTOR, '--cfg-options', option)
    assert code == 2
    assert error.splitlines()[-1].startswith(f'train.py: error: --cfg-options {option}: ')


def test_the_tools_run_as_they_are_typed(tmp_path):
    """Executable, from any folder, with Python's own start."""
    for tool in (*TOOLS, *(ROOT / 'tools').glob('*.sh')):
        assert os.access(tool, os.X_OK), tool
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    command = [ROOT / 'tools/get_flops.py', '--arch', 'n12', '--size', '32', '32']
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {'PATH': path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert 'XCiT-N12/16' in done.stdout


def test_an_interruption_is_a_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        cli.run_tool(interrupted)
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith('interrupted; what was written stays\n')


def test_the_first_seconds_of_a_tool_are_interrupted_with_a_line():
    """Ctrl-C as PyTorch is about to be imported, which takes long."""
    tool = ROOT / 'tools' / 'make_shapes.py'
    program = f"""
import os, runpy, signal, sys

class Finder:
    def find_spec(name, *args):
        if name == 'torch':
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
sys.argv = [{str(tool)!r}, 'somewhere']
runpy.run_path(sys.argv[0], run_name='__main__')
"""
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, f'{tool}: interrupted\n')


@pytest.mark.parametrize('tool', ['convert_checkpoint.py', 'make_shapes.py'])
def test_a_file_that_is_larger_than_allowed_is_a_line(monkeypatch, capfd, tmp_path, tool):
    source, target = tmp_path / 'source.pth', tmp_path / 'target'
    torch.save(XCiT(arch='n12').state_dict(), source)
    arguments = [target] if tool == 'make_shapes.py' else [source, target]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))  # as by ulimit -f
    try:
        code, _, error = call_tool(monkeypatch, capfd, tool, *arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert 'File too large' in error.splitlines()[-1]
    assert 'Traceback' not in error
    assert list(tmp_path.iterdir()) == [source]


def printed(function: Callable[[], object], output: int) -> int:
    """Return the exit code of run_tool with a function that prints to a descriptor."""
    child = os.fork()
    if not child:
        code = 1
        try:
            for stream in (sys.__stdout__, sys.__stderr__):
                stream.reconfigure(encoding='ascii', errors='strict')
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            cli.run_tool(function)
            sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_output_that_nobody_reads_ends_no_tool(tmp_path):
    """As in tools/train.py ... | head -1."""

    def work() -> None:
        for _ in range(3):
            print('x' * 10**5, flush=True)
            print('x' * 10**5, file=sys.stderr)
        (tmp_path / 'result').touch()

    read, write = os.pipe()
    os.close(read)
    assert printed(work, write) == 0
    os.close(write)
    assert (tmp_path / 'result').exists()


def test_characters_that_the_terminal_lacks_are_escaped(tmp_path):
    with (tmp_path / 'output').open('wb') as file:
        assert printed(lambda: print('é', '\udcc3'), file.fileno()) == 0
    assert (tmp_path / 'output').read_text() == '\\xe9 \\udcc3\n'
