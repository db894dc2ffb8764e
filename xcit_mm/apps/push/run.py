"""A trained model as files for the Hugging Face hub, and their upload."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...base.environment import require
from ...base.errors import UserError
from ...base.files import require_writable, write_beside
from ...base.shipped import HUB
from ...config.config_data import describe
from ...config.load import load_config
from ...network.weights.hub import CONFIG, WEIGHTS, hub_errors, parse_name
from ...predict.model import Model, load_model
from .card import model_card, read_metrics

PICTURE = 'picture'


def push(
    config: str | Path,
    checkpoint: str | Path | None,
    repo: str,
    *,
    metrics: str | Path | None = None,
    dataset: str | None = None,
    license: str | None = None,
    picture: str | Path | None = None,
    private: bool = False,
    folder: str | Path | None = None,
    trust_checkpoint: bool = False,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Write the files of a trained model, and upload them to the Hugging Face hub.

    The files are ``model.safetensors`` with the weights used for prediction, ``config.json`` with
    the parts of the config that a prediction needs, the model card ``README.md``, and the picture.
    The token comes from ``hf auth login`` or ``HF_TOKEN``, and only huggingface_hub reads it.

    The arguments are the options of tools/push.py. ``repo`` is ``owner/name`` on the hub, and a
    model of this name gets a new commit.

    Returns:
        The address of the model, or the folder.

    Raises:
        UserError: If an argument is invalid, the config needs code of its own, or the hub refuses
            the upload.
        DependencyError: If huggingface_hub or safetensors is missing.
    """
    _, revision = parse_name(HUB + repo)
    if revision is not None:
        raise UserError(f'{repo}: an upload makes a new revision: leave out @{revision}')
    for package in ('huggingface_hub', 'safetensors'):
        require(package)
    if folder is not None:
        if Path(folder).exists():
            raise UserError(f'--folder {folder} already exists: name a new folder')
        require_writable(Path(folder).parent)
    figures = {} if metrics is None else read_metrics(Path(metrics))
    cfg = load_config(config, options)
    model = load_model(config, checkpoint, 'cpu', options, trust_checkpoint)
    description = describe(cfg, model.classes, model.palette)
    data = dataset or Path(cfg.get('data_root') or 'test set').name
    image = None if picture is None else f'{PICTURE}{Path(picture).suffix.lower()}'
    card = model_card(repo, model, figures, data, license, image)

    with TemporaryDirectory() as temporary:
        written = Path(temporary, 'model')
        written.mkdir()
        _write_weights(model, written / WEIGHTS)
        (written / CONFIG).write_text(description, encoding='utf-8')
        (written / 'README.md').write_text(card, encoding='utf-8')
        if image is not None:
            shutil.copyfile(picture, written / image)
        if folder is None:
            return _upload(written, repo, private)
        with write_beside(Path(folder)) as target:
            shutil.copytree(written, target)
    return str(folder)


def _write_weights(model: Model, path: Path) -> None:
    from safetensors.torch import save_file

    # Tensors that share their memory, as in the heads of DINO, are written one by one.
    state = {k: v.contiguous().clone() for k, v in model.module.state_dict().items()}
    save_file(state, path, {'format': 'pt'})
    path.chmod(0o644)  # safetensors makes it readable by its owner only


def _upload(folder: Path, repo: str, private: bool) -> str:
    with hub_errors(repo):
        from huggingface_hub import HfApi

        api = HfApi()
        url = api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo).private:  # it existed before
            raise UserError(
                f'{repo} is a public model: make it private on its page, or leave out --private'
            )
        api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message='Weights, config and model card'
        )
    return str(url)
