"""Tiny random models against transformers' own "eager" attention. Nothing is downloaded."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from tessera.integrations import transformers as integration  # noqa: E402

SMALL = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             max_position_embeddings=256, attention_dropout=0.0, pad_token_id=0, bos_token_id=1,
             eos_token_id=2, initializer_range=0.3)
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=7),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, sliding_window=5,
                                                attn_logit_softcapping=5.0,
                                                final_logit_softcapping=10.0),
}
# Float32 everywhere; sums in another order.
TOLERANCE = dict(atol=2e-5, rtol=2e-5)


@pytest.fixture(scope="module", autouse=True)
def registered():
    integration.register()


@pytest.fixture(params=CONFIGS)
def model(request):
    torch.manual_seed(0)
    config = CONFIGS[request.param]()
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def batch(padding):
    """Tokens and their padding mask: three sequences of lengths 23, 14 and 1."""
    torch.manual_seed(1)
    tokens = torch.randint(3, SMALL["vocab_size"], (3, 23))
    mask = torch.ones_like(tokens)
    for row, length in ((1, 14), (2, 1)):
        unused = slice(0, 23 - length) if padding == "left" else slice(length, 23)
        mask[row, unused] = 0
        tokens[row, unused] = SMALL["pad_token_id"]
    if padding == "holes":
        mask[:] = 1
        mask[1, 5:9] = 0
        mask[2, ::3] = 0
        mask[:, 0] = 1
    return tokens, mask


def logits(model, implementation, **inputs):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("padding", ["none", "left", "right", "holes"])
def test_forward_agrees_with_eager(model, padding):
    tokens, mask = batch(padding)
    inputs = {"input_ids": tokens} if padding == "none" else {"input_ids": tokens,
                                                              "attention_mask": mask}
    expected = logits(model, "eager", **inputs)
    got = logits(model, "tessera", **inputs)
    used = mask.bool() if padding != "none" else torch.ones_like(tokens).bool()
    # Padded queries see no key with tessera and all keys with eager. Their results are unused.
    torch.testing.assert_close(got[used], expected[used], **TOLERANCE)
    assert not torch.equal(got, expected), "eager computed both"


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_agrees_with_eager(model, cache):
    tokens, mask = batch("left")
    produced = {}
    for implementation in ("eager", "tessera"):
        model.set_attn_implementation(implementation)
        produced[implementation] = model.generate(
            tokens, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, do_sample=False,
            cache_implementation=cache, return_dict_in_generate=True, output_logits=True,
            disable_compile=True)
    torch.testing.assert_close(torch.stack(produced["tessera"].logits),
                               torch.stack(produced["eager"].logits), **TOLERANCE)
    assert torch.equal(produced["tessera"].sequences, produced["eager"].sequences)


def test_trains(model):
    tokens, mask = batch("right")
    gradients = {}
    for implementation in ("eager", "tessera"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        labels = tokens.masked_fill(mask == 0, -100)
        model(input_ids=tokens, attention_mask=mask, labels=labels).loss.backward()
        gradients[implementation] = {n: p.grad.clone() for n, p in model.named_parameters()}
    for name, expected in gradients["eager"].items():
        torch.testing.assert_close(gradients["tessera"][name], expected, atol=2e-5, rtol=2e-4,
                                   msg=lambda text, name=name: f"{name}: {text}")


def test_sliding_window_is_a_range_not_a_block_mask():
    from transformers.masking_utils import sliding_window_causal_mask_function

    seen = integration.attention_mask(2, 8, 8,
                                      mask_function=sliding_window_causal_mask_function(4))
    assert (seen.causal, seen.window_left, seen.mask) == (True, 3, None)


def test_other_mask_functions_become_block_masks():
    from transformers.masking_utils import chunked_causal_mask_function

    function = chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.int32))
    seen = integration.attention_mask(1, 8, 8, mask_function=function)
    i = torch.arange(8)
    expected = (i[:, None] // 4 == i // 4) & (i <= i[:, None])
    assert torch.equal(seen.mask.to_dense()[0, 0], expected)


def test_dropout_is_refused(model):
    model.config.attention_dropout = 0.1
    module = next(m for m in model.modules() if hasattr(m, "attention_dropout"))
    q = torch.randn(1, 4, 3, 16)
    with pytest.raises(NotImplementedError, match=r"attention_dropout=0\.0"):
        integration.attention_forward(module, q, q, q, None, dropout=0.1)


def test_padding_is_a_range():
    from transformers.masking_utils import bidirectional_mask_function

    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    seen = integration.attention_mask(3, 6, 6, mask_function=bidirectional_mask_function,
                                      attention_mask=padding)
    assert (seen.causal, seen.mask) == (False, None)
    assert seen.kv_begin[:2].tolist() == [2, 0] and seen.kv_end[:2].tolist() == [6, 3]
    assert seen.kv_begin[2] == seen.kv_end[2]
    q = torch.randn(3, 2, 6, 16)
    out, _ = integration.attention_forward(torch.nn.Identity(), q, q, q, seen)
    for row, (begin, end) in enumerate(((2, 6), (0, 3))):
        keys = q[row : row + 1, :, begin:end]
        want = torch.nn.functional.scaled_dot_product_attention(q[row : row + 1], keys, keys)
        torch.testing.assert_close(out[row : row + 1].transpose(1, 2), want, **TOLERANCE)
