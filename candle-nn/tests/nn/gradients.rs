//! Gradients of layers and functions: on the CPU in f64 against differences, elsewhere in f32 against the CPU.

use super::common::{assert_close, data};
use candle_core::{test_device, DType, Device, Module, ModuleT, Result, Tensor, Var, D};
use candle_nn::attention::{flash_attn, flash_attn_varlen_unfused, AttnMask};
use candle_nn::rnn::RNN;
use candle_nn::{loss, moe, ops, rotary_emb, Activation, VarBuilder};
use std::collections::HashMap;

struct Case {
    name: &'static str,
    /// The shapes of the arguments.
    args: Vec<Vec<usize>>,
    f: fn(&[Tensor]) -> Result<Tensor>,
}

fn case(name: &'static str, args: &[&[usize]], f: fn(&[Tensor]) -> Result<Tensor>) -> Case {
    let args = args.iter().map(|dims| dims.to_vec()).collect();
    Case { name, args, f }
}

macro_rules! cases {
    ($($name:literal $args:expr, $f:expr;)*) => {
        vec![$(case($name, &$args, $f)),*]
    };
}

fn functions() -> Vec<Case> {
    let m: &[usize] = &[3, 4];
    cases! {
        "softmax" [m], |t| ops::softmax(&t[0], 0);
        "softmax_last_dim" [m], |t| ops::softmax_last_dim(&t[0]);
        "log_softmax" [m], |t| ops::log_softmax(&t[0], D::Minus1);
        "sigmoid" [m], |t| ops::sigmoid(&t[0]);
        "silu" [m], |t| ops::silu(&t[0]);
        "act_mul" [m, m], |t| ops::act_mul(&t[0], &t[1], ops::GatedActivation::Silu);
        "swiglu" [m], |t| ops::swiglu(&t[0]);
        "mish" [m], |t| ops::mish(&t[0]);
        "selu" [m], |t| ops::selu(&t[0], 1.67, 1.05);
        "leaky_relu" [m], |t| ops::leaky_relu(&t[0], 0.1);
        "hard_sigmoid" [m], |t| ops::hard_sigmoid(&t[0]);
        "gelu" [m], |t| Activation::Gelu.forward(&t[0]);
        "relu2" [m], |t| Activation::Relu2.forward(&t[0]);
        "prelu" [&[2, 3, 2], &[3]], |t| candle_nn::PReLU::new(t[1].clone(), false).forward(&t[0]);
        "rms_norm" [m, &[4]], |t| ops::rms_norm(&t[0], &t[1], 1e-5);
        "add_norm" [m, m, &[4]], |t| {
            let (sum, normed) = ops::add_norm(&t[0], &t[1], ops::Norm::rms(&t[2], 1e-5))?;
            sum * normed
        };
        "layer_norm" [m, &[4], &[4]], |t| ops::layer_norm(&t[0], &t[1], &t[2], 1e-5);
        "rope" [&[1, 2, 3, 4], &[3, 2], &[3, 2]], |t| rotary_emb::rope(&t[0], &t[1], &t[2]);
        "rope_i" [&[1, 2, 3, 4], &[3, 2], &[3, 2]], |t| rotary_emb::rope_i(&t[0], &t[1], &t[2]);
        "rope_thd" [&[1, 3, 2, 4], &[3, 2], &[3, 2]], |t| rotary_emb::rope_thd(&t[0], &t[1], &t[2]);
        "pixel_shuffle" [&[1, 4, 2, 3]], |t| ops::pixel_shuffle(&t[0], 2)?.sqr();
        "pixel_unshuffle" [&[1, 1, 4, 2]], |t| ops::pixel_unshuffle(&t[0], 2)?.sqr();
        "replication_pad2d" [&[1, 1, 2, 3]], |t| ops::replication_pad2d(&t[0], 2)?.sqr();
    }
}

