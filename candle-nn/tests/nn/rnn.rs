//! Recurrent layers, against their formulas in f64, number by number.

use super::common::{assert_close, assert_fails, assert_values, data};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::rnn::{Direction, GRUState, LSTMState};
use candle_nn::{gru, lstm, GRUConfig, LSTMConfig, VarBuilder, VarMap, RNN};
use std::collections::HashMap;

const BATCH: usize = 2;
const SEQ: usize = 5;
const IN: usize = 3;
const HIDDEN: usize = 4;

fn sigmoid(x: f64) -> f64 {
    1. / (1. + (-x).exp())
}

fn tensors(gates: usize, suffix: &str, dev: &Device) -> Result<HashMap<String, Tensor>> {
    let rows = gates * HIDDEN;
    let parts = [
        ("weight_ih", vec![rows, IN]),
        ("weight_hh", vec![rows, HIDDEN]),
        ("bias_ih", vec![rows]),
        ("bias_hh", vec![rows]),
    ];
    let tensor = |(name, dims): (&str, Vec<usize>)| {
        let name = format!("{name}_{suffix}");
        Ok((name, data(&dims, DType::F32, dev)?))
    };
    parts.into_iter().map(tensor).collect()
}

/// `weight x + bias`, all of them f64.
fn linear(weight: &Tensor, bias: &Tensor, x: &[f64]) -> Result<Vec<f64>> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let rows = wide(weight)?.to_vec2::<f64>()?;
    let bias = wide(bias)?.to_vec1::<f64>()?;
    let dot = |row: &Vec<f64>| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
    Ok(rows.iter().zip(bias).map(|(row, b)| dot(row) + b).collect())
}

/// All steps of one sequence by `step`, which takes what the input and the state give to the gates, and the state's parts.
fn by_hand(
    tensors: &HashMap<String, Tensor>,
    suffix: &str,
    xs: &[Vec<f64>],
    step: impl Fn(&[f64], &[f64], &mut [f64], &mut [f64]),
) -> Result<Vec<f64>> {
    let get = |name: &str| &tensors[&format!("{name}_{suffix}")];
    let (mut h, mut c) = (vec![0.; HIDDEN], vec![0.; HIDDEN]);
    let mut all = vec![];
    for x in xs {
        let of_input = linear(get("weight_ih"), get("bias_ih"), x)?;
        let of_state = linear(get("weight_hh"), get("bias_hh"), &h)?;
        step(&of_input, &of_state, &mut h, &mut c);
        all.extend_from_slice(&h);
    }
    Ok(all)
}

fn lstm_step(of_input: &[f64], of_state: &[f64], h: &mut [f64], c: &mut [f64]) {
    for i in 0..HIDDEN {
        let gate = |n: usize| of_input[n * HIDDEN + i] + of_state[n * HIDDEN + i];
        c[i] = sigmoid(gate(1)) * c[i] + sigmoid(gate(0)) * gate(2).tanh();
        h[i] = sigmoid(gate(3)) * c[i].tanh();
    }
}

fn gru_step(of_input: &[f64], of_state: &[f64], h: &mut [f64], _: &mut [f64]) {
    for i in 0..HIDDEN {
        let (x, s) = (
            |n: usize| of_input[n * HIDDEN + i],
            |n: usize| of_state[n * HIDDEN + i],
        );
        let update = sigmoid(x(1) + s(1));
        let new = (x(2) + sigmoid(x(0) + s(0)) * s(2)).tanh();
        h[i] = update * h[i] + (1. - update) * new;
    }
}

fn recurrent_values(dev: &Device) -> Result<()> {
    let input = data(&[BATCH, SEQ, IN], DType::F32, dev)?;
    let wide = input.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let sequences = wide.to_vec3::<f64>()?;
    // The layer's number and direction are in the weights' names.
    let named = LSTMConfig {
        layer_idx: 3,
        direction: Direction::Backward,
        ..Default::default()
    };
    for (config, suffix) in [(LSTMConfig::default(), "l0"), (named, "l3_reverse")] {
        let tensors = tensors(4, suffix, dev)?;
        let vb = VarBuilder::from_tensors(tensors.clone(), DType::F32, dev);
        let layer = lstm(IN, HIDDEN, config, vb)?;
        assert_eq!(layer.config().layer_idx, config.layer_idx);
        let states = layer.seq(&input)?;
        let got = layer.states_to_tensor(&states)?;
        assert_eq!(got.dims(), &[BATCH, SEQ, HIDDEN]);
        let got = got.flatten_from(1)?;
        for (i, xs) in sequences.iter().enumerate() {
            let expected = by_hand(&tensors, suffix, xs, lstm_step)?;
            assert_values(suffix, &got.get(i)?, &expected, 1e-4);
        }
        assert_close(
            "last",
            states[SEQ - 1].h(),
            &got.narrow(1, (SEQ - 1) * HIDDEN, HIDDEN)?,
            0.,
        );
    }
    let tensors = tensors(3, "l0", dev)?;
    let vb = VarBuilder::from_tensors(tensors.clone(), DType::F32, dev);
    let layer = gru(IN, HIDDEN, GRUConfig::default(), vb)?;
    let got = layer.states_to_tensor(&layer.seq(&input)?)?;
    assert_eq!(got.dims(), &[BATCH, SEQ * HIDDEN]);
    for (i, xs) in sequences.iter().enumerate() {
        let expected = by_hand(&tensors, "l0", xs, gru_step)?;
        assert_values("gru", &got.get(i)?, &expected, 1e-4);
    }
    Ok(())
}

/// A sequence in two parts, the second starting from the state of the first.
fn recurrent_from_a_state(dev: &Device) -> Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, dev);
    let input = data(&[BATCH, SEQ, IN], DType::F32, dev)?;
    let (head, tail) = (input.narrow(1, 0, 2)?, input.narrow(1, 2, SEQ - 2)?);
    let layer = lstm(IN, HIDDEN, LSTMConfig::default_no_bias(), vb.pp("lstm"))?;
    let whole = layer.seq(&input)?;
    let state = layer.seq(&head)?.pop().unwrap();
    let state = LSTMState::new(state.h().clone(), state.c().clone());
    let rest = layer.seq_init(&tail, &state)?;
    assert_close("h", rest[SEQ - 3].h(), whole[SEQ - 1].h(), 1e-6);
    assert_close("c", rest[SEQ - 3].c(), whole[SEQ - 1].c(), 1e-6);

    let layer = gru(IN, HIDDEN, GRUConfig::default_no_bias(), vb.pp("gru"))?;
    let whole = layer.seq(&input)?;
    let h = layer.seq(&head)?.pop().unwrap().h;
    let rest = layer.seq_init(&tail, &GRUState { h })?;
    assert_close("h", rest[SEQ - 3].h(), whole[SEQ - 1].h(), 1e-6);
    // Without biases there are two weights each.
    assert_eq!(map.all_vars().len(), 4);

    assert!(layer.seq(&input.narrow(1, 0, 0)?)?.is_empty());
    assert_fails(
        layer.seq(&data(&[BATCH, SEQ, IN + 1], DType::F32, dev)?),
        &["matmul"],
    );
    Ok(())
}

test_device!(recurrent_values);
test_device!(recurrent_from_a_state);
