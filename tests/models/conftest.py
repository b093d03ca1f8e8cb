import importlib.util

NEED_TORCH = ["test_export.py", "test_export_refusals.py", "test_fold_batch_norm.py", "test_resnet.py"]

collect_ignore = [] if importlib.util.find_spec("torch") else NEED_TORCH
