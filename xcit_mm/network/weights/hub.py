"""Models on the Hugging Face hub, and local folders with the same files."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from shlex import quote

from ...base.environment import require
from ...base.errors import UserError, list_folder_hint, one_line
from ...base.shipped import HUB

CONFIG = 'config.json'
WEIGHTS = 'model.safetensors'
PICKLE = 'pytorch_model.bin'  # how older programs store weights
EXPORTED = 'model.onnx', 'predict.py'  # in a folder that tools/export.py --folder made
PART = r'(?!\.\.?(?:[/@]|$))[\w.-]+'  # a name that leads to no other folder
ADDRESS = re.compile(f'hf://({PART}/{PART})(?:@({PART}(?:/{PART})*))?')
MAX_TEXT = 1000  # characters of an error of the hub, whose sentences are long


def find_file(name: str | Path, trusted: bool = False, file: str = WEIGHTS) -> Path:
    """Return a file of a local folder, or of a model on the hub, which is downloaded only once.

    Only the config and the weights of a model on the hub are downloaded. A process uses a single
    commit of a model, so that both files belong together. Without a network, the files of an
    earlier download are used.

    Args:
        name: ``hf://owner/name``, ``hf://owner/name@revision`` or a folder.
        trusted: Whether the weights may be a pickle.
        file: The name of the file.

    Raises:
        UserError: If there is no such model or file, or the hub refuses access.
        DependencyError: If huggingface_hub is missing.
    """
    name = str(name)
    on_hub = name.startswith(HUB)
    folder = download_model(name) if on_hub else Path(name).expanduser()
    choices = [file, PICKLE] if file == WEIGHTS and trusted else [file]
    if on_hub and PICKLE in choices and not (folder / file).exists():
        _download(name, folder.name, [PICKLE])  # of the same commit, by which the folder is named
    path = next((folder / choice for choice in choices if (folder / choice).exists()), None)
    if path is not None:
        return path
    if all((folder / part).exists() for part in EXPORTED):
        raise UserError(
            f'{name} is an exported model, which its own program predicts with: python '
            f'{quote(str(folder / EXPORTED[1]))} IMAGE'
        )
    where = '' if on_hub else list_folder_hint(folder)
    remedy = f'name a {"model" if on_hub else "file in it, or a folder"} that tools/push.py made'
    if file == WEIGHTS and not trusted and (on_hub or (folder / PICKLE).exists()):
        remedy += f'; --trust-checkpoint also reads {PICKLE}, a pickle, and runs the code in it'
    if file == CONFIG and not on_hub:
        remedy += '; tools/prepare_data.py writes a config for a dataset'
    raise UserError(f'{name} has no {file}{where}: {remedy}')


def parse_name(name: str) -> tuple[str, str | None]:
    """Return ``owner/name`` and the revision in ``hf://owner/name@revision``, or None."""
    address = ADDRESS.fullmatch(name)
    if address is None:
        raise UserError(f'{name} is not of the form hf://owner/name or hf://owner/name@revision')
    return address[1], address[2]


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub inside the block into sentences without the token."""
    require('huggingface_hub')
    from huggingface_hub import get_token
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the HTTP client depends on the version
        is_offline = isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None
        cause = error.__cause__ if is_offline else error
        text = f'{type(cause).__name__}: {cause}'
        if token := get_token():  # a client quotes a header that it cannot send
            text = text.replace(token, '...').replace(repr(token)[1:-1], '...')
        raise UserError(f'{what}: {one_line(text, MAX_TEXT)}') from None


@cache
def download_model(name: str) -> Path:
    """Return the folder of the config and the weights of a model on the hub."""
    return _download(name, parse_name(name)[1], [CONFIG, WEIGHTS])


def _download(name: str, revision: str | None, files: list[str]) -> Path:
    """Return the folder of a commit in the hub's cache, with those files that the hub has."""
    repo, _ = parse_name(name)
    with hub_errors(name):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repo, revision=revision, allow_patterns=files))