fn attention() -> Vec<Case> {
    let q: &[usize] = &[1, 4, 3, 2];
    let k: &[usize] = &[1, 2, 5, 2];
    // The same in the order of flash_attn: (batch, seq, heads, head_dim).
    let (fq, fk): (&[usize], &[usize]) = (&[1, 3, 4, 2], &[1, 5, 2, 2]);
    cases! {
        "sdpa" [q, k, k], |t| ops::sdpa(&t[0], &t[1], &t[2], None, false, 0.7, 1.);
        "sdpa, causal, capped" [q, k, k], |t| ops::sdpa(&t[0], &t[1], &t[2], None, true, 0.7, 2.);
        "sdpa, mask" [q, k, k, &[3, 5]], |t| ops::sdpa(&t[0], &t[1], &t[2], Some(&t[3]), false, 0.7, 1.);
        "sdpa with a window, sinks and slopes" [q, k, k, &[4], &[4]], |t| {
            let options = ops::SdpaOptions {
                scale: 0.7,
                causal: true,
                window: Some(2),
                sinks: Some(&t[3]),
                slopes: Some(&t[4]),
                ..Default::default()
            };
            ops::sdpa_with(&t[0], &t[1], &t[2], &options)
        };
        "sdpa of rows that see nothing" [&[2, 4, 3, 2], &[2, 2, 5, 2], &[2, 2, 5, 3], &[4, 3, 1]], |t| {
            let lens = Tensor::new(&[0u32, 4], t[0].device())?;
            let options = ops::SdpaOptions {
                scale: 0.7,
                lens: Some(&lens),
                bias: Some(&t[3]),
                ..Default::default()
            };
            ops::sdpa_with(&t[0], &t[1], &t[2], &options)
        };
        "flash_attn" [fq, fk, fk], |t| flash(t, AttnMask::causal_with_offset(2));
        "packed sequences" [&[5, 2, 2], &[6, 2, 2], &[6, 2, 2]], |t| {
            let lengths = |lengths: [u32; 2]| Tensor::new(&lengths, t[0].device());
            let (lq, lk) = (lengths([2, 3])?, lengths([3, 3])?);
            flash_attn_varlen_unfused(&t[0], &t[1], &t[2], None, &lq, &lk, 3, 3, 0.7, true, None, None)
        };
    }
}

fn flash(t: &[Tensor], mask: AttnMask) -> Result<Tensor> {
    match t[0].dtype() {
        DType::F64 => flash_attn::<f64>(&t[0], &t[1], &t[2], 0.7, mask, None, None),
        _ => flash_attn::<f32>(&t[0], &t[1], &t[2], 0.7, mask, None, None),
    }
}

/// The arguments but the first by their names, as a layer asks for them.
fn named<'a>(t: &[Tensor], names: &[&str]) -> VarBuilder<'a> {
    let tensors: HashMap<_, _> = names
        .iter()
        .zip(&t[1..])
        .map(|(name, t)| (name.to_string(), t.clone()))
        .collect();
    VarBuilder::from_tensors(tensors, t[0].dtype(), t[0].device())
}

