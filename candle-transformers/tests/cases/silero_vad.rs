//! Silero VAD, held against its formula, one window after another in f64.

use candle_core::{test_device, DType, Device, Result};
use candle_nn::VarBuilder;
use candle_transformers::models::silero_vad::{Options, Phrases, SileroVad, Speech, WINDOW};

use super::encoders::{assert_error, lacking};
use super::support::Numbers;

const CONTEXT: usize = 64;

/// A tensor of the network by its name, row by row.
fn tensor(vb: &VarBuilder, name: &str, shape: &[usize]) -> Result<Vec<f64>> {
    let values = vb.get(shape, name)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// Channels over time.
type Signal = Vec<Vec<f64>>;

fn conv(
    xs: &Signal,
    weight: &[f64],
    bias: &[f64],
    size: usize,
    by: usize,
    padding: usize,
) -> Signal {
    let (inputs, len) = (xs.len(), xs[0].len());
    let at = |channel: usize, place: usize| match place.checked_sub(padding) {
        Some(place) if place < len => xs[channel][place],
        _ => 0.,
    };
    let steps = (len + 2 * padding - size) / by + 1;
    let value = |out: usize, step: usize| {
        let mut sum = bias[out];
        for channel in 0..inputs {
            for tap in 0..size {
                sum += weight[(out * inputs + channel) * size + tap] * at(channel, step * by + tap);
            }
        }
        sum
    };
    let row = |out| (0..steps).map(|step| value(out, step)).collect();
    (0..bias.len()).map(row).collect()
}

fn sigmoid(x: f64) -> f64 {
    1. / (1. + (-x).exp())
}

fn expected(samples: &[f32], vb: &VarBuilder) -> Result<Vec<f64>> {
    let count = samples.len().div_ceil(WINDOW);
    let sample = |i: usize| samples.get(i).map_or(0., |sample| f64::from(*sample));
    let stft = tensor(vb, "stft_conv.weight", &[258, 1, 256])?;
    let [w_ih, w_hh] =
        ["ih", "hh"].map(|it| tensor(vb, &format!("lstm_cell.weight_{it}"), &[512, 128]));
    let [b_ih, b_hh] = ["ih", "hh"].map(|it| tensor(vb, &format!("lstm_cell.bias_{it}"), &[512]));
    let (w_ih, w_hh, b_ih, b_hh) = (w_ih?, w_hh?, b_ih?, b_hh?);
    let last = tensor(vb, "final_conv.weight", &[1, 128, 1])?;
    let last_bias = tensor(vb, "final_conv.bias", &[1])?[0];
    let (mut h, mut c) = (vec![0.; 128], vec![0.; 128]);
    let mut found = Vec::new();
    for window in 0..count {
        let start = window * WINDOW;
        let before = |i: usize| (start + i).checked_sub(CONTEXT).map_or(0., sample);
        let mut heard: Vec<f64> = (0..CONTEXT + WINDOW).map(before).collect();
        // Mirrored at the last sample.
        let mirrored: Vec<f64> = heard.iter().rev().skip(1).take(64).copied().collect();
        heard.extend(mirrored);
        let parts = conv(&vec![heard], &stft, &[0.; 258], 256, 128, 0);
        let mut xs: Signal = (0..129)
            .map(|f| {
                parts[f]
                    .iter()
                    .zip(&parts[f + 129])
                    .map(|(re, im)| re.hypot(*im))
                    .collect()
            })
            .collect();
        for (name, from, to, by) in [
            ("conv1", 129, 128, 1),
            ("conv2", 128, 64, 2),
            ("conv3", 64, 64, 2),
            ("conv4", 64, 128, 1),
        ] {
            let weight = tensor(vb, &format!("{name}.weight"), &[to, from, 3])?;
            let bias = tensor(vb, &format!("{name}.bias"), &[to])?;
            xs = conv(&xs, &weight, &bias, 3, by, 1);
            xs.iter_mut().flatten().for_each(|x| *x = x.max(0.));
        }
        let gate = |row: usize| {
            let sum = |weights: &[f64], xs: &mut dyn Iterator<Item = f64>| -> f64 {
                weights[row * 128..][..128]
                    .iter()
                    .zip(xs)
                    .map(|(w, x)| w * x)
                    .sum()
            };
            sum(&w_ih, &mut xs.iter().map(|x| x[0]))
                + b_ih[row]
                + sum(&w_hh, &mut h.iter().copied())
                + b_hh[row]
        };
        let gates: Vec<f64> = (0..512).map(gate).collect();
        for i in 0..128 {
            c[i] = sigmoid(gates[128 + i]) * c[i] + sigmoid(gates[i]) * gates[256 + i].tanh();
            h[i] = sigmoid(gates[384 + i]) * c[i].tanh();
        }
        let sum: f64 = h.iter().zip(&last).map(|(h, w)| h.max(0.) * w).sum();
        found.push(sigmoid(sum + last_bias));
    }
    Ok(found)
}

fn probabilities_are_those_of_the_formula(device: &Device) -> Result<()> {
    let weights = |device| lacking(&[], DType::F32, device);
    let vad = SileroVad::load(weights(device))?;
    let mut numbers = Numbers::new(5);
    for len in [0, 1, WINDOW, 3 * WINDOW + 100] {
        let samples: Vec<f32> = (0..len).map(|_| numbers.next(0.1)).collect();
        let found = vad.probabilities(&samples)?;
        let wanted = expected(&samples, &weights(&Device::Cpu))?;
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!(
                (f64::from(*found) - wanted).abs() < 1e-4,
                "{found}, {wanted}"
            );
        }
    }
    assert_error(
        vad.probabilities(&[0., f32::NAN]),
        &["silero_vad", "sample 1"],
    );
    Ok(())
}
test_device!(probabilities_are_those_of_the_formula);

