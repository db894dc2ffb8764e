"""The commands of the README and of docs/ run as they stand there, on a fresh clone.

Each page has a copy of the repository, in which ``make train`` has been run, and the stand-ins of
stand_ins.py for what is downloaded. Its commands run in their order; what is changed about them,
so that this takes minutes, is in the tables below and nowhere else.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.clone import copy_clone

PAGES = ['README.md', *sorted(f'docs/{path.name}' for path in ROOT.glob('docs/*.md'))]
LINKING = [*PAGES, 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md']
LANGUAGES = {'bash', 'python', 'text'}  # only the first two are run

# What is not run, and why. Keys of all tables are what a command begins with.
NOT_RUN = {
    'make train': 'it installs; its steps are run by the fixture after_make_train',
    'make test': 'it installs, and runs this test',
    'source .venv/bin/activate': 'the tests run in the environment that they have',
    'pip install -e': 'CI has installed so',
    'python -m pytest': 'the tests that it names are beside this one',
}
# What has its arguments read and its config loaded with the options, and is not run, and why.
ONLY_PARSED = {
    'tools/train.py configs/mask_rcnn_xcit_s12_8_3x': 'half a minute a step without a GPU',
    'tools/prepare_data.py coco': 'it downloads gigabytes; test_prepare_data.py has a server',
    'tools/prepare_data.py ade20k': 'as for coco',
    'tools/demo.py': 'it serves until it is stopped; test_demo.py opens the page in a browser',
    'tools/export_onnx.py configs/sem_fpn': 'half a minute; test_export.py exports it',
    'tools/benchmark.py': 'it compares eight models; test_benchmark.py runs it',
}
# Scripts that start a tool on many GPUs: what they start is parsed (test_distributed.py runs them).
LAUNCHERS = re.compile(r'tools/\w+\.sh')
# Small images and few of them for the recipes.
SMALL_DETECTION = (
    'train_cfg.max_iters=1 train_dataloader.batch_size=1 model.train_cfg.rcnn.sampler.num=64 '
    'train_dataloader.dataset.pipeline.3.transforms.0.0.scales=[(320,320)] '
    'train_dataloader.dataset.pipeline.3.transforms.1.2.scales=[(320,320)] '
    'val_dataloader.dataset.pipeline.1.scale=(320,320)'
)
SMALL_SEGMENTATION = (
    'train_dataloader.dataset.pipeline.2.scale=(512,128) '
    'train_dataloader.dataset.pipeline.3.crop_size=(128,128) '
    'val_dataloader.dataset.pipeline.1.scale=(512,128) model.data_preprocessor.size=(128,128)'
)
# What is added so that a command takes seconds: to all that begin so, one after the other.
SHORTER = {
    'tools/train.py': 'train_cfg.max_iters=2 train_dataloader.batch_size=2 '
    'train_dataloader.num_workers=0 train_dataloader.persistent_workers=False '
    'val_dataloader.num_workers=0 val_dataloader.persistent_workers=False '
    'val_dataloader.dataset.indices=1',
    'tools/train.py configs/mask_rcnn_xcit_n12_16_shapes.py': 'train_cfg.val_interval=2',
    'tools/train.py configs/mask_rcnn_xcit_n12_16_shapes.py --work-dir work_dirs/run --resume': (
        'train_cfg.max_iters=4'
    ),
    'tools/train.py configs/mask_rcnn_xcit_n12_16_shapes.py --work-dir work_dirs/longer --resume': (
        'train_cfg.max_iters=4'
    ),
    'tools/train.py configs/sem_fpn_xcit_n12_16_shapes.py': 'train_cfg.val_interval=2',
    'tools/train.py configs/mask_rcnn_xcit_t12_16_3x.py': SMALL_DETECTION,
    'tools/train.py own.py': SMALL_DETECTION,
    'tools/train.py own_segmentation.py': SMALL_SEGMENTATION,
    'tools/test.py configs/mask_rcnn_xcit_n12_16_shapes.py': 'test_dataloader.dataset.indices=4',
    'tools/test.py configs/mask_rcnn_xcit_t12_16_3x.py': 'test_dataloader.dataset.indices=1',
}
# The checkpoint of a training so shortened, and of the whole one, whose name the pages go on with.
LAST_STEP, WHOLE = 'iter_2.pth', 'iter_450.pth'
SHAPES_CONFIGS = ('mask_rcnn_xcit_n12_16_shapes', 'sem_fpn_xcit_n12_16_shapes')


@dataclass
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    lines = (ROOT / page).read_text().splitlines()
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith('```')]
    assert len(fences) % 2 == 0, f'{page}: a fence is not closed'
    return [
        Block(lines[start].strip(' `'), '\n'.join(lines[start + 1 : end]))
        for start, end in zip(fences[::2], fences[1::2], strict=True)
    ]


def commands(block: Block) -> list[str]:
    """Those of a block of bash, each in one line and without a comment."""
    lines = re.sub(r'\s*\\\n\s*', ' ', block.text).splitlines()
    uncommented = (re.sub(r'(^|\s+)#\s.*', '', line).strip() for line in lines)
    return [line for line in uncommented if line]


def beginning(starts: Iterable[str], command: str) -> list[str]:
    return [start for start in starts if command.startswith(start)]


RUN = [
    page for page in PAGES if any(block.language in ('bash', 'python') for block in blocks(page))
]
COMMANDS = [c for page in RUN for b in blocks(page) if b.language == 'bash' for c in commands(b)]


class Terminal:
    """A clone in which commands are typed.

    Args:
        folder: Of the clone.
        request: Has a process with everything imported run a tool (forked_tools.py).
    """

    def __init__(self, folder: Path, request: Callable[..., int]) -> None:
        self.folder = folder
        self._request = request
        self._log = folder / 'output.log'
        self._python = ''  # of the page so far

    def type(self, command: str) -> None:
        """Run a command as it stands there, but for what the tables say."""
        if beginning(NOT_RUN, command):
            return
        if LAUNCHERS.search(command):
            tool, *arguments = self._launched(command)
            self.fork([f'tools/{Path(tool).name}', *arguments], command, only='parse')
            return
        if not command.startswith('tools/') or set('|<>&;') & set(command):
            self._bash(command)
            return
        argv = self._bash(f"printf '%s\\n' {command}").splitlines()
        if beginning(ONLY_PARSED, command):
            self.fork(argv, command, only='parse')
            return
        shorter = (
            ['--cfg-options', *SHORTER[start].split()] for start in beginning(SHORTER, command)
        )
        self.fork([*argv, *chain.from_iterable(shorter)], command)
        for path in self.folder.glob(f'work_dirs/*/{LAST_STEP}'):
            path.rename(path.with_name(WHOLE))

    def python(self, block: Block) -> None:
        """Go on with the program of a page; or write a config, where its first line is its name."""
        if name := re.match(r'# (\w+\.py)\n', block.text):
            (self.folder / name[1]).write_text(block.text)
            program = f'from mmengine.config import Config; Config.fromfile({name[1]!r})'
            self.fork(['-c', program], name[1])
            return
        self._python += block.text + '\n'
        self.fork(['-c', self._python], block.text)

    def fork(self, argv: list[str], what: str, only: str | None = None) -> str:
        """Run a tool and return what it prints."""
        code = self._request(argv=argv, cwd=str(self.folder), log=str(self._log), only=only)
        output = self._log.read_text(errors='replace')
        assert code == 0, f'{what}\nended with {code}:\n{output[-3000:]}'
        return output

    def _launched(self, command: str) -> list[str]:
        """What a launcher would start once for every GPU: the stand-ins of its programs say it."""
        stubs = self.folder.parent / 'stubs'
        stubs.mkdir(exist_ok=True)
        for name in ('python3', 'srun'):
            (stubs / name).write_text('#!/bin/sh\nprintf \'%s\\n\' "$@"\n')
            (stubs / name).chmod(0o755)
        words = self._bash(f'PATH={stubs}:$PATH; {command}').splitlines()
        return words[next(i for i, word in enumerate(words) if word.endswith('.py')) :]

    def _bash(self, command: str) -> str:
        done = subprocess.run(
            ['bash', '-c', command], cwd=self.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, f'{command}\n{done.stdout}{done.stderr}'
        return done.stdout


@pytest.fixture(scope='module')
def fresh(tmp_path_factory) -> Iterator[Terminal]:
    """A clone as it comes, and no network."""
    folder = tmp_path_factory.mktemp('docs') / 'clone'
    copy_clone(folder)
    nowhere = 'http://127.0.0.1:1'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PATH', f'{Path(sys.executable).parent}:{os.environ["PATH"]}')
        patch.setenv('PYTHONPATH', str(folder))
        patch.setenv('MMENGINE_HOME', str(folder.parent / 'cache'))
        patch.setenv('HF_HUB_OFFLINE', '1')
        for name in ('http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY'):
            patch.setenv(name, nowhere)
        with subprocess.Popen(
            [sys.executable, ROOT / 'tests' / 'helpers' / 'forked_tools.py'],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert Path(server.stdout.readline().strip()) == folder

            def request(**what: object) -> int:
                print(json.dumps(what), file=server.stdin, flush=True)
                return int(server.stdout.readline())

            yield Terminal(folder, request)
            server.stdin.close()
    shutil.rmtree(folder.parent)


@pytest.fixture(scope='module')
def after_make_train(fresh) -> Terminal:
    """What ``make train`` leaves, and the same for segmentation, after two steps of 450."""
    fresh.type('tools/make_shapes.py data/shapes')
    for name in SHAPES_CONFIGS:
        fresh.type(f'tools/train.py configs/{name}.py')
    fresh.fork([str(ROOT / 'tests' / 'helpers' / 'stand_ins.py')], 'stand_ins.py')
    return fresh


@pytest.fixture
def terminal(after_make_train, tmp_path) -> Iterator[Terminal]:
    """Of its own for each page: none leans on what another one has made."""
    folder = tmp_path / 'clone'
    shutil.copytree(after_make_train.folder, folder, symlinks=True)
    yield Terminal(folder, after_make_train._request)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize('page', RUN)
def test_the_commands_of_a_page_run(page, terminal):
    for block in blocks(page):
        if block.language == 'python':
            terminal.python(block)
        elif block.language == 'bash':
            for command in commands(block):
                terminal.type(command)


def test_every_exception_is_of_a_command():
    for starts in (NOT_RUN, ONLY_PARSED, SHORTER):
        for start in starts:
            assert any(beginning([start], command) for command in COMMANDS), start
    for command in COMMANDS:
        assert len(beginning([*NOT_RUN, *ONLY_PARSED], command)) <= 1, command


@pytest.mark.parametrize('page', PAGES)
def test_no_command_hides_in_a_block_that_is_not_run(page):
    assert {block.language for block in blocks(page)} <= LANGUAGES
    for block in blocks(page):
        assert block.language != 'text' or not re.search(r'^(\$ |tools/)', block.text, re.MULTILINE)


def test_the_options_that_the_text_names_exist_and_none_is_missing(fresh):
    options: dict[str, dict[str, list[str]]] = {}
    for page in PAGES:
        text = re.sub(r'^```.*?^```', '', (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(r'`(tools/[^`]+)`', text):
            tool, *words = span.split()
            assert (ROOT / tool).is_file(), f'{page}: {span}'
            if tool.endswith('.sh'):
                tool = 'tools/test.py' if 'test' in tool else 'tools/train.py'
            if tool not in options:
                options[tool] = json.loads(fresh.fork([tool], tool, only='options'))
            named = {word.partition('=')[0] for word in words if word.startswith('--')}
            assert named <= set(options[tool]['known']), f'{page}: {span}'
            assert not words or set(options[tool]['required']) <= named, f'{page}: {span}'


def test_every_page_is_in_the_index():
    index = (ROOT / 'docs' / 'README.md').read_text()
    pages = {path.name for path in ROOT.glob('docs/*.md')} - {'README.md'}
    assert pages == set(re.findall(r'\]\((\w+\.md)\)', index))


@pytest.mark.parametrize('page', LINKING)
def test_links_lead_to_what_is_there(page):
    for link in re.findall(r'\]\(([^)\s]+)\)', (ROOT / page).read_text()):
        if link.startswith(('http://', 'https://')):
            continue
        target, _, anchor = link.partition('#')
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def anchors(path: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r'^#+ (.*)$', path.read_text(), flags=re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading).replace(' ', '-').lower() for heading in headings}


def test_the_table_for_those_who_come_from_the_release_has_its_weights():
    page = (ROOT / 'docs' / 'from_the_authors_release.md').read_text()
    rows = re.findall(r'\(\.\./(configs/\w+\.py)\) \| \[.*\]\((\S+)\)', page)
    assert len(dict(rows)) == 24
    for config, weights in rows:
        assert f'Weights: {weights}\n' in (ROOT / config).read_text()
