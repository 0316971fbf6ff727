//! Wrong input ends in an error that names the op and what was found, on every device alike.

use super::common::{assert_fails, data};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::{ops, rotary_emb};

fn wrong_shapes(dev: &Device) -> Result<()> {
    let t = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, four) = (t(&[2, 3])?, t(&[4])?);
    assert_fails(
        ops::rms_norm(&xs, &four, 1e-5),
        &["rms-norm", "[2, 3]", "[4]"],
    );
    assert_fails(
        ops::rms_norm(&xs, &t(&[1, 3])?, 1e-5),
        &["rms-norm", "[1, 3]"],
    );
    let three = t(&[3])?;
    let result = ops::layer_norm(&xs, &three, &four, 1e-5);
    assert_fails(result, &["layer-norm", "[2, 3]", "[4]"]);
    assert_fails(ops::swiglu(&xs), &["swiglu", "[2, 3]", "odd"]);
    let scalar = Tensor::new(1f32, dev)?;
    assert_fails(ops::softmax_last_dim(&scalar), &["softmax-last-dim"]);
    assert_fails(ops::softmax(&xs, 2), &["softmax", "[2, 3]"]);
    assert_fails(ops::dropout(&xs, 1.), &["dropout", "1"]);
    Ok(())
}

fn wrong_angles(dev: &Device) -> Result<()> {
    let t = |dims: &[usize]| data(dims, DType::F32, dev);
    let xs = t(&[2, 3, 5, 8])?;
    let good = t(&[5, 4])?;
    for bad in [&[4, 4][..], &[5, 8], &[3, 5, 4], &[5], &[2, 4, 4]] {
        let bad = t(bad)?;
        let shape = format!("{:?}", bad.dims());
        let result = rotary_emb::rope(&xs, &bad, &good);
        assert_fails(result, &["rope", "[2, 3, 5, 8]", &shape]);
        assert_fails(rotary_emb::rope_i(&xs, &good, &bad), &["rope-i", &shape]);
    }
    // Five positions are too few for rope_thd only if the sequence, its second dimension, is longer.
    rotary_emb::rope_thd(&xs, &good, &good)?;
    let mixed = rotary_emb::rope(&xs, &t(&[2, 5, 4])?, &good);
    assert_fails(mixed, &["rope", "[2, 5, 4]", "[5, 4]"]);
    assert_fails(
        rotary_emb::rope(&t(&[1, 1, 1, 3])?, &good, &good),
        &["rope", "even"],
    );
    assert_fails(
        rotary_emb::rope(&good, &good, &good),
        &["rope", "4 dimensions"],
    );
    Ok(())
}

fn wrong_attention(dev: &Device) -> Result<()> {
    let t = |dims: &[usize]| data(dims, DType::F32, dev);
    let q = t(&[1, 4, 3, 8])?;
    let k = t(&[1, 2, 5, 8])?;
    let sdpa = |q: &Tensor, k: &Tensor, v: &Tensor| ops::sdpa(q, k, v, None, true, 1., 1.);
    let narrow = t(&[1, 2, 5, 6])?;
    assert_fails(
        sdpa(&q, &narrow, &k),
        &["sdpa", "[1, 4, 3, 8]", "[1, 2, 5, 6]"],
    );
    assert_fails(sdpa(&q, &k, &t(&[1, 2, 4, 8])?), &["sdpa", "[1, 2, 4, 8]"]);
    let three = t(&[1, 3, 5, 8])?;
    assert_fails(
        sdpa(&q, &three, &three),
        &["sdpa", "4 query heads", "3 key heads"],
    );
    let two = k.narrow(2, 0, 2)?;
    assert_fails(sdpa(&q, &two, &two), &["sdpa", "3 queries", "2"]);
    let none = t(&[1, 2, 0, 8])?;
    assert_fails(sdpa(&q, &none, &none), &["sdpa", "no keys"]);
    assert_fails(
        ops::sdpa(&q, &k, &k, None, true, 1., 0.),
        &["sdpa", "softcapping", "0"],
    );
    let mask = t(&[3, 4])?;
    assert_fails(
        ops::sdpa(&q, &k, &k, Some(&mask), true, 1., 1.),
        &["sdpa", "[3, 4]"],
    );
    let mask = t(&[2, 1, 1, 1])?;
    assert_fails(
        ops::sdpa(&q, &k, &k, Some(&mask), true, 1., 1.),
        &["sdpa", "[2, 1, 1, 1]"],
    );
    assert_fails(sdpa(&q.squeeze(0)?, &k, &k), &["[4, 3, 8]"]);
    Ok(())
}

