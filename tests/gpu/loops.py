"""The measured PyTorch loops, and helpers to capture a step as a CUDA graph."""

import torch


def warm(step, times):
    """Runs a step on a side stream, as a capture requires."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(side)


def capture(step):
    """Captures a warm step as a CUDA graph. Returns the graph and the step's result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def make():
    """Returns the loops: from a name to a function that creates the loop's step."""
    torch.manual_seed(0)
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda().to(torch.bfloat16)
    batch = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    @torch.no_grad()
    def forward():
        model(batch)

    def train():
        optimizer.zero_grad(set_to_none=False)
        model(batch).float().pow(2).mean().backward()
        optimizer.step()

    def captured():
        warm(train, 3)
        return capture(train)[0].replay

    return {"matmul": lambda: lambda: torch.mm(matrix, matrix), "mlp": lambda: forward, "train": lambda: train, "train-graph": captured}
