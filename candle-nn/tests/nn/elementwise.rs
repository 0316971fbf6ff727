use super::common::{assert_close, assert_values, data, dtypes, layouts, reference};
use candle_core::{test_device, DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::{ops, Activation, PReLU};

const SHAPES: [&[usize]; 7] = [
    &[1],
    &[2, 7],
    &[2, 3, 33],
    &[3, 257],
    &[40, 1025],
    &[0, 4],
    &[3, 0],
];

fn sigmoid_in_every_layout(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for dims in SHAPES {
            for (layout, xs) in layouts(dims, dtype, dev)? {
                let case = format!("{dtype:?} {dims:?} {layout}");
                let expected = ((reference(&xs)?.neg()?.exp()? + 1.)?).recip()?;
                assert_close(&case, &ops::sigmoid(&xs)?, &expected, tolerance);
            }
        }
    }
    let xs = Tensor::new(&[-1000f32, 1000., f32::NAN], dev)?;
    assert_values("ends", &ops::sigmoid(&xs)?, &[0., 1., f64::NAN], 0.);
    Ok(())
}

fn activation_values(dev: &Device) -> Result<()> {
    // Each by its formula in Python's float64 (math.erf, math.tanh, math.log1p), at these points.
    let xs = Tensor::new(&[-2f32, -0.5, 0., 0.5, 3.5], dev)?;
    let silu = [
        -0.23840584404423515,
        -0.1887703343990727,
        0.,
        0.3112296656009273,
        3.3974071923702525,
    ];
    let sigmoid = [
        0.11920292202211755,
        0.3775406687981454,
        0.5,
        0.6224593312018546,
        0.9706877692486436,
    ];
    let hard_sigmoid = [
        0.16666666666666666,
        0.4166666666666667,
        0.5,
        0.5833333333333334,
        1.,
    ];
    let mish = [
        -0.2525014826957089,
        -0.22074377465173,
        0.,
        0.3752452113048951,
        3.4939907151175196,
    ];
    let gelu = [
        -0.04550026389635842,
        -0.15426876936299344,
        0.,
        0.34573123063700656,
        3.4991857982233756,
    ];
    let gelu_tanh = [
        -0.04540230591222494,
        -0.15428599017485606,
        0.,
        0.34571400982514394,
        3.499383802344626,
    ];
    let hard_swish = [
        -0.3333333333333333,
        -0.20833333333333334,
        0.,
        0.2916666666666667,
        3.5,
    ];
    let elu = [-0.2593994150290162, -0.11804080208620997, 0., 0.5, 3.5];
    let cases = [
        (Activation::Silu, silu),
        (Activation::Swish, silu),
        (Activation::Sigmoid, sigmoid),
        (Activation::HardSigmoid, hard_sigmoid),
        (Activation::Mish, mish),
        (Activation::Gelu, gelu),
        (Activation::NewGelu, gelu_tanh),
        (Activation::GeluPytorchTanh, gelu_tanh),
        (Activation::HardSwish, hard_swish),
        (Activation::Elu(0.3), elu),
        (Activation::Relu, [0., 0., 0., 0.5, 3.5]),
        (Activation::Relu2, [0., 0., 0., 0.25, 12.25]),
        (Activation::LeakyRelu(0.1), [-0.2, -0.05, 0., 0.5, 3.5]),
    ];
    for (activation, expected) in cases {
        let got = activation.forward(&xs)?;
        assert_values(&format!("{activation:?}"), &got, &expected, 2e-6);
    }
    let relu6 = Activation::Relu6.forward(&(&xs * 2.)?)?;
    assert_values("Relu6", &relu6, &[0., 0., 0., 1., 6.], 1e-6);
    let selu = [
        -1.5201620943888607,
        -0.6917561973015314,
        0.,
        0.52535,
        3.67745,
    ];
    assert_values("selu", &ops::selu(&xs, 1.67326, 1.0507)?, &selu, 1e-6);
    Ok(())
}

