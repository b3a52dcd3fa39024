"""PyTorch's scaled_dot_product_attention on the CPU, as a peer of `tessera bench`.

Talks in lines over standard input and output. The first line in is a JSON object with threads,
batch, heads, length and dim; the answer is {"version": ...} or {"unavailable": reason}. Then each
line "run" is one timed run, answered by {"ms": ...}. The end of the input ends the process.
"""

import json
import sys
import time


def say(**fields):
    print(json.dumps(fields), flush=True)


def main():
    request = json.loads(sys.stdin.readline())
    try:
        import torch
    except (ImportError, OSError) as error:
        say(unavailable=str(error))
        return
    torch.set_num_threads(request["threads"])
    torch.manual_seed(1)
    shape = [request[name] for name in ("batch", "heads", "length", "dim")]
    q, k, v = (torch.randn(shape) for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention
    say(version=torch.__version__)
    with torch.inference_mode():
        for line in sys.stdin:
            if line.strip() != "run":
                say(unavailable="expected the line 'run', got " + line.strip())
                return
            start = time.perf_counter()
            attention(q, k, v)
            say(ms=(time.perf_counter() - start) * 1e3)


if __name__ == "__main__":
    main()
