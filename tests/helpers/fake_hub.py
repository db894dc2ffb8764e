"""A Hugging Face hub on this machine: models with commits, a token, and refusals."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from xcit_mm.network.weights.hub import download_model

TOKEN = 'hf_secret0123456789'


@dataclass
class Repo:
    """A model: the files of each commit by name, and who may see them."""

    commits: list[dict[str, bytes]] = field(default_factory=list)
    private: bool = False
    gated: bool = False

    def commit(self, **files: bytes) -> str:
        """Add a commit with more files, and return its hash. ``__`` stands for a dot."""
        named = {name.replace('__', '.'): content for name, content in files.items()}
        self.commits.append({**(self.commits[-1] if self.commits else {}), **named})
        return sha(len(self.commits) - 1)

    def files(self, revision: str) -> dict[str, bytes] | None:
        if revision == 'main':
            return self.commits[-1]
        shas = [sha(number) for number in range(len(self.commits))]
        return self.commits[shas.index(revision)] if revision in shas else None


def sha(number: int) -> str:
    return f'{number + 1:040x}'


class FakeHub(ThreadingHTTPServer):
    """Serve ``repos``, by ``owner/name``."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.requests: list[str] = []  # the method and the path of each request
        self.cut: int | None = None  # bytes after which the transfer of a file breaks off

    @property
    def address(self) -> str:
        return f'http://127.0.0.1:{self.server_port}'


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    server: FakeHub

    def do_GET(self) -> None:
        path = self._begin()
        if path is None:
            return
        if file := re.fullmatch(r'/([^/]+/[^/]+)/resolve/([^/]+)/(.+)', path):
            if (repo := self._repo(file[1])) is not None:
                self._send_file(repo, file[2], file[3])
        elif about := re.fullmatch(r'/api/models/([^/]+/[^/]+)(/\w+/([^/]+))?', path):
            if (repo := self._repo(about[1])) is None:
                return
            files = repo.files(about[3] or 'main')
            if files is None:
                self._refuse(404, 'RevisionNotFound')
            elif '/tree/' in path:
                self._answer([_entry(name, content) for name, content in files.items()])
            else:
                number = repo.commits.index(files)
                content = dict(id=about[1], sha=sha(number), private=repo.private, siblings=[])
                self._answer(content)
        else:
            self._refuse(404)

    do_HEAD = do_GET  # noqa: N815  the name of http.server

    def do_POST(self) -> None:
        path = self._begin()
        body = self.rfile.read(int(self.headers['Content-Length']))
        if path is None:
            return
        if self.headers.get('Authorization') is None:
            self._refuse(401)
        elif path == '/api/repos/create':
            asked = json.loads(body)
            name = f'{asked["organization"]}/{asked["name"]}'
            is_new = name not in self.server.repos
            if is_new:
                is_private = asked.get('private') or asked.get('visibility') == 'private'
                self.server.repos[name] = Repo([{}], private=is_private)
            self._answer({'url': f'{self.server.address}/{name}'}, 200 if is_new else 409)
        elif path == '/api/validate-yaml':
            self._answer({'errors': [], 'warnings': []})
        elif '/preupload/' in path:
            modes = [
                {'path': file['path'], 'uploadMode': 'regular', 'shouldIgnore': False}
                for file in json.loads(body)['files']
            ]
            self._answer({'files': modes})
        else:
            name = '/'.join(path.split('/')[3:5])
            lines = [json.loads(line) for line in body.splitlines()]
            files = {
                line['value']['path']: base64.b64decode(line['value']['content'])
                for line in lines
                if line['key'] == 'file'
            }
            made = self.server.repos[name].commit(**files)
            url = f'{self.server.address}/{name}/commit/{made}'
            self._answer({'commitUrl': url, 'commitOid': made})

    def _begin(self) -> str | None:
        """Record a request, and return its path, or None if it is refused."""
        path = self.path.partition('?')[0]
        self.server.requests.append(f'{self.command} {path}')
        if self.headers.get('Authorization') not in (None, f'Bearer {TOKEN}'):
            self._refuse(401, message='Invalid credentials in Authorization header')
            return None
        return path

    def _repo(self, name: str) -> Repo | None:
        repo = self.server.repos.get(name)
        is_visible = repo is not None and (not repo.private or self.headers.get('Authorization'))
        if not is_visible:
            self._refuse(401, 'RepoNotFound')
            return None
        if repo.gated:
            self._refuse(403, 'GatedRepo')
            return None
        return repo

    def _send_file(self, repo: Repo, revision: str, name: str) -> None:
        content = (repo.files(revision) or {}).get(name)
        if content is None:
            self._refuse(404, 'EntryNotFound')
            return
        self.send_response(200)
        self.send_header('X-Repo-Commit', revision)
        self.send_header('ETag', f'"{_blob(content)}"')
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        if self.command == 'HEAD':
            return
        self.wfile.write(content[: self.server.cut])
        self.close_connection = self.server.cut is not None

    def _answer(self, content: object, code: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def _refuse(self, code: int, kind: str = '', message: str = '') -> None:
        self.send_response(code)
        for header, value in (('X-Error-Code', kind), ('X-Error-Message', message)):
            if value:
                self.send_header(header, value)
        self.send_header('Content-Length', '0')
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def _blob(content: bytes) -> str:
    return hashlib.sha1(b'blob %d\0' % len(content) + content).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, object]:
    return {'type': 'file', 'path': name, 'size': len(content), 'oid': _blob(content)}


@contextmanager
def fake_hub(patch: pytest.MonkeyPatch, cache: str) -> Iterator[FakeHub]:
    """Run a hub in a thread, to which huggingface_hub turns without a token."""
    for name in ('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'):
        patch.delenv(name, raising=False)
    with FakeHub() as hub:
        values = dict(
            ENDPOINT=hub.address,
            HUGGINGFACE_CO_URL_TEMPLATE=f'{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}',
            HF_HUB_CACHE=cache,
            HF_HUB_OFFLINE=False,
            HF_TOKEN_PATH=f'{cache}/token',
        )
        for name, value in values.items():
            patch.setattr(constants, name, value)
        thread = threading.Thread(target=hub.serve_forever, kwargs=dict(poll_interval=0.01))
        thread.start()
        download_model.cache_clear()
        yield hub
        download_model.cache_clear()
        hub.shutdown()
        thread.join()
