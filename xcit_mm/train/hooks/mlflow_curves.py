"""Losses and metrics for MLflow."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.environment import variables
from ..checkpoints.recipe import recipe_of
from ..report.reading import Line
from .curves import PROJECT, CurveHook

# Its own limits keep a training waiting for minutes.
FEW_RETRIES = {'MLFLOW_HTTP_REQUEST_MAX_RETRIES': '2', 'MLFLOW_HTTP_REQUEST_TIMEOUT': '20'}
MAX_METRICS, MAX_PARAMS = 1000, 100  # of a request
MAX_NAME = 250


@HOOKS.register_module()
class MLflowHook(CurveHook):
    """Send losses and metrics to MLflow.

    The variables of the package name the server (``MLFLOW_TRACKING_URI``; by default the file
    ``mlflow.db`` in the current folder), the experiment and the token. The parameters of a run are
    the config values that determine what training computes, as they were when the run started.
    """

    name = 'mlflow'
    remedy = (
        'check MLFLOW_TRACKING_URI, the token and the network; '
        'MLFLOW_TRACKING_URI=sqlite:///mlflow.db needs no network, and a run continues where it '
        'was started'
    )

    def _connect(self, runner: Runner, run_id: str | None) -> str:
        from mlflow import MlflowClient

        with _few_retries():
            self._client = MlflowClient()
            self._run_id = self._start(runner) if run_id is None else run_id
            self._client.update_run(self._run_id, status='RUNNING')
            names = self._client.get_run(self._run_id).data.metrics
            # A request that was cut off has left some metrics behind the others.
            histories = {n: self._client.get_metric_history(self._run_id, n) for n in names}
        self._last = {name: max(m.step for m in history) for name, history in histories.items()}
        self._newest = max(self._last.values(), default=-1)
        return self._run_id

    def _start(self, runner: Runner) -> str:
        from mlflow.entities import Param

        name = os.environ.get('MLFLOW_EXPERIMENT_NAME', PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        folder = Path(runner.work_dir).resolve().name
        run_id = self._client.create_run(number, run_name=folder).info.run_id
        params = [Param(_valid(k), text) for k, text in recipe_of(runner.cfg).items()]
        for i in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run_id, params=params[i : i + MAX_PARAMS])
        return run_id

    def _write(self, rows: Sequence[Line]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)  # milliseconds
        lacking = [
            Metric(key, value, now, row['iter'])
            for row in rows
            for name, value in row.items()
            if name != 'iter' and row['iter'] > self._last.get(key := _valid(name), -1)
        ]
        with _few_retries():
            for i in range(0, len(lacking), MAX_METRICS):
                sent = lacking[i : i + MAX_METRICS]
                self._client.log_batch(self._run_id, metrics=sent)
                self._last |= {metric.key: metric.step for metric in sent}

    def _close(self) -> None:
        with _few_retries():
            self._client.set_terminated(self._run_id)


def _few_retries():
    return variables({name: v for name, v in FEW_RETRIES.items() if name not in os.environ})


def _valid(name: str) -> str:
    """Return a name that MLflow allows, on Windows, too: characters, and a path without dots."""
    parts = re.sub(r'[^\w\-. /]', '_', name)[:MAX_NAME].split('/')
    return '/'.join('_' if part in ('', '.', '..') else part for part in parts)
