"""One call of ours between the profiler's marks, after the same call as warm-up:

  ncu --profile-from-start off ... python -m tessera.bench.one_call '{"op": ..., "params": ...}'

Prints a JSON line about it. tools/ncu_profile.py runs this."""

import json
import sys

from .cases import make_case
from .machine import gpu_facts, torch_with_gpu
from .ours import prepare_ours
from .problem import Problem


def call_once(case, profiler, synchronize, device="cuda"):
    """What is said of the call."""
    problem = Problem(case, device)
    prepared = prepare_ours(problem)  # calls once
    synchronize()
    profiler.cudaProfilerStart()
    prepared.run(0)
    synchronize()
    profiler.cudaProfilerStop()
    return {**{name: prepared.extra.get(name) for name in ("row", "machine_code")},
            "useful_flops": problem.useful_flops}


def main():
    given = json.loads(sys.argv[1])
    torch = torch_with_gpu()
    if torch is None:
        sys.exit("one_call: PyTorch sees no GPU here")
    said = call_once(make_case(given["op"], given["params"]), torch.cuda.cudart(),
                     torch.cuda.synchronize)
    print(json.dumps({**said, "gpu": gpu_facts()[0]["name"]}))


if __name__ == "__main__":
    main()
