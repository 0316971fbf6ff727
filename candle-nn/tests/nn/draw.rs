//! Tokens drawn on a device: by their shares, of those that the settings keep, and as on the CPU.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::sampling::{changed, draw, draw_row, Change, Changes, Draw};

fn settings(temperature: f32, top_k: usize, top_p: f32, min_p: f32) -> Draw {
    Draw {
        temperature,
        top_k: (top_k > 0).then_some(top_k),
        top_p: (top_p < 1.).then_some(top_p),
        min_p: (min_p > 0.).then_some(min_p),
        seed: 0xfeed_5eed_0123,
        position: 0,
    }
}

/// The probability of each token by the rule in words, in f64 and without any bound or search.
fn shares(logits: &[f32], with: &Draw) -> Vec<f64> {
    let temperature = f64::from(with.temperature);
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|x| ((f64::from(*x) - f64::from(most)) / temperature).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    let stays = |weight: f64| {
        let heavier = weights.iter().filter(|other| **other > weight);
        let share = heavier.clone().sum::<f64>() / sum;
        with.top_k.is_none_or(|k| heavier.count() < k)
            && with.top_p.is_none_or(|p| share < f64::from(p))
            && with.min_p.is_none_or(|p| weight >= f64::from(p))
    };
    let kept: Vec<f64> = weights
        .iter()
        .map(|weight| if stays(*weight) { *weight } else { 0. })
        .collect();
    let sum: f64 = kept.iter().sum();
    kept.iter().map(|weight| weight / sum).collect()
}

/// Numbers without a pattern, from 0 to 30.
fn logits(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut unit = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / 4_294_967_296.
    };
    (0..len).map(|_| 10. * (unit() + unit() + unit())).collect()
}

/// The tokens of `count` draws from the same logits, at one position after another.
fn drawn(row: &[f32], with: Draw, count: usize, dev: &Device) -> Result<Vec<u32>> {
    let logits = Tensor::new(row, dev)?.broadcast_as((count, row.len()))?;
    let at = |position| Draw { position, ..with };
    let draws: Vec<Draw> = (0..count as u32).map(at).collect();
    let both = draw(&logits.contiguous()?, &draws)?.to_vec2::<u32>()?;
    assert_eq!(both[1], vec![0; count]);
    Ok(both[0].clone())
}

fn tokens_come_by_their_shares(dev: &Device) -> Result<()> {
    let row = [1.5, f32::NEG_INFINITY, 0.2, 1.5, -0.7, 2.1, -4., 0.9];
    for with in [
        settings(1., 0, 1., 0.),
        settings(0.6, 0, 1., 0.),
        settings(1.3, 4, 1., 0.),
        settings(1.3, 3, 1., 0.),
        settings(0.9, 0, 0.7, 0.),
        settings(1., 0, 1., 0.3),
        settings(1.1, 5, 0.9, 0.2),
    ] {
        // A software adapter takes a millisecond a draw, and draws what the CPU draws, which the next tests hold.
        let count = if dev.is_software_gpu() { 400 } else { 2000 };
        let shares = shares(&row, &with);
        let mut counts = vec![0f64; row.len()];
        for token in drawn(&row, with, count, dev)? {
            counts[token as usize] += 1.;
        }
        // Chi-square with at most six degrees of freedom: above 35 in less than 1 of 100,000 cases.
        let mut distance = 0.;
        for (token, (found, share)) in counts.iter().zip(&shares).enumerate() {
            let expected = share * count as f64;
            assert!(
                expected > 0. || *found == 0.,
                "{with:?}: {token} is not kept"
            );
            if expected > 0. {
                distance += (found - expected).powi(2) / expected;
            }
        }
        assert!(distance < 35., "{with:?}: {counts:?} for {shares:?}");
    }
    Ok(())
}

/// At a high temperature all tokens that are kept are drawn, and no other.
fn settings_keep_what_they_say(dev: &Device) -> Result<()> {
    for (len, with) in [
        (300, settings(40., 37, 1., 0.)),
        (300, settings(40., 1, 1., 0.)),
        (90, settings(40., 90, 1., 0.)),
        (90, settings(40., 0, 0.5, 0.)),
        (90, settings(40., 60, 0.31, 0.)),
        (90, settings(40., 0, 1., 0.85)),
        (3, settings(40., 7, 0.0001, 0.)),
    ] {
        let row = logits(len, len as u32);
        let shares = shares(&row, &with);
        let kept: Vec<bool> = shares.iter().map(|share| *share > 0.).collect();
        // A software adapter takes some milliseconds a draw; forty tokens are all found in 500.
        let few = dev.is_software_gpu();
        if few && kept.iter().filter(|kept| **kept).count() > 40 {
            continue;
        }
        let mut found = vec![false; len];
        for token in drawn(&row, with, if few { 500 } else { 1500 }, dev)? {
            found[token as usize] = true;
        }
        assert_eq!(found, kept, "{with:?}");
    }
    Ok(())
}

