"""Where the configs and the tools of this package are: in the clone, or in what pip has installed.

The command ``xcit`` runs this file without the package around it, whose import takes seconds.
"""

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
IN_CLONE = (PACKAGE.parent / 'tools' / 'cli.py').is_file()
# .mim is where OpenMMLab's mim looks. In a clone it has links, which need rights on Windows.
ROOT = PACKAGE.parent if IN_CLONE else PACKAGE / '.mim'
CONFIGS = ROOT / 'configs'
TOOLS = ROOT / 'tools'
HUB = 'hf://'  # the beginning of the name of a model on the Hugging Face hub


def tools() -> dict[str, Path]:
    """Return the files of the tools by the names that ``xcit`` has for them."""
    files = sorted(TOOLS.glob('[a-z]*.py'))
    return {path.stem.replace('_', '-'): path for path in files if path.stem != 'cli'}


def find_config(name: str | Path) -> Path:
    """Return the path of a config: the path itself if it exists, or a config of this package.

    A config of this package is found by its name, with or without ``.py`` and ``configs/``. A
    folder with this name that is no model, for example with the results of a run, does not hide it.
    """
    path = Path(name)
    stem = path.name.removesuffix('.py')
    is_name = str(path.parent) in ('.', 'configs') and stem in {
        p.stem for p in CONFIGS.glob('*.py')
    }
    if not is_name or path.is_file() or (path / 'config.json').exists():
        return path
    return CONFIGS / f'{stem}.py'


def is_folder(name: str | Path) -> bool:
    """Return whether a config or a checkpoint is a model on the hub or a local folder."""
    if str(name).startswith(HUB):
        return True
    try:
        return find_config(name).expanduser().is_dir()
    except (OSError, RuntimeError):  # a name that is too long, or of an unknown user
        return False


def commands(text: str) -> str:
    """Return a text in which the tools have the names that the user can type.

    Outside of a clone, or in a call of ``xcit``, ``tools/check_dataset.py`` becomes
    ``xcit check-dataset``.
    """
    if IN_CLONE and not sys.argv[0].startswith('xcit '):
        return text
    names = '|'.join(path.stem for path in tools().values())
    tool = rf'(?<![\w./\\~-])tools/({names})\.py\b'  # not the end of a path of the user
    return re.sub(tool, lambda match: f'xcit {match[1].replace("_", "-")}', text)


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    if IN_CLONE:
        return f'pip install -e ".[{extra}]" in the clone of xcit_mm'
    return f'pip install "xcit_mm[{extra}]"'