fn layers() -> Vec<Case> {
    let image: &[usize] = &[2, 2, 3, 4];
    cases! {
        "linear" [&[2, 3, 4], &[5, 4], &[5]], |t| {
            candle_nn::linear(4, 5, named(t, &["weight", "bias"]))?.forward(&t[0])
        };
        "conv1d" [&[1, 2, 5], &[3, 2, 2], &[3]], |t| {
            candle_nn::conv1d(2, 3, 2, Default::default(), named(t, &["weight", "bias"]))?.forward(&t[0])
        };
        "conv2d" [image, &[2, 1, 2, 2], &[2]], |t| {
            let config = candle_nn::Conv2dConfig { padding: 1, groups: 2, ..Default::default() };
            candle_nn::conv2d(2, 2, 2, config, named(t, &["weight", "bias"]))?.forward(&t[0])
        };
        "conv_transpose1d" [&[1, 2, 3], &[2, 3, 2], &[3]], |t| {
            candle_nn::conv_transpose1d(2, 3, 2, Default::default(), named(t, &["weight", "bias"]))?.forward(&t[0])
        };
        "conv_transpose2d" [&[1, 2, 2, 3], &[2, 1, 2, 2], &[1]], |t| {
            candle_nn::conv_transpose2d(2, 1, 2, Default::default(), named(t, &["weight", "bias"]))?.forward(&t[0])
        };
        "group_norm" [&[2, 4, 3], &[4], &[4]], |t| {
            candle_nn::group_norm(2, 4, 1e-5, named(t, &["weight", "bias"]))?.forward(&t[0])
        };
        "batch_norm in training" [image, &[2], &[2]], |t| batch_norm(t)?.forward_t(&t[0], true);
        "batch_norm" [image, &[2], &[2]], |t| batch_norm(t)?.forward_t(&t[0], false);
        "lstm" [&[2, 3, 2], &[12, 2], &[12, 3], &[12], &[12]], |t| {
            let layer = candle_nn::lstm(2, 3, Default::default(), named(t, &RECURRENT))?;
            layer.states_to_tensor(&layer.seq(&t[0])?)
        };
        "gru" [&[2, 3, 2], &[9, 2], &[9, 3], &[9], &[9]], |t| {
            let layer = candle_nn::gru(2, 3, Default::default(), named(t, &RECURRENT))?;
            layer.states_to_tensor(&layer.seq(&t[0])?)
        };
        "experts of a prompt" [&[3, 2], &[4, 2, 2]], |t| experts(&t[0], &t[1], &None, true);
        "experts" [&[3, 2], &[4, 2, 2]], |t| experts(&t[0], &t[1], &None, false);
        "weighted experts" [&[6, 2], &[4, 2, 2], &[3, 2]], |t| experts(&t[0], &t[1], &Some(t[2].clone()), true);
    }
}

const RECURRENT: [&str; 4] = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];

fn batch_norm(t: &[Tensor]) -> Result<candle_nn::BatchNorm> {
    let running = [0.2, 1.3]
        .map(|value| Tensor::full(value as f32, 2, t[0].device())?.to_dtype(t[0].dtype()));
    let [mean, variance] = running;
    candle_nn::BatchNorm::new(2, mean?, variance?, t[1].clone(), t[2].clone(), 1e-5)
}

fn experts(xs: &Tensor, weights: &Tensor, scales: &Option<Tensor>, prompt: bool) -> Result<Tensor> {
    let chosen = Tensor::new(&[3u32, 0, 2, 3, 0, 2], xs.device())?;
    let (experts, pairs) = chosen.sort_last_dim(true)?;
    moe::moe_gemm(xs, weights, scales, &pairs, &experts, 2, prompt)
}

fn losses() -> Vec<Case> {
    let m: &[usize] = &[3, 4];
    cases! {
        "mse" [m, m], |t| loss::mse(&t[0], &t[1]);
        "huber" [m, m], |t| loss::huber(&t[0], &t[1], 0.8);
        "binary_cross_entropy_with_logit" [m, m], |t| loss::binary_cross_entropy_with_logit(&t[0], &t[1]);
        "cross_entropy" [m], |t| loss::cross_entropy(&t[0], &Tensor::new(&[3u32, 0, 1], t[0].device())?);
        "nll" [m], |t| loss::nll(&t[0], &Tensor::new(&[3u32, 0, 1], t[0].device())?);
    }
}

/// The sum of a result by weights that tell its elements apart.
fn weighed(case: &Case, vars: &[Var]) -> Result<Tensor> {
    let args: Vec<_> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let out = (case.f)(&args)?;
    let weights = data(&[out.elem_count() + 1], out.dtype(), out.device())?;
    let weights = weights.narrow(0, 1, out.elem_count())?;
    (out.flatten_all()? * weights)?.sum_all()
}

