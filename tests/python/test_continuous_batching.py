"""Continuous batching of transformers with tessera, on tiny random models: logits and tokens beside
its own paged attention, and both beside the same model in float64 without a cache."""

import collections
import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", minversion="5.24",
                                   reason="continuous batching needs transformers 5.24")

import tessera  # noqa: E402
from tessera.integrations import continuous_batching  # noqa: E402
from tessera.integrations import transformers as integration  # noqa: E402

READS_PAGES = (torch.cuda.is_available() and tessera.cuda_device_count() > 0
               and torch.cuda.get_device_capability()[0] >= 8)
DEVICES = ["cpu", pytest.param("cuda", marks=[
    pytest.mark.gpu, pytest.mark.skipif(not READS_PAGES, reason="pages need a GPU since Ampere")])]
SMALL = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             max_position_embeddings=256, attention_dropout=0.0, pad_token_id=0, bos_token_id=1,
             eos_token_id=None, initializer_range=0.3)
# Full attention, which decodes over pages; windows, which do not; both in one model.
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=7),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, sliding_window=7,
                                                attn_logit_softcapping=None),
}
NEW = 9
PAGE = 16


@pytest.fixture(scope="module", autouse=True)
def registered():
    integration.register()


@pytest.fixture
def calls(monkeypatch):
    """How often each of the two paths ran."""
    counts = collections.Counter()

    def counted(name):
        function = getattr(continuous_batching, name)

        def call(*args, **options):
            counts[name] += 1
            return function(*args, **options)

        monkeypatch.setattr(continuous_batching, name, call)

    counted("packed_attention")
    counted("_decode")
    return counts


def model_of(name, device):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    return model.to(device, torch.float32 if device == "cpu" else torch.float16)


