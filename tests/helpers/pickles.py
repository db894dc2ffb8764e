"""The records in a file of ``torch.save``."""

import io
import zipfile
from typing import Any

import torch


def saved(content: Any, **kwargs) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **kwargs)
    return stream.getvalue()


def records(file: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w', compression) as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return stream.getvalue()
