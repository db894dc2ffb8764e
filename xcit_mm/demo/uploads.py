"""A page whose visitors hand in files by uploading them, and by nothing else."""

from pathlib import Path
from typing import Any

from ..environment import require
from ..errors import printable

require('gradio')
import gradio as gr  # noqa: E402  whose absence was just said in a sentence
from gradio.utils import get_upload_folder  # noqa: E402
from gradio_client.utils import is_http_url_like, traverse  # noqa: E402


class UploadsOnly(gr.Blocks):
    """Gradio's page, whose requests can name no files but those that were uploaded to it.

    Gradio itself fetches a file that is named by its address, of any size, before anything of
    ours is asked; and it takes any file of this machine if the request does not call it one.
    """

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **kwargs: Any):
        traverse(inputs, _require_upload, names_a_file)
        return await super().preprocess_data(block_fn, inputs, *args, **kwargs)


def names_a_file(value: Any) -> bool:
    """Whether a value of a request is what Gradio tells of an uploaded file."""
    return isinstance(value, dict) and isinstance(value.get('path'), str)


def _require_upload(value: dict[str, Any]) -> None:
    path = value['path']
    folder = Path(get_upload_folder()).resolve()
    file = Path(path).resolve()
    if is_http_url_like(path) or not (file.is_relative_to(folder) and file.is_file()):
        message = f'{path} was not uploaded to this page: drop the picture into its field'
        raise gr.Error(printable(message), print_exception=False)
