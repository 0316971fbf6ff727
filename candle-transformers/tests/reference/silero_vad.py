"""Silero VAD by numpy alone, from its weights: where somebody speaks in a recording to which noise was added, as JSON.

    python silero_vad.py silero_vad_16k.safetensors RECORDING.wav NOISY.wav BEFORE BEHIND

NOISY.wav is written: BEFORE seconds of noise, the recording with noise below it, BEHIND seconds of noise. Printed are `speech`, the ranges in
seconds with 0.4 s around them, and `probabilities`, one for each 32 ms. Recordings are mono, 16 bits, 16 kHz. Needs numpy.
"""

import json
import struct
import sys
import wave

import numpy as np

RATE, WINDOW, CONTEXT, MIRRORED = 16000, 512, 64, 64
THRESHOLD, PADDING = 0.5, 0.4


def tensors(path):
    with open(path, "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    head.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[slice(*about["data_offsets"])], np.float32).reshape(about["shape"]).astype(np.float64)
        for name, about in head.items()
    }


def conv(x, weight, bias, stride, padding):
    x = np.pad(x, ((0, 0), (padding, padding)))
    size = weight.shape[2]
    columns = [x[:, at : at + size].ravel() for at in range(0, x.shape[1] - size + 1, stride)]
    return weight.reshape(len(weight), -1) @ np.array(columns).T + bias[:, None]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def read(path):
    with wave.open(path) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768


def in_noise(samples, before, behind):
    samples = np.pad(samples, (int(before * RATE), int(behind * RATE)))
    noise = np.random.default_rng(1).standard_normal(len(samples)) * 0.003
    return np.round(np.clip(samples + noise, -1, 1) * 32767).astype("<i2")


def probabilities(w, samples):
    count = -(-len(samples) // WINDOW)
    samples = np.pad(samples, (CONTEXT, count * WINDOW - len(samples)))
    h = c = np.zeros(128)
    out = []
    for i in range(count):
        x = np.pad(samples[i * WINDOW :][: CONTEXT + WINDOW], (0, MIRRORED), "reflect")[None]
        x = conv(x, w["stft_conv.weight"], np.zeros(258), 128, 0)
        x = np.sqrt(x[:129] ** 2 + x[129:] ** 2)
        for name, stride in [("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1)]:
            x = np.maximum(conv(x, w[name + ".weight"], w[name + ".bias"], stride, 1), 0)
        gates = w["lstm_cell.weight_ih"] @ x[:, 0] + w["lstm_cell.bias_ih"] + w["lstm_cell.weight_hh"] @ h + w["lstm_cell.bias_hh"]
        i_, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i_) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(float(sigmoid(w["final_conv.weight"][0, :, 0] @ np.maximum(h, 0) + w["final_conv.bias"][0])))
    return out


def main(weights, recording, noisy, before, behind):
    samples = in_noise(read(recording), float(before), float(behind))
    with wave.open(noisy, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    found = probabilities(tensors(weights), samples / 32768)
    loud = [i for i, probability in enumerate(found) if probability >= THRESHOLD]
    # The recording has no pause of two seconds: one range.
    assert loud and max(np.diff(loud)) * WINDOW < 2 * RATE
    last = next(i for i in range(loud[-1], len(found) + 1) if i == len(found) or found[i] < 0.35)
    ranges = [[max(loud[0] * WINDOW / RATE - PADDING, 0), min(last * WINDOW / RATE + PADDING, len(samples) / RATE)]]
    json.dump({"speech": ranges, "probabilities": found}, sys.stdout)


main(*sys.argv[1:])
