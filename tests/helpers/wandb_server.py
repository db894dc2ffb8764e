"""The part of the protocol of W&B's server that a run needs, which keeps the history of one run."""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

PROJECT = {'id': 'p', 'name': 'xcit_mm', 'entity': {'id': 'e', 'name': 'me'}}
UNKNOWN = {'data': None, 'errors': [{'message': 'unknown'}]}
FILES = {'data': {'createRunFiles': {'runID': 'r', 'uploadHeaders': [], 'files': []}}}


@contextmanager
def wandb_server() -> Iterator[tuple[str, list[str]]]:
    """Serve, and yield the address and the lines of the history, which grows."""
    history: list[str] = []
    names: list[str] = []  # of the run, once it exists

    class Handler(BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get('Content-Length', 0)))
            if self.headers.get('Content-Encoding') == 'gzip':
                data = gzip.decompress(data)
            answer = UNKNOWN
            if self.path.startswith('/graphql'):
                answer = self._query(json.loads(data))
            elif self.path.endswith('/file_stream'):
                sent = json.loads(data).get('files', {}).get('wandb-history.jsonl')
                if sent:
                    history[sent['offset'] :] = sent['content']
                answer = {'exitcode': None, 'limits': {}}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST  # noqa: N815

        def _query(self, content: dict[str, Any]) -> dict[str, Any]:
            name = re.search(r'(query|mutation)\s+(\w+)', content['query'])[2]
            if name == 'RunResumeStatus':
                return {'data': {'model': PROJECT | {'bucket': _bucket(names, history)}}}
            if name == 'UpsertBucket':
                names[:] = [content['variables']['name']]
                bucket = {**_bucket(names, history), 'project': PROJECT}
                return {'data': {'upsertBucket': {'bucket': bucket, 'inserted': not history}}}
            return FILES if name == 'CreateRunFiles' else UNKNOWN

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        server.handle_error = lambda *_: None  # a client that is killed
        Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}', history
        server.shutdown()


def _bucket(names: list[str], history: list[str]) -> dict[str, Any] | None:
    if not names:
        return None
    return dict(
        **dict(id='r', name=names[0], displayName='run', description='', tags=[], notes=''),
        **dict(historyLineCount=len(history), eventsLineCount=0, logLineCount=0),
        **dict(historyTail=json.dumps(history[-1:]), eventsTail='[]', sweepName=None),
        summaryMetrics=history[-1] if history else '{}',
        config='{"_wandb": {"value": {"t": {}}}}',
        wandbConfig='{"t": 1}',
    )
