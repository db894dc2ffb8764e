"""What every run has in common: logging, checkpoints, pictures, reproducibility."""

runner_type = 'CheckedRunner'
env_cfg = dict(
    cudnn_benchmark=False,
    # A fork server starts the data workers: a fork of a process with threads may hang.
    mp_cfg=dict(mp_start_method='forkserver', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
randomness = dict(seed=0)
sync_bn = 'torch'  # mmengine converts BatchNorm when the run is distributed, only then
optim_wrapper = dict(constructor='MergedGroupsConstructor')  # one group for equal options
auto_scale_lr = dict(enable=True, base_batch_size=16)  # 8 GPUs with 2 images each

# mmengine's hooks and ours; xcit_mm/train/hooks/order.py has the order in which they act.
default_hooks = dict(
    runtime_info=dict(type='StepInfoHook'),
    timer=dict(type='IterTimerHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    logger=dict(type='OneLineLoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='WholeCheckpointHook', interval=1, max_keep_ckpts=3),
    non_finite=dict(type='NonFiniteHook', limit=16),
    labels=dict(type='LabelCheckHook'),
    bad_data=dict(type='BadDataHook'),
    losses=dict(type='LossLogHook'),
    pictures=dict(type='PictureHook'),
    errors=dict(type='ModelErrorsHook'),
    report=dict(type='ReportHook'),
    interrupts=dict(type='InterruptHook'),
)
max_bad_share = 0.01  # of the training data that may be unreadable
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
log_level = 'INFO'
load_from = None
resume = False
launcher = 'none'
work_dir = None
