import importlib.util

import pytest

NEED_TORCH = [
    "test_architectures.py",
    "test_attention.py",
    "test_bert.py",
    "test_botnet.py",
    "test_deeplab.py",
    "test_export.py",
    "test_export_refusals.py",
    "test_fold_batch_norm.py",
    "test_gpt.py",
    "test_local_architectures.py",
    "test_mobilenetv2.py",
    "test_mobilevit.py",
    "test_resnet.py",
    "test_retinanet.py",
    "test_wide_architectures.py",
]

collect_ignore = [] if importlib.util.find_spec("torch") else NEED_TORCH


@pytest.fixture
def shake():
    """Give batch normalizations the statistics, scales and shifts of a trained model: shake(module)."""
    import torch

    def shaken(module):
        generator = torch.Generator().manual_seed(0)
        for norm in module.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
                    tensor.uniform_(0.5, 1.5, generator=generator)
        return module.eval()

    return shaken
