"""Writes tests/format/peft_configs.json: what PEFT itself saves as adapter_config.json for each kind
that runs here, with every field at its default. PEFT's config classes alone are loaded (its package
needs torch, which stands in as a mock):

    pip download --no-deps peft==0.21.2 && unzip peft-*.whl -d peft_wheel
    python make_peft_configs.py peft_wheel/peft > peft_configs.json
"""
import importlib.util
import json
import os
import sys
import tempfile
import types
from unittest import mock

root = sys.argv[1]
for name in ("torch", "torch.nn", "transformers", "transformers.utils"):
    sys.modules[name] = mock.MagicMock()
hub = types.ModuleType("huggingface_hub")
hub.hf_hub_download = lambda *a, **k: None
sys.modules["huggingface_hub"] = hub
sys.modules["huggingface_hub.utils"] = mock.MagicMock()
sys.modules["transformers.utils"].PushToHubMixin = type("PushToHubMixin", (), {})
sys.modules["transformers.utils"].http_user_agent = lambda: ""
sys.modules["peft.utils.other"] = mock.MagicMock()
sys.modules["peft.import_utils"] = mock.MagicMock()


def package(name):
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(root, *name.split(".")[1:])]
    sys.modules[name] = module
    return module


def load(name):
    path = os.path.join(root, *name.split(".")[1:]) + ".py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


with open(os.path.join(root, "__init__.py")) as f:
    version = next(s.split('"')[1] for s in f if s.startswith("__version__"))
package("peft").__version__ = version
package("peft.tuners")
utils = package("peft.utils")
types_ = load("peft.utils.peft_types")
utils.PeftType, utils.TaskType = types_.PeftType, types_.TaskType
utils.constants = load("peft.utils.constants")
utils.CONFIG_NAME = utils.constants.CONFIG_NAME
load("peft.config")

out = {}
for folder, cls, settings in (("lora", "LoraConfig", {}), ("lora", "LoraConfig", {"use_dora": True}),
                              ("ia3", "IA3Config", {}),
                              ("prefix_tuning", "PrefixTuningConfig", {"num_virtual_tokens": 4}),
                              ("prompt_tuning", "PromptTuningConfig", {"num_virtual_tokens": 4})):
    package(f"peft.tuners.{folder}")
    config = getattr(load(f"peft.tuners.{folder}.config"), cls)(task_type="CAUSAL_LM", **settings)
    with tempfile.TemporaryDirectory() as tmp:
        config.save_pretrained(tmp)
        with open(os.path.join(tmp, utils.CONFIG_NAME)) as f:
            out["dora" if settings.get("use_dora") else folder.split("_")[0]] = json.load(f)
print(json.dumps(out, indent=1, sort_keys=True))