fn tokens_are_those_of_the_cpu(dev: &Device) -> Result<()> {
    let kinds = [
        Draw::GREEDY,
        settings(0.8, 0, 1., 0.),
        settings(0.8, 40, 1., 0.),
        settings(0.8, 0, 0.95, 0.),
        settings(1.5, 50, 0.9, 0.01),
        settings(0.01, 0, 0.999, 0.),
    ];
    let mut differ = 0;
    let mut count = 0;
    for len in [1, 2, 3, 4, 5, 255, 256, 257, 1025, 4099, 50_257] {
        let mut rows = Vec::new();
        let mut draws = Vec::new();
        for seed in 0..3 {
            for with in kinds {
                draws.push(Draw {
                    seed,
                    position: len as u32,
                    ..with
                });
                rows.extend(logits(len, draws.len() as u32));
            }
        }
        let on_device = Tensor::from_vec(rows.clone(), (draws.len(), len), dev)?;
        let both = draw(&on_device, &draws)?.to_vec2::<u32>()?;
        for ((token, row), with) in both[0].iter().zip(rows.chunks(len)).zip(&draws) {
            differ += usize::from(*token != draw_row(row, with)?);
            count += 1;
        }
    }
    // A weight that is rounded otherwise can change which of two tokens that are as good as equal is drawn.
    assert!(differ <= 1, "{differ} of {count} differ");
    Ok(())
}

/// The maximum number of logits of a device, the greatest at the end; more are an error or are drawn.
fn long_rows(dev: &Device) -> Result<()> {
    let len = 1 << 19;
    let mut row = logits(len, 3);
    let end = len - 300;
    row[end..].iter_mut().for_each(|logit| *logit += 40.);
    let kinds = [settings(0.8, 40, 1., 0.), settings(0.8, 0, 0.95, 0.)];
    for with in kinds {
        let on_device = Tensor::new(&row[..], dev)?.unsqueeze(0)?;
        let both = draw(&on_device, &[with])?.to_vec2::<u32>()?;
        assert_eq!((both[0][0], both[1][0]), (draw_row(&row, &with)?, 0));
        assert!(both[0][0] as usize >= end, "{both:?}");
    }
    row.push(99.);
    match draw(&Tensor::new(&row[..], dev)?.unsqueeze(0)?, &[kinds[0]]) {
        Ok(both) => assert_eq!(both.to_vec2::<u32>()?, [[len as u32], [0]]),
        Err(error) => assert!(error.to_string().contains("up to 524288"), "{error}"),
    }
    Ok(())
}

fn unusable_logits_are_counted(dev: &Device) -> Result<()> {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [
        [0., 1., -inf, 5.],
        [0., nan, inf, 5.],
        [-inf, -inf, -inf, -inf],
        [inf, 1., 2., 3.],
        [-1e30, -2e30, -3e30, -inf],
    ];
    for temperature in [0., 0.5] {
        let draws = [settings(temperature, 2, 0.9, 0.1); 5];
        let both = draw(&Tensor::new(&rows, dev)?, &draws)?.to_vec2::<u32>()?;
        assert_eq!(both, [[3, 0, 0, 0, 0], [0, 2, 4, 1, 0]]);
        for row in &rows[1..4] {
            let error = draw_row(row, &draws[0]).unwrap_err().to_string();
            assert!(error.contains("of 4 logits"), "{error}");
        }
    }
    Ok(())
}

fn any_layout_and_float(dev: &Device) -> Result<()> {
    let values = logits(6 * 9, 5);
    let whole = Tensor::from_vec(values.clone(), (9, 6), dev)?;
    let draws = [settings(0.7, 5, 0.9, 0.); 4];
    let view = whole.t()?.narrow(0, 1, 4)?;
    let expected = draw(&view.to_device(&Device::Cpu)?, &draws)?.to_vec2::<u32>()?;
    assert_eq!(draw(&view, &draws)?.to_vec2::<u32>()?, expected);
    let offset = whole.narrow(0, 3, 4)?;
    let expected = draw(&offset.to_device(&Device::Cpu)?, &draws)?.to_vec2::<u32>()?;
    assert_eq!(draw(&offset, &draws)?.to_vec2::<u32>()?, expected);
    let half = whole.to_dtype(DType::F16)?.narrow(0, 0, 4)?;
    let expected = draw(&half.to_device(&Device::Cpu)?, &draws)?.to_vec2::<u32>()?;
    assert_eq!(draw(&half, &draws)?.to_vec2::<u32>()?, expected);
    let none = draw(&whole.narrow(0, 0, 0)?, &[])?;
    assert_eq!(none.dims(), [2, 0]);
    Ok(())
}

