"""Switches a Hugging Face model to tessera's attention: the same logits, the same words.

The model has a made-up configuration and random weights: nothing is downloaded. One of your own
takes the two lines below that name tessera, and nothing else."""

import torch
import transformers
from common import arguments, check, choose_device, fail, milliseconds, name_of, whole_number

import tessera.integrations.transformers

parser = arguments(__doc__)
parser.add_argument("--length", type=whole_number(2), default=512, help="tokens of the prompt")
parser.add_argument("--words", type=whole_number(1), default=16, help="tokens to generate")
options = parser.parse_args()
device, dtype = choose_device(options.device)
torch.manual_seed(0)

# Every other layer has a window of 256 tokens; eight heads of queries share two of keys.
config = transformers.Gemma2Config(
    vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=2, head_dim=64, sliding_window=256,
    max_position_embeddings=options.length + options.words, initializer_range=0.2)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).to(device).eval()
tessera.integrations.transformers.register()                     # once a process

# Two prompts; the second is shorter and padded on its left.
prompts = torch.randint(3, config.vocab_size, (2, options.length), device=device)
padding = torch.ones_like(prompts)
padding[1, : options.length // 3] = 0
inputs = {"input_ids": prompts, "attention_mask": padding}
used = padding.bool()


@torch.no_grad()
def measure(implementation):
    """Logits, generated tokens, and the milliseconds of both."""
    model.set_attn_implementation(implementation)                # or when the model is made
    logits = model(**inputs).logits

    def generate():
        return model.generate(**inputs, max_new_tokens=options.words, do_sample=False,
                              min_new_tokens=options.words, disable_compile=True)

    words = generate()[:, options.length :]
    return logits, words, (milliseconds(lambda: model(**inputs), device),
                           milliseconds(generate, device))


eager, tessera_ = measure("eager"), measure("tessera")
largest = float(eager[0][used].abs().max())
error = float((tessera_[0] - eager[0])[used].abs().max()) / largest
same = int((tessera_[1] == eager[1]).sum())

print(f"{config.model_type}, {model.num_parameters():,} parameters, two prompts of "
      f"{options.length} tokens, {dtype} on {name_of(device)}\n".replace("torch.", ""))
print(f"{'':24}{'tessera':>12}{'eager':>12}{'speed-up':>12}")
names = "prompt", f"and {options.words} more tokens"
for name, ours, theirs in zip(names, tessera_[2], eager[2], strict=True):
    print(f"{name:24}{ours:9.1f} ms{theirs:9.1f} ms{theirs / ours:11.1f}x")
print(f"\nlargest difference of the logits, of the largest one: {error:.1e}")
print(f"{same} of {eager[1].numel()} generated tokens are the same")
if error == 0:
    fail("not a bit differs: the same attention answered twice")
check("difference of the logits", error, 1e-4 if dtype == torch.float32 else 5e-2)
# In 16 bits two words may score alike, and either is right; all that follows differs then.
if dtype == torch.float32 and same != eager[1].numel():
    fail("the generated tokens differ")
