"""Imports go down from floor to floor, and no two files have the same name."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
APPS = ['annotation_tools', 'attention', 'benchmark', 'classification', 'demo', 'flops', 'infer']
APPS += ['probe', 'push', 'retrieval', 'zoo']
# From the ground up; what stands in one line may import nothing else in it.
FLOORS = [
    'errors shipped version',
    'console cores environment files finder fonts launchers locks old_mmengine progress '
    'sizes threads waits',
    'device file_headers http processes run_files',
    'mmcv_ops network',
    'models',
    'weights graphs heads',
    'distillation',
    'config',
    'datasets',
    'analysis',
    'predictions fusion run_report',
    'scenes',
    'large_images',
    'engine',
    'inference',
    'export',
    ' '.join(APPS),
    '__init__',
    'tools',
]
# mmengine's protocol of models wants it: BaseModule.init_weights loads the pretrained weights.
UPWARDS = [('xcit_mm.network.xcit', 'xcit_mm.network.weights.pretrained')]
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor.split()}
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
    package, name = [*module.split('.'), '__init__'][:2]
    return name if package == 'xcit_mm' else package


IMPORTS = {module: {*imports(module)} for module in MODULES}


def test_imports_go_down():
    up = [
        (module, name)
        for module in MODULES
        for name in IMPORTS[module]
        if room(name) != room(module) and FLOOR[room(name)] >= FLOOR[room(module)]
    ]
    assert up == UPWARDS


def test_tools_share_their_command_line_only():
    tools = {module for module in MODULES if room(module) == 'tools'}
    assert {name for tool in tools for name in IMPORTS[tool] & tools} == {'tools.cli'}


def test_files_import_each_other_in_no_circle():
    # Importing a file of a folder runs the __init__.py of the folder, which is not counted.
    graph = {m: {n for n in IMPORTS[m] if (m, n) not in UPWARDS} for m in MODULES}
    assert [*TopologicalSorter(graph).static_order()]


def test_file_names_occur_once():
    names = Counter(
        path.name
        for module, path in MODULES.items()
        if room(module) not in (*APPS, 'tools') and not path.name.startswith('__')
    )
    assert [name for name, count in names.items() if count > 1] == []
