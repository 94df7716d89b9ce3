"""Training with checkpoints: saved by sidecore, restored by sidecore, and read by plain torch.

python python/examples/checkpoint.py [DEVICE]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import sidecore


def model_and_optimizer(device: str):
    torch.manual_seed(11)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    ).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model, optimizer, steps: range, device: str) -> float:
    loss = torch.zeros(())
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(64, 16, generator=generator).to(device)
        loss = (model(x).squeeze() - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        model, optimizer = model_and_optimizer(device)
        train(model, optimizer, range(20), device)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 20}
        sidecore.torch_save(state, path)
        straight = train(model, optimizer, range(20, 40), device)

        model, optimizer = model_and_optimizer(device)
        state = sidecore.torch_load(path, device=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        restored = train(model, optimizer, range(state["step"], 40), device)
        assert restored == straight, (restored, straight)

        # A process that knows only torch.
        code = "import sys, torch; print(torch.load(sys.argv[1], map_location='cpu')['step'])"
        plain = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )
        assert plain.stdout.strip() == "20", plain
    print(f"loss {straight:.6f} straight, {restored:.6f} from the checkpoint; plain torch read it")


if __name__ == "__main__":
    main()
