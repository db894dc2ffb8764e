"""The rooms of the package: imports go down, apps can be deleted, and no file name occurs twice."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# From the ground up: a room imports only those before it. ``xcit_mm/__init__.py`` imports them all.
ROOMS = ['base', 'mmcv_ops', 'network', 'config', 'data', 'large', 'predict', 'train', 'apps']
ROOMS += ['xcit_mm', 'tools']
LAYERS = ['files', 'labels', 'tokens', 'maps', 'losses', 'data']  # of large, likewise
# The runner imports them for trainings that stream whole images.
REGISTERED_WHEN_USED = {'xcit_mm.train.streamed_model', 'xcit_mm.train.hooks.room_check'}
MODULES = {
    '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__'): path
    for folder in ('xcit_mm', 'tools')
    for path in (ROOT / folder).rglob('*.py')
}


def imports(module: str) -> Iterator[str]:
    """Yield what a module imports of the package and tools, also lazily, for types or by name."""
    path = MODULES[module]
    package = module.split('.') if path.name == '__init__.py' else module.split('.')[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = '.'.join([*base, *filter(None, [node.module])])
            names = [f'{base}.{alias.name}' for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if re.fullmatch(r'xcit_mm(\.\w+)+', node.value) else []
        for name in names:
            while name and name not in MODULES:
                name = name.rpartition('.')[0]
            if name and name != module:
                yield name


def room(module: str) -> str:
    package, name = [*module.split('.'), ''][:2]
    return name if package == 'xcit_mm' and name in ROOMS else package


IMPORTS = {module: {*imports(module)} for module in MODULES}
ARROWS = {
    (room(module), room(name)) for module in MODULES for name in IMPORTS[module]
    if room(module) != room(name)
}  # fmt: skip


def test_every_file_is_in_a_room():
    assert {room(module) for module in MODULES} == {*ROOMS}
    assert len(ARROWS) <= 40


def test_rooms_import_those_before_them():
    assert [arrow for arrow in ARROWS if ROOMS.index(arrow[1]) > ROOMS.index(arrow[0])] == []


def test_layers_of_large_import_those_before_them():
    layer = {m: m.split('.')[2] for m in MODULES if m.count('.') > 2 and room(m) == 'large'}
    up = [
        (module, name)
        for module in layer
        for name in IMPORTS[module] & layer.keys()
        if LAYERS.index(layer[name]) > LAYERS.index(layer[module])
    ]
    assert up == []


def test_nothing_but_its_tools_imports_an_app():
    def app(module: str) -> str | None:
        return module.split('.')[2] if module.count('.') > 1 and room(module) == 'apps' else None

    assert [
        (module, name)
        for module in MODULES
        for name in IMPORTS[module]
        if app(name) and room(module) != 'tools' and app(module) != app(name)
    ] == []


def test_tools_share_their_command_line_only():
    tools = {module for module in MODULES if room(module) == 'tools'}
    assert {name for tool in tools for name in IMPORTS[tool] & tools} == {'tools.cli'}


def test_files_import_each_other_in_no_circle():
    # Importing a file of a folder runs the __init__.py of the folder, which is not counted.
    assert [*TopologicalSorter(IMPORTS).static_order()]


def test_a_training_enters_few_files():
    """Scenes, drawings and GPU graphs are imported when a config or an option needs them."""
    program = 'import sys, xcit_mm.train; print(*(m for m in sys.modules if m[:7] == "xcit_mm"))'
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) <= 150


def test_every_registered_class_is_known_to_a_config():
    """Importing the package, its training and a framework registers what configs name."""
    program = (
        'import sys, xcit_mm.train; from xcit_mm.base.environment import require_framework as load;'
        'load("mmdet"); load("mmseg"); load("mmengine"); print(*sys.modules)'
    )
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    registering = {m for m, path in MODULES.items() if '.register_module(' in path.read_text()}
    assert registering - {*done.stdout.split()} == REGISTERED_WHEN_USED


def test_file_names_occur_once():
    names = Counter(
        path.name
        for module, path in MODULES.items()
        if room(module) not in ('apps', 'tools') and not path.name.startswith('__')
    )
    assert [name for name, count in names.items() if count > 1] == []
