"""The random samples of mmdet and of this package from the same numbers."""

import torch


def same_draws(monkeypatch) -> None:
    """Let both sample the candidates with the smallest of common keys."""
    from mmdet.models.task_modules.samplers import RandomSampler

    from xcit_mm.network.heads import random_samples

    keys = torch.rand(300_000)

    def keys_like(candidates: torch.Tensor) -> torch.Tensor:
        return keys[: candidates.shape[1]].expand(candidates.shape).clone()

    def choose(self: RandomSampler, gallery: torch.Tensor, num: int) -> torch.Tensor:
        return gallery[keys[gallery].topk(num, largest=False).indices]

    monkeypatch.setattr(random_samples, '_keys_like', keys_like)
    monkeypatch.setattr(RandomSampler, 'random_choice', choose)