fn variables(case: &Case, dtype: DType, dev: &Device) -> Result<Vec<Var>> {
    let var = |(i, dims): (usize, &Vec<usize>)| {
        // Different numbers for arguments of the same shape.
        let count = dims.iter().product::<usize>();
        let values = data(&[count + 3 * i + 3], DType::F32, &Device::Cpu)?;
        let values = values.narrow(0, 3 * i, count)?.reshape(dims.as_slice())?;
        Var::from_tensor(&values.to_dtype(dtype)?.to_device(dev)?)
    };
    case.args.iter().enumerate().map(var).collect()
}

fn gradients(case: &Case, vars: &[Var]) -> Result<Vec<Tensor>> {
    let grads = weighed(case, vars)?.backward()?;
    let grad = |var: &Var| match grads.get(var) {
        Some(grad) => Ok(grad.clone()),
        None => candle_core::bail!("{}: an argument has no gradient", case.name),
    };
    vars.iter().map(grad).collect()
}

/// The slope of `weighed` along each element of `var`, from the values at half a step to both sides.
fn slopes(case: &Case, vars: &[Var], var: &Var) -> Result<Tensor> {
    const STEP: f64 = 1e-5;
    let at = var.flatten_all()?.to_vec1::<f64>()?;
    let value = |i: usize, step: f64| {
        let mut moved = at.clone();
        moved[i] += step;
        var.set(&Tensor::from_vec(moved, var.shape(), var.device())?)?;
        weighed(case, vars)?.to_scalar::<f64>()
    };
    let slope = |i| Ok((value(i, STEP)? - value(i, -STEP)?) / (2. * STEP));
    let slopes = (0..at.len()).map(slope).collect::<Result<Vec<_>>>()?;
    var.set(&Tensor::from_slice(&at, var.shape(), var.device())?)?;
    Tensor::from_vec(slopes, var.shape(), var.device())
}

fn check(cases: Vec<Case>, dev: &Device) -> Result<()> {
    for case in cases {
        let vars = variables(&case, DType::F64, &Device::Cpu)?;
        let expected = gradients(&case, &vars)?;
        if dev.is_cpu() {
            for (i, (var, grad)) in vars.iter().zip(&expected).enumerate() {
                let name = format!("{}, argument {i}", case.name);
                // The third derivative times the step squared, and the rounding of values over the step.
                assert_close(&name, grad, &slopes(&case, &vars, var)?, 1e-6);
            }
        }
        let vars = variables(&case, DType::F32, dev)?;
        for (i, (got, expected)) in gradients(&case, &vars)?.iter().zip(&expected).enumerate() {
            let name = format!("{} in f32, argument {i}", case.name);
            // Chains of some ten roundings, and sums over tens of elements.
            assert_close(&name, got, expected, 1e-4);
        }
    }
    Ok(())
}

fn gradients_of_functions(dev: &Device) -> Result<()> {
    check(functions(), dev)
}

fn gradients_of_attention(dev: &Device) -> Result<()> {
    check(attention(), dev)
}

fn gradients_of_layers(dev: &Device) -> Result<()> {
    check(layers(), dev)
}

fn gradients_of_losses(dev: &Device) -> Result<()> {
    check(losses(), dev)
}

/// If exponentials overflow, the loss and its gradient are still those of the limit.
fn loss_of_large_logits(dev: &Device) -> Result<()> {
    let logits = Var::from_tensor(&Tensor::new(&[200f32, -200., 0.], dev)?)?;
    let targets = Tensor::new(&[0f32, 1., 1.], dev)?;
    let loss = loss::binary_cross_entropy_with_logit(&logits, &targets)?;
    super::common::assert_values("loss", &loss, &[(400. + 2f64.ln()) / 3.], 1e-6);
    let grads = loss.backward()?;
    let expected = [1. / 3., -1. / 3., -0.5 / 3.];
    super::common::assert_values("gradient", grads.get(&logits).unwrap(), &expected, 1e-6);
    Ok(())
}

test_device!(gradients_of_functions);
test_device!(gradients_of_attention);
test_device!(gradients_of_layers);
test_device!(gradients_of_losses);
test_device!(loss_of_large_logits);