/// A recording in parts has the probabilities of the whole, and its phrases are the stretches of speech.
fn parts_are_heard_as_the_whole(device: &Device) -> Result<()> {
    let vad = SileroVad::load(lacking(&[], DType::F32, device))?;
    let mut numbers = Numbers::new(6);
    let samples: Vec<f32> = (0..40 * WINDOW + 77).map(|_| numbers.next(0.1)).collect();
    let whole = vad.probabilities(&samples)?;
    // Half of the windows are speech.
    let mut sorted = whole.clone();
    sorted.sort_by(f32::total_cmp);
    let threshold = sorted[whole.len() / 2];
    let options = Options {
        threshold,
        end_threshold: threshold,
        min_speech: 0.,
        min_silence: 0.,
        padding: 0.,
    };
    let mut hearing = vad.begin()?;
    let mut phrases = Phrases::new(vad.clone(), &options)?;
    let (mut found, mut ranges) = (Vec::new(), Vec::new());
    let mut rest = samples.as_slice();
    for len in [0, 1, WINDOW - 1, 3, 5 * WINDOW, 2000, usize::MAX] {
        let (part, after) = rest.split_at(len.min(rest.len()));
        rest = after;
        found.extend(vad.hear(&mut hearing, part)?);
        ranges.extend(phrases.hear(part)?);
    }
    assert_error(
        vad.hear(&mut hearing, &[0., f32::NAN]).map(drop),
        &["silero_vad", "sample 20558"],
    );
    found.extend(vad.end(hearing)?);
    assert_eq!(found.len(), whole.len());
    for (found, whole) in found.iter().zip(&whole) {
        assert!((found - whole).abs() < 1e-6, "{found}, {whole}");
    }
    ranges.extend(phrases.end()?);
    let speech = Speech::of(&found, samples.len(), &options);
    assert!(speech.ranges.len() > 3, "{speech:?}");
    assert_eq!(ranges, speech.ranges);
    Ok(())
}
test_device!(parts_are_heard_as_the_whole);
