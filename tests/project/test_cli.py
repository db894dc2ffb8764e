"""What all command lines do: arguments, errors, interruptions, output that nobody reads."""

import os
import resource
import runpy
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.processes import in_child
from helpers.runs import DETECTOR
from mmengine.config import DictAction

from tools import cli
from xcit_mm import XCiT
from xcit_mm.base.errors import Interrupted

TOOLS = sorted(set(ROOT.glob('tools/[a-z]*.py')) - {ROOT / 'tools/cli.py'})
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
    from benchmarks.measure import TASKS
    from benchmarks.models import NAMES
    from xcit_mm.apps.annotation_tools.objects import SHAPE_KINDS
    from xcit_mm.apps.attention.draw import PANEL_SIDE
    from xcit_mm.apps.export.comparison import TOLERANCES
    from xcit_mm.apps.export.formats import BY_NAME
    from xcit_mm.base.device import DTYPES
    from xcit_mm.config.snippet import FRAMEWORKS
    from xcit_mm.data.datasets.fetch import DATASETS, SPLITS
    from xcit_mm.network.archs import ARCHS, PATCH_SIZES
    from xcit_mm.predict.results import SCORE_THR

    values = {
        'cli': dict(ARCHS=tuple(ARCHS), PATCH_SIZES=PATCH_SIZES, DTYPES=(*DTYPES, 'auto')),
        '../benchmarks/run': dict(TASKS=(*TASKS, 'step', 'loader'), NAMES=NAMES),
        'convert_predictions': dict(SHAPE_KINDS=SHAPE_KINDS),
        'export': dict(FORMATS=tuple(BY_NAME), PRECISIONS=tuple(TOLERANCES)),
        'config': dict(FRAMEWORKS=tuple(FRAMEWORKS)),
        'infer': dict(SCORE_THR=SCORE_THR),
        'label_studio': dict(SCORE_THR=SCORE_THR),
        'prepare_data': dict(ROOTS={k: v.root for k, v in DATASETS.items()}, SPLITS=SPLITS),
        'visualize_attention': dict(PANEL_SIDE=PANEL_SIDE),
    }
    for name, expected in values.items():
        tool = runpy.run_path(str(ROOT / 'tools' / f'{name}.py'))
        assert {key: tool[key] for key in expected} == expected


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        *((text, DictAction._parse_iterable(text)) for text in ('1', '-1e-3', 'None', 'true', '')),
        *((text, DictAction._parse_iterable(text)) for text in ("['a','b']", '1,', '[(1,2),[]]')),
        # In these mmengine drops the spaces, or calls itself forever.
        ("/x/New York,  NY (2)/it's here", ['/x/New York', "NY (2)/it's here"]),
        ('/x/two  spaces (1,2)', '/x/two  spaces (1,2)'),
        ('( 8, (1 , a b), [ ] )', (8, (1, 'a b'), [])),
    ],
)
def test_an_option_is_read_as_by_mmengine_and_keeps_its_spaces(text, value):
    parser = ArgumentParser()
    cli.add_options_argument(parser)
    args = parser.parse_args(['--cfg-options', f'name={text}', '--cfg-options', 'other=1'])
    assert args.cfg_options == {'name': value, 'other': 1}


@pytest.mark.parametrize('option', ['data_root', 'scale=[1,2', 'scale=(1,2]', 'scale=(1),(2)]'])
def test_an_option_of_another_form_is_refused(monkeypatch, capfd, option):
    code, _, error = call_tool(monkeypatch, capfd, 'train.py', DETECTOR, '--cfg-options', option)
    assert code == 2
    assert error.splitlines()[-1].startswith(f'train.py: error: --cfg-options {option}: ')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (
            [DETECTOR, '--epochs', '50', '--imgsz', '640'],
            'unrecognized arguments: --epochs 50 --imgsz 640; options of the config are set with '
            '--cfg-options NAME=VALUE, such as max_iters=1000',
        ),
        (['--resume', DETECTOR], 'the following arguments are required: config\n'),
        ([], 'the following arguments are required: config\n'),
    ],
)
def test_a_training_says_how_its_arguments_are_written(monkeypatch, capfd, arguments, message):
    code, _, error = call_tool(monkeypatch, capfd, 'train.py', *arguments)
    assert code == 2
    assert message in error


@pytest.mark.parametrize(
    ('words', 'resumed'),
    [
        (['--cfg-options', 'a=b c'], ": xcit train a.py --cfg-options 'a=b c' --resume"),
        (['--resume', 'last.pth'], ''),  # which may be an old one
        (['--cfg-options', 'resume=True', 'load_from=old.pth'], ''),
        (['--launcher', 'pytorch'], ''),
    ],
)
def test_an_interrupted_training_ends_with_the_command_that_resumes_it(
    monkeypatch, capsys, words, resumed
):
    def interrupted():
        raise Interrupted(signal.SIGINT, 'after iteration 27')

    monkeypatch.setattr(sys, 'argv', ['xcit train', 'a.py', *words])
    with pytest.raises(SystemExit):
        cli.run_tool(interrupted)
    sentence = f'stopped by SIGINT after iteration 27; resume it with --resume{resumed}\n'
    assert capsys.readouterr().err.endswith(sentence)


def test_the_tools_run_as_they_are_typed(tmp_path):
    """Executable, from any folder, with Python's own start."""
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    for tool in (*TOOLS, *ROOT.glob('tools/*.sh')):
        assert os.access(tool, os.X_OK), tool
    command = [ROOT / 'tools/convert_checkpoint.py', '--help']
    subprocess.run(command, cwd=tmp_path, env=os.environ | {'PATH': path}, check=True)


def test_an_interruption_is_a_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        cli.run_tool(interrupted)
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith('interrupted; what was written stays\n')


def test_the_first_seconds_of_a_tool_are_interrupted_with_a_line(tmp_path):
    """Ctrl-C as PyTorch is about to be imported, which takes long."""
    (tmp_path / 'torch.py').write_text('import os, signal; os.kill(os.getpid(), signal.SIGINT)')
    command = [sys.executable, ROOT / 'tools' / 'make_shapes.py', 'somewhere']
    env = os.environ | {'PYTHONPATH': str(tmp_path)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, f'{command[1]}: interrupted\n')


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
    """Return the status of a process that calls a function by run_tool, which prints to a file."""

    def run() -> None:
        for stream in (sys.__stdout__, sys.__stderr__):
            stream.reconfigure(encoding='ascii', errors='strict')
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        cli.run_tool(function)
        sys.stdout.flush()

    return in_child(run)


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
