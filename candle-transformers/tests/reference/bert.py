"""BERT in float64 numpy, from the paper's formulas: where the numbers in tests/cases/bert.rs come from.

python3 bert.py                 prints what the tiny model of the test gives
python3 bert.py MODEL TEXT..    prints the cosine similarities of sentences by a sentence-transformers checkpoint
"""
import json
import math
import sys

import numpy as np

erf = np.vectorize(math.erf)


def norm(x, w, name, eps):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * w[name + ".weight"] + w[name + ".bias"]


def linear(x, w, name):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def gelu(x):
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def bert(w, cfg, ids, types, mask):
    """One sequence; `mask` says which tokens are seen."""
    eps, heads = cfg["layer_norm_eps"], cfg["num_attention_heads"]
    e = "embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "token_type_embeddings.weight"][types]
    x = norm(x + w[e + "position_embeddings.weight"][: len(ids)], w, e + "LayerNorm", eps)
    for i in range(cfg["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        split = lambda name: linear(x, w, p + "attention.self." + name).reshape(len(ids), heads, -1).swapaxes(0, 1)
        q, k, v = split("query"), split("key"), split("value")
        s = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        s[:, :, mask == 0] = -np.inf
        s = np.exp(s - s.max(-1, keepdims=True))
        s = s / s.sum(-1, keepdims=True)
        y = (s @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = norm(linear(y, w, p + "attention.output.dense") + x, w, p + "attention.output.LayerNorm", eps)
        y = linear(gelu(linear(x, w, p + "intermediate.dense")), w, p + "output.dense")
        x = norm(y + x, w, p + "output.LayerNorm", eps)
    return x


def masked_lm(w, cfg, hidden):
    y = norm(gelu(linear(hidden, w, "transform.dense")), w, "transform.LayerNorm", cfg["layer_norm_eps"])
    return linear(y, w, "decoder")


def tiny():
    cfg = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
               max_position_embeddings=40, type_vocab_size=2, layer_norm_eps=1e-12)
    h, inner, vocab = 32, 48, 61
    shapes = [("embeddings.word_embeddings.weight", (vocab, h)), ("embeddings.position_embeddings.weight", (40, h)),
              ("embeddings.token_type_embeddings.weight", (2, h))]
    both = lambda name, *dims: [(name + ".weight", dims), (name + ".bias", dims[:1])]
    shapes += both("embeddings.LayerNorm", h)
    for i in range(2):
        p = f"encoder.layer.{i}."
        for name in ("query", "key", "value"):
            shapes += both(p + "attention.self." + name, h, h)
        shapes += both(p + "attention.output.dense", h, h) + both(p + "attention.output.LayerNorm", h)
        shapes += both(p + "intermediate.dense", inner, h) + both(p + "output.dense", h, inner)
        shapes += both(p + "output.LayerNorm", h)
    shapes += both("transform.dense", h, h) + both("transform.LayerNorm", h) + both("decoder", vocab, h)
    state, w = 11, {}
    f = np.float32
    for name, dims in shapes:
        scale = f(0.4) if len(dims) > 1 else f(0.2) if name.endswith("bias") else f(1.0)
        values = []
        for _ in range(int(np.prod(dims))):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            values.append(f(f(2) * f(f(state >> 40) / f(1 << 24)) - f(1)) * scale)
        w[name] = np.array(values).reshape(dims).astype(np.float64)
    ids = np.array([(i * 17 + 5) % vocab for i in range(10)])
    types = np.array([i // 6 for i in range(10)])
    for title, mask in (("no mask", np.ones(10)), ("the last three hidden", (np.arange(10) < 7) * 1)):
        hidden = bert(w, cfg, ids, types, mask)
        logits = masked_lm(w, cfg, hidden)
        print(title)
        for t in (0, 6):
            print("  hidden", t, np.round(hidden[t, :6], 6).tolist(), "norm", round(float(np.linalg.norm(hidden[t])), 6))
            print("  logits", t, np.round(logits[t, :6], 6).tolist(), "norm", round(float(np.linalg.norm(logits[t])), 6))


def sentences(folder, texts):
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
    cfg = json.load(open(folder + "/config.json"))
    w = {k: v.astype(np.float64) for k, v in load_file(folder + "/model.safetensors").items() if v.dtype != np.int64}
    tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
    tokenizer.no_padding()
    vectors = []
    for text in texts:
        ids = np.array(tokenizer.encode(text).ids)
        hidden = bert(w, cfg, ids, ids * 0, ids * 0 + 1).mean(0)
        vectors.append(hidden / np.linalg.norm(hidden))
        print(json.dumps(text), ids.tolist(), np.round(vectors[-1][:4], 6).tolist())
    print(np.round(np.array(vectors) @ np.array(vectors).T, 5).tolist())


if len(sys.argv) > 1:
    sentences(sys.argv[1], sys.argv[2:])
else:
    tiny()
