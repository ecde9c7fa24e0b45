"""The modules a gateway imports reach neither torch nor PEFT."""

import subprocess
import sys

TORCH_FREE = ["base_spec", "config", "errors", "keys", "manifest", "pattern", "store", "validate"]


def test_no_torch_is_reachable():
    imports = "; ".join(f"import adapters.{name}" for name in TORCH_FREE)
    check = "import sys; assert not {'torch', 'peft', 'safetensors'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", f"{imports}; {check}"], check=True)