fn swiglu_halves(dev: &Device) -> Result<()> {
    // gate / (1 + exp(-gate)) * up in Python's float64.
    let xs = Tensor::new(&[[-3f32, -0.5, 0., 2.5, 2., -1., 5., 0.5]], dev)?;
    let expected = [
        -0.2845552390654007,
        0.1887703343990727,
        0.,
        1.1551772749734457,
    ];
    assert_values("op", &ops::swiglu(&xs)?, &expected, 1e-6);
    let layer = Activation::Swiglu.forward(&xs)?;
    assert_values("layer", &layer, &expected, 1e-6);
    Ok(())
}

fn prelu_slopes(dev: &Device) -> Result<()> {
    let xs = Tensor::new(&[[[-1f32, 2.], [-3., 4.]]], dev)?;
    let scalar = PReLU::new(Tensor::new(&[0.25f32], dev)?, true);
    assert_values("one", &scalar.forward(&xs)?, &[-0.25, 2., -0.75, 4.], 0.);
    let channels = PReLU::new(Tensor::new(&[0.5f32, 0.25], dev)?, false);
    assert_values(
        "channels",
        &channels.forward(&xs)?,
        &[-0.5, 2., -0.75, 4.],
        0.,
    );
    Ok(())
}

fn dropout_keeps_the_mean(dev: &Device) -> Result<()> {
    let ones = Tensor::ones((100, 100), DType::F32, dev)?;
    let layer = candle_nn::Dropout::new(0.25);
    let dropped = layer.forward_t(&ones, true)?.to_device(&Device::Cpu)?;
    let values = dropped.flatten_all()?.to_vec1::<f32>()?;
    let kept = values.iter().filter(|&&x| x != 0.).count();
    assert!(values
        .iter()
        .all(|&x| x == 0. || (x - 4. / 3.).abs() < 1e-6));
    // 10,000 draws with a chance of 0.75: the deviation is 43, so 300 is far outside of chance.
    assert!(kept.abs_diff(7500) < 300, "{kept} of 10000 kept");
    assert_close("not training", &layer.forward_t(&ones, false)?, &ones, 0.);
    let identity = ops::Identity::new().forward(&ones)?;
    assert_close("identity", &identity, &ones, 0.);
    Ok(())
}

fn gumbel_draws_by_weight(dev: &Device) -> Result<()> {
    // Probabilities 0.7, 0.2, 0.1, drawn 3,000 times at once: the deviation of the first count is 25.
    let row = data(&[1], DType::F32, dev)?.zeros_like()?;
    let logits: Vec<f32> = [0.7f32, 0.2, 0.1].iter().map(|p| p.ln()).collect();
    let logits = Tensor::from_vec(logits, (1, 3), dev)?.broadcast_add(&row)?;
    let logits = logits.broadcast_as((3000, 3))?.contiguous()?;
    let drawn = candle_nn::sampling::gumbel_softmax(&logits, 1., 1)?;
    let drawn = drawn.to_device(&Device::Cpu)?.to_vec1::<u32>()?;
    let zeros = drawn.iter().filter(|&&i| i == 0).count();
    assert!(zeros.abs_diff(2100) < 200, "{zeros} of 3000");
    let greedy = candle_nn::sampling::gumbel_softmax(&logits, 0., 1)?;
    assert_values("greedy", &greedy.to_dtype(DType::F32)?, &[0.; 3000], 0.);
    Ok(())
}

/// The names that configuration files use.
#[test]
fn activation_names() {
    use serde::{de::value::Error, de::IntoDeserializer, Deserialize};
    let parse = |name: &str| -> std::result::Result<Activation, Error> {
        Activation::deserialize(name.into_deserializer())
    };
    for (name, activation) in [
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::NewGelu),
        ("gelu_pytorch_tanh", Activation::GeluPytorchTanh),
        ("relu", Activation::Relu),
        ("relu2", Activation::Relu2),
        ("silu", Activation::Silu),
        ("swish", Activation::Swish),
        ("hardswish", Activation::HardSwish),
    ] {
        assert_eq!(parse(name), Ok(activation));
    }
    let message = parse("sine").unwrap_err().to_string();
    assert!(
        message.contains("sine") && message.contains("silu"),
        "{message}"
    );
    assert_eq!(Activation::default(), Activation::Gelu);
}

test_device!(sigmoid_in_every_layout);
test_device!(activation_values);
test_device!(swiglu_halves);
test_device!(prelu_slopes);
test_device!(dropout_keeps_the_mean);
test_device!(gumbel_draws_by_weight);