def prompts():
    """Shorter and longer than pages and batches."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, SMALL["vocab_size"], (n,), generator=generator).tolist()
            for n in (1, PAGE - 1, 40, 5, 2 * PAGE, 17)]


def serve(model, implementation, inputs, **options):
    """{request: (tokens, the logits that each was chosen from)}."""
    model.set_attn_implementation(implementation)
    config = transformers.ContinuousBatchingConfig(
        **{"page_size": PAGE, "num_blocks": 24, "max_batch_tokens": 24, "use_cuda_graph": False,
           "use_async_batching": False, "auto_switch_to_flash": False, **options})
    greedy = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1)
    manager = model.init_continuous_batching(greedy, config)
    logits = collections.defaultdict(list)

    def record(module, args, kwargs, output):
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        requests = manager.batch_processor.inputs_and_outputs.requests_in_batch
        chosen = [request for request in requests if request.has_new_token]
        for request, row in zip(chosen, output.logits[0], strict=False):
            logits[request.state.request_id].append(row.double().cpu())

    hook = model.register_forward_hook(record, with_kwargs=True)
    try:
        for i, tokens in enumerate(inputs):  # before the start, so that batches are the same
            manager.add_request(tokens, request_id=f"request {i}")
        manager.warmup()
        manager.start()
        results = {}
        while len(results) < len(inputs):
            result = manager.get_result(timeout=60)
            assert result is not None, "no result in a minute"
            assert result.error is None, result.error
            if result.is_finished():
                results[result.request_id] = result.generated_tokens
    finally:
        manager.stop(block=True, hard_stop=True)
        manager.destroy()
        hook.remove()
    assert model.config._attn_implementation == implementation.removeprefix("paged|") \
        or implementation == "paged|eager"
    return {name: (tokens, logits[name]) for name, tokens in results.items()}


def reference(model, prompt, tokens):
    """The logits that each token is chosen from, in float64 and in one pass."""
    wide = copy.deepcopy(model).double()
    wide.set_attn_implementation("eager")
    with torch.no_grad():
        logits = wide(torch.tensor([prompt + tokens], device=model.device)).logits[0]
    return logits[len(prompt) - 1 : -1].cpu()


@pytest.mark.filterwarnings("ignore:The `paged.` prefix:FutureWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_tokens(name, device, calls):
    model, inputs = model_of(name, device), prompts()
    theirs = serve(model, "paged|eager", inputs)
    assert not calls, "tessera computed both"
    ours = serve(model, "paged|tessera", inputs)
    assert calls["packed_attention"] > 0
    assert (calls["_decode"] > 0) == (name == "llama")

    wanted = {which: {key: reference(model, inputs[int(key.split()[1])], tokens)
                      for key, (tokens, _) in results.items()}
              for which, results in (("ours", ours), ("theirs", theirs))}
    errors = {which: max(float((torch.stack(rows) - wanted[which][key]).abs().max())
                         for key, (_, rows) in results.items())
              for which, results in (("ours", ours), ("theirs", theirs))}
    # Both round at the same places; the largest of some thousand errors varies with the order of
    # sums, by less than a factor of two.
    budget = 2 * errors["theirs"]
    assert 0 < errors["ours"] <= budget, errors
    for key, (tokens, _) in ours.items():
        assert len(tokens) == NEW
        for at, (a, b) in enumerate(zip(tokens, theirs[key][0], strict=True)):
            if a != b:  # what follows has another context
                first, second = wanted["theirs"][key][at].topk(2).values
                assert first - second <= 2 * budget, (key, at, first - second, budget)
                break


@pytest.mark.parametrize("device", DEVICES)
def test_requests_do_not_depend_on_their_batch(device):
    """Each request alone: the same tokens as in a ragged batch, but for ties of 16 bits."""
    model, inputs = model_of("llama", device), prompts()
    together = serve(model, "tessera", inputs)
    for i, tokens in enumerate(inputs):
        (alone, rows), = serve(model, "tessera", [tokens]).values()
        got, got_rows = together[f"request {i}"]
        scale = float(torch.stack(rows).abs().max())
        limit = scale * (1e-4 if device == "cpu" else 5e-2)
        for a, b, row, other in zip(got, alone, rows, got_rows, strict=True):
            assert float((row - other).abs().max()) <= limit
            if a != b:
                first, second = row.topk(2).values
                assert first - second <= 2 * limit
                break


@pytest.mark.parametrize("device", DEVICES)
def test_softcap_and_few_pages(device, calls):
    """Scores with a soft cap, which transformers' own paged attention leaves out; requests wait
    until there are pages."""
    torch.manual_seed(0)
    config = transformers.Gemma2Config(**SMALL, sliding_window=500, attn_logit_softcapping=2.0)
    config.layer_types = ["full_attention"] * SMALL["num_hidden_layers"]
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model = model.to(device, torch.float32 if device == "cpu" else torch.float16)
    inputs = prompts()
    results = serve(model, "tessera", inputs, num_blocks=4)
    assert calls["_decode"] > 0
    for key, (tokens, rows) in results.items():
        want = reference(model, inputs[int(key.split()[1])], tokens)
        got = torch.stack(rows)
        limit = float(want.abs().max()) * (1e-5 if device == "cpu" else 5e-2)
        assert float((got - want).abs().max()) <= limit


def test_padded_batches():
    """As graphs have them: empty sequences behind the others, rows of none, lengths rounded up."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 12, 16), *torch.randn(2, 1, 2, 20, 16)
    ends_q, ends_k = torch.tensor([[0, 3, 8, 8, 8], [0, 5, 14, 14, 14]], dtype=torch.int32)
    out = continuous_batching.packed_attention(q, k, v, cu_seq_lens_q=ends_q, cu_seq_lens_k=ends_k,
                                               max_length_q=12, max_length_k=1024, causal=True)
    assert out.shape == (1, 12, 4, 16) and not out[:, 8:].any()
    for (a, b), (c, d) in (((0, 3), (0, 5)), ((3, 8), (5, 14))):
        want = tessera.attention(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], layout="bhld",
                                 causal=True).transpose(1, 2)
        torch.testing.assert_close(out[:, a:b], want, atol=1e-6, rtol=1e-6)


def test_others_keep_their_attention():
    """Registering changes nothing for other implementations, and registering twice nothing."""
    integration.register()
    model = model_of("llama", "cpu")
    with pytest.raises(ValueError, match="flex_attention is not supported for continuous batching"):
        model.set_attn_implementation("flex_attention")
        model.init_continuous_batching(continuous_batching_config=(
            transformers.ContinuousBatchingConfig(auto_switch_to_flash=False)))


@pytest.mark.gpu
@pytest.mark.skipif(not READS_PAGES, reason="pages need a GPU since Ampere")
def test_graphs_give_the_same_tokens():
    """CUDA graphs pad batches with empty sequences."""
    model, inputs = model_of("llama", "cuda"), prompts()
    want = serve(model, "tessera", inputs)
    got = serve(model, "tessera", inputs, use_cuda_graph=True)
    for key, (tokens, rows) in want.items():
        for at, (a, b) in enumerate(zip(tokens, got[key][0], strict=True)):
            if a != b:
                first, second = rows[at].topk(2).values
                assert first - second <= 0.05 * float(rows[at].abs().max()), (key, at)
                break