#[test]
fn settings_that_name_no_distribution() {
    let row = [0f32, 1., 2.];
    for (with, name) in [
        (settings(-1., 0, 1., 0.), "temperature -1"),
        (settings(f32::NAN, 0, 1., 0.), "temperature NaN"),
        (settings(1e-40, 0, 1., 0.), "temperature 0.0"),
        (
            Draw {
                top_k: Some(0),
                ..Draw::GREEDY
            },
            "top_k 0",
        ),
        (
            Draw {
                top_p: Some(0.),
                ..Draw::GREEDY
            },
            "top_p",
        ),
        (
            Draw {
                min_p: Some(1.5),
                ..Draw::GREEDY
            },
            "min_p",
        ),
    ] {
        let error = draw_row(&row, &with).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    assert!(draw_row(&[], &Draw::GREEDY).is_err());
    let logits = Tensor::new(&[row, row], &Device::Cpu).unwrap();
    let error = draw(&logits, &[Draw::GREEDY]).unwrap_err().to_string();
    assert!(error.contains("[2, 3] for 1 settings"), "{error}");
    assert!(draw(&logits.to_dtype(DType::U32).unwrap(), &[Draw::GREEDY; 2]).is_err());
}

test_device!(tokens_come_by_their_shares);
test_device!(settings_keep_what_they_say);
test_device!(tokens_are_those_of_the_cpu);
test_device!(long_rows);
test_device!(unusable_logits_are_counted);
test_device!(any_layout_and_float);

/// Changes on a device are those of a row on the host: several rows, each with its own, on any layout and float.
fn changes_of_rows(dev: &Device) -> Result<()> {
    const VOCAB: usize = 301;
    let change = |token, offset, penalty| Change {
        token,
        offset,
        penalty,
    };
    let even = (0..VOCAB).map(|i| u8::from(i % 2 == 0)).collect();
    let rows = [
        Changes::default(),
        Changes {
            tokens: vec![
                change(300, -40., 1.),
                change(0, 0., 1.3),
                change(7, 2.5, 0.5),
            ],
            allowed: None,
        },
        Changes {
            tokens: vec![change(4, -40., 1.1), change(301, 1., 1.)],
            allowed: Some(even),
        },
        Changes {
            tokens: Vec::new(),
            allowed: Some(vec![0; VOCAB]),
        },
    ];
    let numbers: Vec<f32> = logits(rows.len() * VOCAB, 3)
        .iter()
        .map(|x| x - 15.)
        .collect();
    let mut wanted: Vec<Vec<f32>> = numbers.chunks(VOCAB).map(<[f32]>::to_vec).collect();
    for (row, changes) in wanted.iter_mut().zip(&rows) {
        changes.apply(row);
    }
    assert_eq!(wanted[1][300], numbers[VOCAB + 300] - 40.);
    assert!(wanted[3].iter().all(|x| *x == f32::NEG_INFINITY));
    let plain = Tensor::from_vec(numbers, (rows.len(), VOCAB), dev)?;
    let transposed = plain.t()?.contiguous()?.t()?;
    for logits in [&plain, &transposed] {
        let found = changed(logits, &rows)?.to_vec2::<f32>()?;
        for (found, wanted) in found.iter().flatten().zip(wanted.iter().flatten()) {
            let close = (found - wanted).abs() <= 1e-5 * wanted.abs();
            assert!(close || found == wanted, "{found} for {wanted}");
        }
    }
    // What came in stays.
    assert_eq!(plain.to_vec2::<f32>()?, transposed.to_vec2::<f32>()?);
    let halves = changed(&plain.to_dtype(DType::F16)?, &rows)?;
    assert_eq!(halves.dtype(), DType::F32);
    let err = changed(&plain, &rows[..3]).unwrap_err().to_string();
    assert!(err.contains("3 rows of changes"), "{err}");
    Ok(())
}

test_device!(changes_of_rows);
