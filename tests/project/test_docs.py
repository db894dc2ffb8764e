"""The commands of the README and of docs/ run as they stand there, on a fresh clone.

Each page has a copy of the repository in which ``make train`` has been run, and the stand-ins of
stand_ins.py for downloads. Its commands run in their order, in the processes of tool_server.py;
what is changed about them, so that this takes a minute, is in the tables below and nowhere else.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from helpers import ROOT
from helpers.clone import copy_clone
from helpers.tool_server import Process

from xcit_mm.base import shipped

PAGES = ['README.md', *sorted(f'docs/{path.name}' for path in ROOT.glob('docs/*.md'))]
LINKING = [*PAGES, 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md']

# What is not run, and why. Keys of all tables are what a command begins with.
NOT_RUN = {
    'make train': 'it installs; the fixture after_make_train does what it does then',
    'make test': 'it installs, and runs this test',
    'git clone': 'the tests run in a clone',
    'source .venv/bin/activate': 'the tests run in the environment that they have',
    'pip install': 'CI has installed so',
    'python -m pytest': 'the tests that it names are beside this one',
    'python work_dirs/exported/predict.py': 'test_folder.py runs it in an environment of its own',
}
# The trainings of make train, whose results are copied to --work-dir; test_tools.py has their
# options.
DONE = (
    'tools/train.py configs/mask_rcnn_xcit_n12_16_shapes.py',
    'tools/train.py configs/sem_fpn_xcit_n12_16_shapes.py',
)
# What has its arguments read and its config loaded with the options, and is not run, and why.
ONLY_PARSED = {
    'tools/embed.py --checkpoint xcit_small_12_p16_384_dist.pth --benchmark': 'it needs gigabytes; '
    'test_benchmarks.py writes small folders',
    'tools/train.py configs/mask_rcnn_xcit_s12_8_3x': 'half a minute a step without a GPU',
    'tools/train.py configs/mask_rcnn_xcit_t12_16_3x': 'as for own.py',
    'tools/train.py configs/cascade': 'test_recipes.py trains its model; DINO is run',
    'tools/train.py configs/mask2former': 'test_recipes.py trains and validates it',
    'tools/train.py own.py': 'test_tools.py fine-tunes this detector',
    'tools/train.py data/corrected/corrected.py': 'README.md trains on such a config',
    'tools/train.py data/own_panoptic/own_panoptic.py': 'test_recipes.py trains this model',
    'tools/train.py my_mask_rcnn.py': 'it counts epochs; test_configs.py builds its model',
    'tools/export.py configs/dino': 'it takes minutes; test_graphs.py writes a file with gathers',
    'tools/export.py configs/sem_fpn_xcit_n12_16_shapes.py '
    'work_dirs/sem_fpn_xcit_n12_16_shapes/iter_600.pth --out work_dirs/deepness.onnx': 'it takes '
    'a minute; test_deepness.py writes such a file',
    'tools/export.py configs/mask_rcnn_xcit_n12_16_shapes.py '
    'work_dirs/mask_rcnn_xcit_n12_16_shapes/iter_600.pth --folder': 'test_folder.py writes one',
    'tools/prepare_data.py coco ': 'it downloads gigabytes; test_prepare_data.py has a server',
    'tools/prepare_data.py ade20k': 'as for coco',
    'tools/make_shapes.py data/shapes_13bands': 'stand_ins.py has drawn a few of these images',
    'tools/make_shapes.py data/of_teacher': 'as for data/shapes_13bands',
    'tools/make_shapes.py data/unlabeled': 'as for data/shapes_13bands',
    'tools/demo.py': 'it serves until it is stopped; test_demo.py opens the page in a browser',
    'tools/classify.py xcit_small_12_p8_384_dist.pth data/imagenet/val --sample': 'as without',
    'tools/classify.py xcit_small_12_p8_384_dist.pth --images': 'test_classify.py runs it',
    'tools/probe.py': 'it needs two folders of labeled images; test_probe.py runs it',
    'benchmarks/run.py': 'it compares eight models; test_benchmark.py runs it',
}
# What starts a tool in several processes: the tool is parsed (test_distributed.py runs them).
COMMAND = re.compile(r'^(\$ |tools/|python benchmarks/)', re.MULTILINE)
SCRIPTS = 'tools/', 'benchmarks/'
LAUNCHERS = re.compile(r'tools/\w+\.sh|^torchrun')
# What is added to commands that begin so, for them to take seconds.
SHORTER = {
    'tools/train.py': 'train_cfg.max_iters=2 train_cfg.val_interval=2 '
    'default_hooks.report=None default_hooks.errors=None '
    'train_dataloader.batch_size=2 train_dataloader.num_workers=0 '
    'train_dataloader.persistent_workers=False val_dataloader.num_workers=0 '
    'val_dataloader.persistent_workers=False val_dataloader.dataset.indices=1',
    'tools/train.py configs/sem_fpn_xcit_n12_16_context.py': 'train_dataloader.batch_size=1 '
    'load_from=work_dirs/sem_fpn_xcit_n12_16_context_crops/iter_600.pth',
    'tools/train.py configs/pretrain': 'val_dataloader=None',
    'tools/train.py configs/distill': 'val_dataloader=None',
    'tools/train.py own_segmentation.py': 'train_dataloader.dataset.pipeline.2.scale="(512,128)" '
    'train_dataloader.dataset.pipeline.3.crop_size="(128,128)" '
    'val_dataloader.dataset.pipeline.1.scale="(512,128)" '
    'model.data_preprocessor.size="(128,128)"',
    'tools/test.py configs/mask_rcnn_xcit_n12_16_shapes.py': 'test_dataloader.dataset.indices=4',
    'tools/test.py configs/sem_fpn_xcit_n12_16_shapes.py': 'test_dataloader.dataset.indices=2',
    'tools/test.py configs/mask_rcnn_xcit_t12_16_3x.py': 'test_dataloader.dataset.indices=1',
    'tools/test.py configs/heights': 'test_dataloader.dataset.indices=2',
    'tools/evaluate_export.py': 'test_dataloader.dataset.indices=4',
}
# Pages whose commands take seconds; make test parses those of the other pages only.
SHORT = {'README.md', *(f'docs/{name}.md' for name in ('install', 'public_names', 'xca'))}
# Parts of commands, and what they become.
SMALLER = {
    'make_shapes.py data/shapes': 'make_shapes.py data/shapes --num-val 12',  # all that are named
    '--columns 8': '--columns 5',
    '--columns 16': '--columns 5',
    'context data/context': 'context data/context --num-train 8 --num-val 2',
    'heights data/heights': 'heights data/heights --num-val 4',
    # Without an object above a score of 0.5, int8 has nothing to compare, and no file is written.
    '--precision int8 --calibrate data/shapes/coco/train2017': '',
}
# The checkpoint of a training so shortened, and of the whole ones, which the pages name.
LAST_STEP, WHOLE = 'iter_2.pth', ('iter_600.pth', 'iter_1000.pth')


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and the text of each fenced block of a page."""
    text = (ROOT / page).read_text()
    found = re.findall(r'^( *)```(\w*)\n(.*?)^ *```$', text, re.DOTALL | re.MULTILINE)
    return [(language, dedent(body)) for _, language, body in found]


