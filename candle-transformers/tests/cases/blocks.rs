use candle_core::{test_device, DType, Device, Result, Tensor, Var};
use candle_nn::Linear;
use candle_transformers::blocks::{
    GrowingKvCache, MergedLinear, Rotary, RotaryPairs, RotaryTables,
};

use super::support::{assert_close, Numbers};

fn merged_linear(device: &Device) -> Result<()> {
    let mut numbers = Numbers::new(3);
    let xs = numbers.tensor(&[2, 5, 8], 1., device)?;
    for with_bias in [false, true] {
        let mut parts = Vec::new();
        for out_dim in [6, 1, 3] {
            let weight = numbers.tensor(&[out_dim, 8], 1., device)?;
            let bias = if with_bias {
                Some(numbers.tensor(&[out_dim], 1., device)?)
            } else {
                None
            };
            parts.push((weight, bias));
        }
        let linear = |i: usize| Linear::new(parts[i].0.clone(), parts[i].1.clone());
        let variable = |i: usize| -> Result<Linear> {
            let weight = Var::from_tensor(&parts[i].0)?.as_tensor().clone();
            Ok(Linear::new(weight, parts[i].1.clone()))
        };
        let merged = MergedLinear::new([linear(0), linear(1), linear(2)])?;
        assert!(merged.is_merged());
        // One variable is enough: its training has to be seen.
        let separate = MergedLinear::new([linear(0), variable(1)?, linear(2)])?;
        assert!(!separate.is_merged());
        let from_merged = merged.forward(&xs)?;
        let from_separate = separate.forward(&xs)?;
        for i in 0..3 {
            let expected = candle_core::Module::forward(&linear(i), &xs)?;
            assert_close(&from_merged[i], &expected, 1e-6);
            assert_close(&from_separate[i], &expected, 1e-6);
        }
        let joined = Tensor::cat(&from_separate, 2)?;
        assert_close(&merged.forward_joined(&xs)?, &joined, 1e-6);
        assert_close(&separate.forward_joined(&xs)?, &joined, 1e-6);
    }
    Ok(())
}
test_device!(merged_linear);

#[test]
fn merged_linear_that_cannot_be_merged() -> Result<()> {
    let device = Device::Cpu;
    let weight = |out_dim: usize, in_dim: usize| {
        Tensor::ones((out_dim, in_dim), DType::F32, &device).map(|w| Linear::new(w, None))
    };
    let biased = Linear::new(
        Tensor::ones((2, 4), DType::F32, &device)?,
        Some(Tensor::ones(2, DType::F32, &device)?),
    );
    assert!(!MergedLinear::new([weight(2, 4)?, biased])?.is_merged());
    let error = MergedLinear::new([weight(2, 4)?, weight(2, 5)?]).unwrap_err();
    assert!(error.to_string().contains("[4, 5]"), "{error}");
    Ok(())
}

fn kv_cache_grows_and_keeps_what_it_holds(device: &Device) -> Result<()> {
    let mut numbers = Numbers::new(11);
    // A strided source, as attention appends it.
    let all = numbers
        .tensor(&[1, 1300, 4, 3], 1., device)?
        .transpose(1, 2)?;
    let mut cache = GrowingKvCache::new(1290);
    assert!(cache.is_empty());
    let mut capacities = Vec::new();
    let mut len = 0;
    for piece in [1, 511, 1, 500, 200, 80, 7] {
        let held = cache.append(&all.narrow(2, len, piece)?)?;
        len += piece;
        assert_eq!(cache.len(), len);
        assert_close(&held, &all.narrow(2, 0, len)?, 0.);
        capacities.push(cache.capacity());
    }
    // Doubled, stopped at the limit, and past it just enough.
    assert_eq!(capacities, [512, 512, 1024, 1024, 1290, 1293, 1300]);
    cache.reset();
    assert!(cache.is_empty());
    let held = cache.append(&all.repeat((2, 1, 1, 1))?)?;
    assert_eq!(held.dims(), &[2, 4, 1300, 3]);
    Ok(())
}
test_device!(kv_cache_grows_and_keeps_what_it_holds);

#[test]
fn kv_cache_survives_a_bad_append() -> Result<()> {
    let device = Device::Cpu;
    let ones = |shape: (usize, usize, usize, usize)| Tensor::ones(shape, DType::F32, &device);
    let mut cache = GrowingKvCache::new(16);
    cache.append(&ones((1, 2, 3, 4))?)?;
    assert!(cache.append(&ones((2, 2, 1, 4))?).is_err());
    assert_eq!(cache.len(), 3);
    Ok(())
}

fn rotary_rows(device: &Device) -> Result<()> {
    let frequencies = [1f32, 0.25];
    let rotary = Rotary {
        frequencies: frequencies.to_vec(),
        ..Rotary::new(RotaryPairs::Halves, 1., 0)
    };
    let tables = RotaryTables::new(&rotary, 2000, DType::F32, device);
    let (cos, sin) = tables.rows(1997, 3)?;
    let angles = |f: fn(f32) -> f32| {
        let rows = [1997f32, 1998., 1999.].map(|position| frequencies.map(|w| f(position * w)));
        Tensor::new(&rows, device)
    };
    assert_close(&cos, &angles(f32::cos)?, 1e-6);
    assert_close(&sin, &angles(f32::sin)?, 1e-6);
    let error = tables.rows(1998, 3).unwrap_err().to_string();
    assert!(error.contains("2000") && error.contains("2001"), "{error}");
    Ok(())
}
test_device!(rotary_rows);
