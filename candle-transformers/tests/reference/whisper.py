"""What CTranslate2 makes of a Whisper of real weights, and those weights under Hugging Face's names.

    python whisper.py MODEL_FOLDER RECORDING.wav OUT_FOLDER

MODEL_FOLDER has CTranslate2's `model.bin`, `config.json` and `tokenizer.json`. OUT_FOLDER gets a folder that `candle-dvm transcribe --model`
takes, `speech.wav`, the recording at 16 kHz, and `expected.json`: the tokens of the greedy text with times, and the text.

Needs ctranslate2, numpy, safetensors and tokenizers.
"""

import json
import shutil
import struct
import sys
import wave
from pathlib import Path

import ctranslate2
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

RATE = 16000
WINDOW = 30 * RATE
DTYPES = [np.float32, np.int8, np.int16, np.int32, np.float16]


class Reader:
    """CTranslate2's model.bin, version 6: little-endian, names with their length in front and a zero behind."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def number(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def name(self):
        length = self.number("H")
        text = self.data[self.at : self.at + length - 1].decode()
        self.at += length
        return text

    def array(self):
        dims = [self.number("I") for _ in range(self.number("B"))]
        dtype = DTYPES[self.number("B")]
        size = self.number("I")
        array = np.frombuffer(self.data[self.at : self.at + size], dtype).reshape(dims)
        self.at += size
        return array

    def variables(self):
        version, spec, _ = self.number("I"), self.name(), self.number("I")
        assert (version, spec) == (6, "WhisperSpec"), (version, spec)
        found = {}
        for _ in range(self.number("I")):
            name = self.name()
            found[name] = self.array()
        return found


def convert(found):
    """Hugging Face's tensors, and config.json."""
    out = {}

    def put(name, array):
        out[name] = np.ascontiguousarray(array, np.float32)

    def layer(to, part, names):
        """A linear layer, or several stacked in one; the key's bias is zeros there and absent here."""
        weights = np.split(found[part + "/weight"], len(names))
        biases = np.split(found[part + "/bias"], len(names))
        for name, weight, bias in zip(names, weights, biases):
            put(f"{to}{name}.weight", weight)
            if name.endswith("k_proj"):
                assert not bias.any()
            else:
                put(f"{to}{name}.bias", bias)

    def norm(to, part):
        put(to + ".weight", found[part + "/gamma"])
        put(to + ".bias", found[part + "/beta"])

    layers = {}
    for side in ["encoder", "decoder"]:
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        i = 0
        while f"{side}/layer_{i}/ffn/linear_0/weight" in found:
            part, to = f"{side}/layer_{i}/", f"model.{side}.layers.{i}."
            qkv = [f"self_attn.{name}_proj" for name in "qkv"]
            layer(to, part + "self_attention/linear_0", qkv)
            layer(to, part + "self_attention/linear_1", ["self_attn.out_proj"])
            norm(to + "self_attn_layer_norm", part + "self_attention/layer_norm")
            if side == "decoder":
                layer(to, part + "attention/linear_0", ["encoder_attn.q_proj"])
                layer(to, part + "attention/linear_1", ["encoder_attn.k_proj", "encoder_attn.v_proj"])
                layer(to, part + "attention/linear_2", ["encoder_attn.out_proj"])
                norm(to + "encoder_attn_layer_norm", part + "attention/layer_norm")
            layer(to, part + "ffn/linear_0", ["fc1"])
            layer(to, part + "ffn/linear_1", ["fc2"])
            norm(to + "final_layer_norm", part + "ffn/layer_norm")
            i += 1
        layers[side] = i
    for conv in ["conv1", "conv2"]:
        layer("model.encoder.", f"encoder/{conv}", [conv])
    put("model.encoder.embed_positions.weight", found["encoder/position_encodings/encodings"])
    put("model.decoder.embed_positions.weight", found["decoder/position_encodings/encodings"])
    put("model.decoder.embed_tokens.weight", found["decoder/embeddings/weight"])
    size, bands, _ = out["model.encoder.conv1.weight"].shape
    config = {
        "model_type": "whisper",
        "num_mel_bins": bands,
        "max_source_positions": len(out["model.encoder.embed_positions.weight"]),
        "d_model": size,
        "encoder_attention_heads": int(found["encoder/num_heads"]),
        "encoder_layers": layers["encoder"],
        "vocab_size": len(out["model.decoder.embed_tokens.weight"]),
        "max_target_positions": len(out["model.decoder.embed_positions.weight"]),
        "decoder_attention_heads": int(found["decoder/num_heads"]),
        "decoder_layers": layers["decoder"],
    }
    return out, config