/// Ops of tensors without elements have gradients of zeros, so that an optimiser finds one for each variable in an empty last batch.
fn nothing_has_a_gradient(dev: &Device) -> Result<()> {
    let var = |dims: &[usize]| Var::ones(dims, DType::F32, dev);
    let (rows, head) = (var(&[0, 4])?, var(&[1, 2, 0, 4])?);
    let (weight, bias, angles) = (
        var(&[4])?,
        var(&[4])?,
        Tensor::ones((0, 2), DType::F32, dev)?,
    );
    let (keys, values) = (var(&[1, 2, 3, 4])?, var(&[1, 2, 3, 4])?);
    let channels = var(&[0, 4, 2])?;
    let group_norm = candle_nn::GroupNorm::new(
        weight.as_tensor().clone(),
        bias.as_tensor().clone(),
        4,
        2,
        1e-5,
    )?;
    let cases: Vec<(&str, Tensor, Vec<&Var>)> = vec![
        (
            "softmax_last_dim",
            ops::softmax_last_dim(&rows)?,
            vec![&rows],
        ),
        ("sigmoid", ops::sigmoid(&rows)?, vec![&rows]),
        (
            "act_mul",
            ops::act_mul(&rows, &rows, ops::GatedActivation::Silu)?,
            vec![&rows],
        ),
        (
            "rms_norm",
            ops::rms_norm(&rows, &weight, 1e-5)?,
            vec![&rows, &weight],
        ),
        (
            "layer_norm",
            ops::layer_norm(&rows, &weight, &bias, 1e-5)?,
            vec![&rows, &weight, &bias],
        ),
        (
            "group norm",
            group_norm.forward(&channels)?,
            vec![&channels, &weight, &bias],
        ),
        (
            "rope",
            rotary_emb::rope(&head, &angles, &angles)?,
            vec![&head],
        ),
        (
            "sdpa",
            ops::sdpa(&head, &keys, &values, None, false, 1., 1.)?,
            vec![&head, &keys, &values],
        ),
    ];
    for (name, result, vars) in cases {
        assert_eq!(result.elem_count(), 0, "{name}");
        let grads = result.sum_all()?.backward()?;
        for var in vars {
            let grad = grads
                .get(var)
                .unwrap_or_else(|| panic!("{name}: no gradient"));
            assert_eq!(grad.dims(), var.dims(), "{name}");
            let sum = grad.abs()?.sum_all()?.to_scalar::<f32>()?;
            assert_eq!(sum, 0., "{name}");
        }
    }
    Ok(())
}

/// PyTorch's gradients where a function has none.
fn kinks(dev: &Device) -> Result<()> {
    let slopes = |x: &[f32], f: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Vec<f32>> {
        let x = Var::new(x, dev)?;
        let grads = f(&x)?.backward()?;
        grads.get(&x).expect("a gradient").to_vec1()
    };
    let leaky = slopes(&[-1., 0., 1.], &|x| ops::leaky_relu(x, 0.25))?;
    assert_eq!(leaky, [0.25, 0.25, 1.]);
    let weight = Tensor::new(&[0.25f32], dev)?;
    let prelu = slopes(&[-1., 0., 1.], &|x| {
        candle_nn::PReLU::new(weight.clone(), true).forward(x)
    })?;
    assert_eq!(prelu, [0.25, 0.25, 1.]);
    let relu6 = slopes(&[-1., 0., 3., 6., 7.], &|x| Activation::Relu6.forward(x))?;
    assert_eq!(relu6, [0., 0., 1., 0., 0.]);
    let hard = slopes(&[-4., -3., 0., 3., 4.], &ops::hard_sigmoid)?;
    assert_eq!(hard, [0., 0., 1. / 6., 0., 0.]);
    let elu = slopes(&[0., 1.], &|x| Activation::Elu(2.).forward(x))?;
    assert_eq!(elu, [2., 1.]);
    Ok(())
}

test_device!(nothing_has_a_gradient);
test_device!(kinks);
