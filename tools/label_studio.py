#!/usr/bin/env python3
"""Serve the predictions of a model to Label Studio, where you correct them."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

SCORE_THR = 0.3
URL, TOKEN = 'LABEL_STUDIO_URL', 'LABEL_STUDIO_API_KEY'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='a file of configs/')
    parser.add_argument(
        'checkpoint', help='file or URL of a released model, or of a checkpoint of this config'
    )
    parser.add_argument(
        '--label-studio',
        metavar='URL',
        default=os.environ.get(URL, 'http://localhost:8080'),
        help=f'the address of Label Studio; default: the variable {URL}, or else '
        'http://localhost:8080. The variable ' + TOKEN + ' must hold an access token',
    )
    parser.add_argument(
        '--host',
        default='127.0.0.1',
        help='0.0.0.0 also accepts requests from other machines and from containers; default: '
        '%(default)s',
    )
    parser.add_argument('--port', type=int, default=9090, help='default: %(default)s')
    parser.add_argument(
        '--score-thr',
        type=float,
        default=SCORE_THR,
        metavar='SCORE',
        help='leave out objects with a lower score; default: %(default)s',
    )
    parser.add_argument('--device', help='cpu, cuda, cuda:1; default: the GPU if there is one')
    cli.add_dtype_argument(parser)
    cli.add_options_argument(parser)
    cli.add_trust_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.apps.annotation_tools.backend import Backend
        from xcit_mm.apps.annotation_tools.server import serve
        from xcit_mm.base.errors import UserError
        from xcit_mm.predict.model import load_model
    token = os.environ.get(TOKEN, '').strip()
    if not token:
        raise UserError(f'set {TOKEN} to an access token of your account in Label Studio')
    model = load_model(
        args.config,
        args.checkpoint,
        device=args.device,
        options=args.cfg_options,
        trust_checkpoint=args.trust_checkpoint,
        dtype=args.dtype,
    )
    version = f'{Path(args.config).stem} {Path(args.checkpoint).name}'
    backend = Backend(model, version, args.label_studio, token, args.score_thr)
    serve(backend, args.host, args.port)


if __name__ == '__main__':
    cli.run_tool(main)