def recording(path):
    """A mono WAV of 16 bits as floats at 16 kHz, by its spectrum."""
    with wave.open(str(path)) as file:
        assert file.getnchannels() == 1 and file.getsampwidth() == 2
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
    length = len(samples) * RATE // rate
    spectrum = np.fft.rfft(samples)[: length // 2 + 1]
    return np.fft.irfft(spectrum, length) * length / len(samples)


def mel_filters(bands):
    """Triangles of equal area, their corners equally far apart on Slaney's scale from 0 to 8 kHz."""
    def hertz(mel):
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mel - 15)))

    corners = hertz(np.linspace(0, 15 + np.log(8) / (np.log(6.4) / 27), bands + 2))
    bins = np.arange(201) * RATE / 400
    rising = (bins - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    falling = (corners[2:, None] - bins) / (corners[2:] - corners[1:-1])[:, None]
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (corners[2:] - corners[:-2]))[:, None]


def spectrogram(samples, bands):
    """(1, bands, 3000): the log-mel powers of the samples and silence behind them."""
    padded = np.pad(np.pad(samples, (0, WINDOW)), 200, "reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400)[::160][:-1]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    powers = np.abs(np.fft.rfft(frames * hann)) ** 2
    logs = np.log10(np.maximum(mel_filters(bands) @ powers.T, 1e-10))
    logs = np.maximum(logs, logs.max() - 8) / 4 + 1
    # What lies beyond the recording is zero, as the first implementation has it.
    heard = len(samples) // 160
    window = np.zeros((bands, 3000))
    window[:, :heard] = logs[:, :heard][:, :3000]
    return window[None].astype(np.float32)


def main():
    model, wav, out = map(Path, sys.argv[1:])
    folder = out / "model"
    folder.mkdir(parents=True, exist_ok=True)
    tensors, config = convert(Reader((model / "model.bin").read_bytes()).variables())
    given = json.loads((model / "config.json").read_text())
    config["suppress_tokens"] = given["suppress_ids"]
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    heads = {"alignment_heads": given["alignment_heads"]} if "alignment_heads" in given else {}
    (folder / "generation_config.json").write_text(json.dumps(heads))
    shutil.copy(model / "tokenizer.json", folder)

    samples = np.clip(np.round(recording(wav) * 32768), -32768, 32767).astype("<i2")
    with wave.open(str(out / "speech.wav"), "wb") as file:
        file.setparams((1, 2, RATE, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())
    mel = spectrogram(samples / 32768, config["num_mel_bins"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    whisper = ctranslate2.models.Whisper(str(model), compute_type="float32")
    result = whisper.generate(
        ctranslate2.StorageView.from_array(mel),
        [[tokenizer.token_to_id("<|startoftranscript|>")]],
        beam_size=1,
        max_initial_timestamp_index=50,
    )[0]
    tokens = [int(token) for token in result.sequences_ids[0]]
    end = tokenizer.token_to_id("<|endoftext|>")
    text = tokenizer.decode([token for token in tokens if token < end])
    expected = {"tokens": [token for token in tokens if token != end], "text": text.strip()}
    (out / "expected.json").write_text(json.dumps(expected))
    print(json.dumps(expected))


if __name__ == "__main__":
    main()
