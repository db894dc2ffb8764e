"""What every run has in common: logging, checkpoints, pictures, reproducibility."""

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
randomness = dict(seed=0)
sync_bn = 'torch'  # mmengine converts BatchNorm when the run is distributed, only then
auto_scale_lr = dict(enable=True, base_batch_size=16)  # 8 GPUs with 2 images each

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    pictures=dict(type='PictureHook'),
    report=dict(type='ReportHook'),
    labels=dict(type='LabelCheckHook'),
    buffers=dict(type='BufferSyncHook'),
    finite=dict(type='FiniteHook', limit=16),
    losses=dict(type='LossLogHook'),
    bad_data=dict(type='BadDataHook'),
    interrupts=dict(type='InterruptHook'),
)
max_bad_share = 0.01  # of the training data that may be unreadable
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
log_level = 'INFO'
load_from = None
resume = False
launcher = 'none'
work_dir = None
