"""The hooks of our configs, registered with mmengine. See ``order.py`` for their order.

``room_check`` is not imported here: the runner imports it with the model of streamed images.

They handle three events that mmengine does not have: ``on_bad_samples``, with the samples of a
batch that others replace, and every second without a batch ``while_training_waits`` and
``while_evaluation_waits``, with the seconds since the last one.
"""

from . import (  # noqa: F401  registered when they are imported
    bad_data,
    collapse,
    cuda_graphs,
    curves,
    describe,
    early_stopping,
    interrupt,
    label_check,
    leave_out_padding,
    loss_log,
    merged_views,
    mlflow_curves,
    model_errors,
    momentum_teacher,
    non_finite,
    one_line_logger,
    pictures,
    report_hook,
    same_teacher,
    step_info,
    wandb_curves,
)
