"""The order in which hooks act on the same event, from the lowest number to the highest.

The numbers of mmengine's hooks are fixed: RuntimeInfoHook 10, as our StepInfoHook; IterTimerHook,
DistSamplerSeedHook and EMAHook 50; LoggerHook 60; ParamSchedulerHook 70; CheckpointHook 90. A
``priority`` in a config replaces these numbers.
"""

GRAPHS = 20  # no other hook may find or copy a model that is attached to graphs
ROOM = 30  # before anything else is prepared
NON_FINITE = 40  # before weights and statistics are averaged
TEACHER = 45  # before the checkpoint, which holds it
LABELS = 50
BAD_DATA = 61  # these three before the checkpoint, which then matches what they have written
LOSS_LOG = 62
TENSORBOARD = 63
COLLAPSE = 64  # after the logs, which show it, and before the checkpoint with its count
PICTURES = 70
MODEL_ERRORS = 71
STOPPING = 91  # after the checkpoint of the validated step
CURVES = 92  # after the checkpoint, which says what no resume repeats
REPORT = 95  # after the checkpoint and the pictures
INTERRUPT = 100  # after the checkpoint of the same step