def commands(text: str) -> list[str]:
    """Return the commands of a block of bash, each in one line and without a comment."""
    lines = re.sub(r'\s*\\\n\s*', ' ', text).splitlines()
    uncommented = (re.sub(r'(^|\s+)#\s.*', '', line).strip() for line in lines)
    return [_as_tool(line) for line in uncommented if line]


def _as_tool(command: str) -> str:
    """Return the script that a command of ``xcit`` or ``python`` runs.

    test_command.py tests the command ``xcit`` itself.
    """
    if command.startswith('python benchmarks/'):
        return command.removeprefix('python ')
    name, _, arguments = command.removeprefix('xcit ').partition(' ')
    is_tool = command.startswith('xcit ') and name in shipped.tools()
    return f'tools/{name.replace("-", "_")}.py {arguments}' if is_tool else command


def beginning(starts: Iterable[str], command: str) -> list[str]:
    return [start for start in starts if f'{command} '.startswith(start)]


COMMANDS = [c for p in PAGES for kind, text in blocks(p) if kind == 'bash' for c in commands(text)]


class Terminal:
    """A clone in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def type(self, command: str) -> None:
        """Run a command as it stands there, except for what the tables say."""
        if beginning(NOT_RUN, command):
            return
        if LAUNCHERS.search(command):
            self.parse(command)
        elif command.startswith('python -m '):
            self.run(self._words(command)[1:])
        elif not command.startswith(SCRIPTS) or set('|<&;') & set(command):
            self._bash(command)
        elif beginning(ONLY_PARSED, command) or beginning(DONE, command):
            argv = self._words(command)
            self.run(argv, only_parse=True)
            if beginning(DONE, command) and '--work-dir' in argv:
                source = self.folder / 'work_dirs' / Path(argv[1]).stem
                target = self.folder / argv[argv.index('--work-dir') + 1]
                shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            self.run_shortened(command)

    def parse(self, command: str) -> None:
        """Read the arguments of a tool, or of the tool that a launcher starts, and its config."""
        is_launched, command = LAUNCHERS.search(command), command.partition(' > ')[0]
        argv = self._launched(command) if is_launched else self._words(command)
        self.run(argv, only_parse=True)

    def lacks_config(self, command: str) -> bool:
        """Return whether the config, or the folder of a model, is written by a command before."""
        config = next(iter(command.split()[1:]), '')
        is_path = config.endswith('.py') or config.startswith('work_dirs/')
        return is_path and not (self.folder / config).exists()

    def run_shortened(self, command: str) -> None:
        command, _, target = command.partition(' > ')
        for part, other in SMALLER.items():
            command = command.replace(part, other)
        options = ' '.join(SHORTER[start] for start in beginning(SHORTER, command)).split()
        argv = [*self._words(command), *(['--cfg-options', *options] if options else [])]
        self.run(argv, target=target)
        for path in self.folder.glob(f'work_dirs/*/{LAST_STEP}'):
            for name in (*WHOLE, 'last.pth'):  # a link to the file that is removed
                path.with_name(name).unlink(missing_ok=True)
                path.with_name(name).hardlink_to(path)
            path.unlink()

    def run(self, argv: list[str], only_parse: bool = False, target: str = '') -> None:
        """Run a tool, or ['-c', program], in a process of its own, which prints to a file."""
        log = self.folder / 'output.log'
        with log.open('w') as errors, (self.folder / (target or log)).open('a') as output:
            options = dict(cwd=self.folder, only_parse=only_parse)
            code = Process(argv, output, errors, **options).wait()
        printed = log.read_text(errors='replace')
        assert code == 0, f'{argv}\nended with {code}:\n{printed[-3000:]}'

    def _launched(self, command: str) -> list[str]:
        """Return what a launcher would start on every GPU: stubs of its programs print it."""
        stubs = self.folder.parent / 'stubs'
        stubs.mkdir(exist_ok=True)
        for name in ('python3', 'srun', 'torchrun'):
            (stubs / name).write_text('#!/bin/sh\nprintf \'%s\\n\' "$@"\n')
            (stubs / name).chmod(0o755)
        words = self._bash(f'PATH={stubs}:$PATH; {command}').splitlines()
        tool = next(i for i, word in enumerate(words) if word.endswith('.py'))
        return [f'tools/{Path(words[tool]).name}', *words[tool + 1 :]]

    def _words(self, command: str) -> list[str]:
        return self._bash(f"printf '%s\\n' {command}").splitlines()

    def _bash(self, command: str) -> str:
        done = subprocess.run(
            ['bash', '-c', command], cwd=self.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, f'{command}\n{done.stdout}{done.stderr}'
        return done.stdout


@pytest.fixture(scope='module')
def after_make_train(tmp_path_factory) -> Iterator[Terminal]:
    """A clone without network after ``make train``, and the same for segmentation, in two steps."""
    folder = tmp_path_factory.mktemp('docs') / 'clone'
    copy_clone(folder)
    nowhere = 'http://127.0.0.1:1'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PATH', f'{Path(sys.executable).parent}:{os.environ["PATH"]}')
        patch.setenv('PYTHONPATH', str(folder))
        patch.setenv('MMENGINE_HOME', str(folder.parent / 'cache'))
        for name in ('http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY'):
            patch.setenv(name, nowhere)
        terminal = Terminal(folder)
        terminal.run_shortened('tools/make_shapes.py data/shapes')
        for command in DONE:
            terminal.run_shortened(command)
        terminal.run([str(ROOT / 'tests' / 'helpers' / 'stand_ins.py')])
        yield terminal
    shutil.rmtree(folder.parent)


@pytest.fixture
def terminal(after_make_train, tmp_path) -> Iterator[Terminal]:
    """A clone for each page: none relies on the files of another."""

    def copy(source: str, target: str) -> None:  # nothing writes into images and weights
        is_kept = source.endswith(('.jpg', '.png', '.tif', '.pth'))
        (os.link if is_kept else shutil.copy2)(source, target)

    folder = tmp_path / 'clone'
    shutil.copytree(after_make_train.folder, folder, symlinks=True, copy_function=copy)
    yield Terminal(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    'page',
    [pytest.param(p, marks=[] if p in SHORT else pytest.mark.slow) for p in PAGES if blocks(p)],
)
def test_the_commands_of_a_page_run(page, terminal):
    program = ''
    for language, text in blocks(page):
        if language == 'bash':
            for command in commands(text):
                terminal.type(command)
        elif name := re.match(r'# (\w+\.py)\n', text):  # a config
            (terminal.folder / name[1]).write_text(text)
            load = f'from mmengine.config import Config; Config.fromfile({name[1]!r})'
            terminal.run(['-c', load])
        elif language == 'python':
            program += text
        else:
            assert language in ('text', 'powershell') and not COMMAND.search(text), text
    if program:
        terminal.run(['-c', program])


@pytest.mark.parametrize('page', [page for page in PAGES if blocks(page) and page not in SHORT])
def test_the_commands_of_a_long_page_are_parsed(page, request):
    if 'not slow' not in request.config.getoption('markexpr'):
        pytest.skip('the test above runs them')
    terminal = request.getfixturevalue('terminal')
    for language, text in blocks(page):
        if name := re.match(r'# (\w+\.py)\n', text):
            (terminal.folder / name[1]).write_text(text)
        elif language == 'python':
            compile(text, page, 'exec')
        for command in commands(text) if language == 'bash' else ():
            is_tool = command.startswith(SCRIPTS) or LAUNCHERS.search(command)
            if is_tool and not beginning(NOT_RUN, command) and not terminal.lacks_config(command):
                terminal.parse(command)


def test_every_exception_is_of_a_command():
    for start in (*NOT_RUN, *DONE, *ONLY_PARSED, *SHORTER):
        assert any(beginning([start], command) for command in COMMANDS), start
    for part in SMALLER:
        assert any(part in command for command in COMMANDS), part
    for command in COMMANDS:
        assert len(beginning([*NOT_RUN, *DONE, *ONLY_PARSED], command)) <= 1, command


@pytest.mark.parametrize('page', PAGES)
def test_the_options_that_the_text_names_exist(page):
    text = re.sub(r'^```.*?^```', '', (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r'`(tools/[^`]+)`', text):
        tool, *words = re.sub(r'dist_(\w+)\.sh|slurm_(\w+)\.sh', r'\1\2.py', span).split()
        assert (ROOT / tool).is_file(), span
        subcommand = [word for word in words[:1] if word.islower() and word[0] != '-']
        if options := {word.partition('=')[0] for word in words if word.startswith('--')}:
            assert options <= options_of(tool, *subcommand), span


@cache
def options_of(tool: str, *subcommand: str) -> set[str]:
    command = [sys.executable, ROOT / tool, *subcommand, '--help']
    usage = subprocess.run(command, capture_output=True, text=True).stdout
    return set(re.findall(r'--[\w-]+', usage))


@pytest.mark.parametrize('page', LINKING)
def test_links_lead_to_a_file_and_a_heading(page):
    for link in re.findall(r'\]\(([^)\s]+)\)', (ROOT / page).read_text()):
        if link.startswith(('http://', 'https://')):
            continue
        target, _, anchor = link.partition('#')
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r'^#+ (.*)$', path.read_text(), flags=re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading).replace(' ', '-').lower() for heading in headings}


def test_the_table_for_those_who_come_from_the_release_has_its_weights():
    page = (ROOT / 'docs' / 'weights.md').read_text()
    rows = re.findall(r'\(\.\./(configs/\w+\.py)\) \| \[.*\]\((\S+)\)', page)
    texts = {f'configs/{path.name}': path.read_text() for path in ROOT.glob('configs/*.py')}
    assert dict(rows).keys() == {config for config, text in texts.items() if 'Weights: ' in text}
    for config, weights in rows:
        assert f'Weights: {weights}\n' in texts[config]
