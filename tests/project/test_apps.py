"""Each app can be deleted: the rest of the package is imported without it."""

import importlib
import subprocess
import sys
from importlib.abc import MetaPathFinder

import pytest
from helpers import ROOT

APPS = 'xcit_mm.apps'


class DeletedError(Exception):
    """An app is imported that is not there."""


class Deleted(MetaPathFinder):
    """A finder of modules for which only one app exists."""

    app: str | None = None

    def find_spec(self, name: str, *_: object) -> None:
        if name.startswith(f'{APPS}.') and name.split('.')[2] != self.app:
            raise DeletedError(name)


def modules(folder: str) -> list[str]:
    paths = [path.relative_to(ROOT).with_suffix('') for path in (ROOT / folder).rglob('*.py')]
    return sorted('.'.join(path.parts).removesuffix('.__init__') for path in paths)


def import_all(names: list[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:  # of an optional package, which is not installed
            if (error.name or '').startswith('xcit_mm'):
                raise


def main() -> None:
    """Import the package without apps, and each app with no other."""
    finder = Deleted()
    sys.meta_path.insert(0, finder)
    import_all([name for name in modules('xcit_mm') if not name.startswith(f'{APPS}.')])
    apps = [path.name for path in (ROOT / 'xcit_mm/apps').iterdir() if path.is_dir()]
    for finder.app in sorted(apps):
        if finder.app.isidentifier() and not finder.app.startswith('_'):
            import_all(modules(f'xcit_mm/apps/{finder.app}'))
        for name in [name for name in sys.modules if name.startswith(f'{APPS}.')]:
            del sys.modules[name]


@pytest.mark.slow
def test_the_package_is_imported_without_apps_and_each_app_without_the_others():
    command = f'import sys; sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]}; '
    command += 'from project.test_apps import main; main()'
    done = subprocess.run([sys.executable, '-c', command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