fn wrong_options_of_attention(dev: &Device) -> Result<()> {
    let q = data(&[2, 4, 3, 8], DType::F32, dev)?;
    let k = data(&[2, 2, 5, 8], DType::F32, dev)?;
    let fails = |options: ops::SdpaOptions<'_>, parts: &[&str]| {
        assert_fails(ops::sdpa_with(&q, &k, &k, &options), parts);
        assert_fails(ops::sdpa_with_slow(&q, &k, &k, &options), parts);
    };
    let default = ops::SdpaOptions::default();
    let none = ops::SdpaOptions {
        window: Some(0),
        ..default
    };
    fails(none, &["sdpa", "window is 0"]);
    let capped = ops::SdpaOptions {
        softcap: Some(f32::NAN),
        ..default
    };
    fails(capped, &["sdpa", "softcapping", "NaN"]);
    let two = data(&[2], DType::F32, dev)?;
    let slopes = ops::SdpaOptions {
        slopes: Some(&two),
        ..default
    };
    fails(slopes, &["sdpa", "slopes", "[2]", "[4]"]);
    let sinks = ops::SdpaOptions {
        sinks: Some(&two),
        ..default
    };
    fails(sinks, &["sdpa", "sinks", "[2]", "[4]"]);
    let starts = ops::SdpaOptions {
        starts: Some(&two),
        ..default
    };
    fails(starts, &["sdpa", "starts", "f32", "u32"]);
    let four = Tensor::zeros(4, DType::U32, dev)?;
    let lens = ops::SdpaOptions {
        lens: Some(&four),
        ..default
    };
    fails(lens, &["sdpa", "lens", "[4]", "[2]"]);
    let ints = Tensor::zeros((3, 5), DType::U32, dev)?;
    let bias = ops::SdpaOptions {
        bias: Some(&ints),
        ..default
    };
    fails(bias, &["sdpa-mask", "U32"]);
    // More queries than keys, which positions allow.
    let few = k.narrow(2, 0, 2)?;
    let causal = ops::SdpaOptions {
        causal: true,
        ..default
    };
    assert_fails(
        ops::sdpa_with(&q, &few, &few, &causal),
        &["sdpa", "3 queries", "2", "starts"],
    );
    let starts = Tensor::zeros(2, DType::U32, dev)?;
    let causal = ops::SdpaOptions {
        starts: Some(&starts),
        ..causal
    };
    ops::sdpa_with(&q, &few, &few, &causal)?;
    Ok(())
}

fn wrong_dtypes(dev: &Device) -> Result<()> {
    let xs = data(&[2, 4], DType::F32, dev)?;
    let ints = Tensor::zeros((2, 4), DType::U32, dev)?;
    assert_fails(ops::softmax_last_dim(&ints), &["softmax-last-dim", "U32"]);
    assert_fails(ops::sigmoid(&ints), &["sigmoid", "U32"]);
    let half = data(&[4], DType::F16, dev)?;
    assert_fails(ops::rms_norm(&xs, &half, 1e-5), &["rms-norm", "F32", "F16"]);
    let x = data(&[1, 1, 1, 8], DType::F16, dev)?;
    let angles = data(&[1, 4], DType::F32, dev)?;
    assert_fails(
        rotary_emb::rope(&x, &angles, &angles),
        &["rope", "F16", "F32"],
    );
    let four = data(&[1, 1, 1, 8], DType::F32, dev)?;
    assert_fails(
        ops::sdpa(&x, &four, &four, None, false, 1., 1.),
        &["sdpa", "F16", "F32"],
    );
    Ok(())
}

test_device!(wrong_shapes);
test_device!(wrong_angles);
test_device!(wrong_attention);
test_device!(wrong_options_of_attention);
test_device!(wrong_dtypes);
