use std::collections::BTreeSet;

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::generation::{LogitsProcessor, NextToken, Sampling};

use super::support::Numbers;

/// Ids seen in `count` draws.
fn draws(sampling: Sampling, seed: u64, logits: &Tensor, count: usize) -> Result<Vec<u32>> {
    let mut processor = LogitsProcessor::from_sampling(seed, sampling);
    (0..count).map(|_| processor.sample(logits)).collect()
}

fn all_samplings(temperature: f64) -> [Sampling; 5] {
    [
        Sampling::All { temperature },
        Sampling::TopK { k: 5, temperature },
        Sampling::TopP {
            p: 0.8,
            temperature,
        },
        Sampling::TopKThenTopP {
            k: 9,
            p: 0.7,
            temperature,
        },
        Sampling::GumbelSoftmax { temperature },
    ]
}

fn same_seed_same_tokens(device: &Device) -> Result<()> {
    let logits = Numbers::new(5).tensor(&[50], 3., device)?;
    for sampling in all_samplings(1.) {
        let first = draws(sampling.clone(), 42, &logits, 40)?;
        assert_eq!(first, draws(sampling.clone(), 42, &logits, 40)?);
        assert_ne!(first, draws(sampling, 43, &logits, 40)?);
    }
    Ok(())
}
test_device!(same_seed_same_tokens);

fn greedy_takes_the_highest(device: &Device) -> Result<()> {
    let logits = Tensor::new(&[0.5f32, -1., 7., 6.9, f32::NEG_INFINITY], device)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let logits = logits.to_dtype(dtype)?;
        assert_eq!(draws(Sampling::ArgMax, 0, &logits, 2)?, [2, 2]);
    }
    for temperature in [None, Some(0.), Some(-1.), Some(1e-9)] {
        let mut processor = LogitsProcessor::new(0, temperature, Some(0.9));
        assert_eq!(processor.sample(&logits)?, 2);
    }
    for sampling in all_samplings(0.) {
        assert_eq!(draws(sampling, 0, &logits, 2)?, [2, 2]);
    }
    // Cold, but not greedy by name: the spike is so high that nothing else is drawn.
    for sampling in all_samplings(1e-4) {
        assert_eq!(draws(sampling, 0, &logits, 5)?, [2; 5]);
    }
    Ok(())
}
test_device!(greedy_takes_the_highest);

/// 1,000 draws from probabilities known by construction: the support is exact, the shares within four standard
/// deviations of a binomial (0.063 at most).
#[test]
fn shares_and_support() -> Result<()> {
    let probs = [0.4f32, 0.05, 0.3, 0.15, 0.1];
    let logits = Tensor::new(&probs.map(f32::ln), &Device::Cpu)?;
    let t = 1.;
    let cases = [
        (Sampling::All { temperature: t }, vec![0, 1, 2, 3, 4]),
        (
            Sampling::GumbelSoftmax { temperature: t },
            vec![0, 1, 2, 3, 4],
        ),
        (
            Sampling::TopK {
                k: 3,
                temperature: t,
            },
            vec![0, 2, 3],
        ),
        (
            Sampling::TopK {
                k: 1,
                temperature: t,
            },
            vec![0],
        ),
        (
            Sampling::TopK {
                k: 99,
                temperature: t,
            },
            vec![0, 1, 2, 3, 4],
        ),
        (
            Sampling::TopP {
                p: 0.6,
                temperature: t,
            },
            vec![0, 2],
        ),
        (
            Sampling::TopP {
                p: 0.75,
                temperature: t,
            },
            vec![0, 2, 3],
        ),
        (
            Sampling::TopP {
                p: 0.01,
                temperature: t,
            },
            vec![0],
        ),
        (
            Sampling::TopP {
                p: 0.,
                temperature: t,
            },
            vec![0, 1, 2, 3, 4],
        ),
        (
            Sampling::TopP {
                p: -1.,
                temperature: t,
            },
            vec![0, 1, 2, 3, 4],
        ),
        (
            Sampling::TopP {
                p: 1.,
                temperature: t,
            },
            vec![0, 1, 2, 3, 4],
        ),
        (
            Sampling::TopP {
                p: 2.,
                temperature: t,
            },
            vec![0, 1, 2, 3, 4],
        ),
        (
            Sampling::TopKThenTopP {
                k: 3,
                p: 0.6,
                temperature: t,
            },
            vec![0, 2],
        ),
        (
            Sampling::TopKThenTopP {
                k: 2,
                p: 0.95,
                temperature: t,
            },
            vec![0, 2],
        ),
    ];
    for (sampling, support) in cases {
        let ids = draws(sampling.clone(), 7, &logits, 1000)?;
        let total: f32 = support.iter().map(|&id| probs[id]).sum();
        for (id, prob) in probs.iter().enumerate() {
            let share = ids.iter().filter(|&&i| i as usize == id).count() as f32 / 1000.;
            if support.contains(&id) {
                let expected = prob / total;
                assert!(
                    (share - expected).abs() < 0.064,
                    "{sampling:?}: {id} {share} {expected}"
                );
            } else {
                assert_eq!(share, 0., "{sampling:?}: {id}");
            }
        }
    }
    Ok(())
}

/// As many of several equally probable tokens stay as were asked for, the same ones at each draw.
#[test]
fn ties_are_settled_the_same_way() -> Result<()> {
    let logits = Tensor::zeros(64, DType::F32, &Device::Cpu)?;
    let kept = |sampling| -> Result<BTreeSet<u32>> {
        Ok(draws(sampling, 1, &logits, 200)?.into_iter().collect())
    };
    let temperature = 1.;
    assert_eq!(kept(Sampling::TopK { k: 4, temperature })?.len(), 4);
    let p = 0.06;
    let first = BTreeSet::from([0, 1, 2, 3]);
    assert_eq!(kept(Sampling::TopP { p, temperature })?, first);
    Ok(())
}

/// The tokens that Candle 0.11.1 draws from these logits with this seed. The best token comes last; ordered by id it would be first.
#[test]
fn the_tokens_that_candle_draws() -> Result<()> {
    let logits = Tensor::new(&[0.1f32, 0.2, 0.3, 0.4], &Device::Cpu)?;
    let temperature = 1.;
    assert_eq!(
        draws(Sampling::TopK { k: 2, temperature }, 42, &logits, 2)?,
        [3, 2]
    );
    let p = 0.5;
    assert_eq!(
        draws(Sampling::TopP { p, temperature }, 42, &logits, 1)?,
        [2]
    );
    let temperature = 0.9;
    assert_eq!(draws(Sampling::All { temperature }, 42, &logits, 1)?, [0]);
    Ok(())
}

/// A nucleus whose sum in f32 never reaches `p` keeps every token.
#[test]
fn a_nucleus_that_is_never_full_keeps_all() -> Result<()> {
    let logits = Tensor::new(&[0.3f32, 0.1, 0.2], &Device::Cpu)?;
    let mut processor = LogitsProcessor::new(3, Some(1.), Some(0.999));
    let seen: Result<BTreeSet<u32>> = (0..100)
        .map(|_| processor.sample_f(&logits, |probs| probs.fill(0.1)))
        .collect();
    assert_eq!(seen?, BTreeSet::from([0, 1, 2]));
    Ok(())
}

#[test]
fn impossible_tokens_are_never_drawn() -> Result<()> {
    let mut values = vec![f32::NEG_INFINITY; 20];
    values[3] = 0.;
    values[11] = 0.5;
    let logits = Tensor::from_vec(values, 20, &Device::Cpu)?;
    for sampling in all_samplings(1.) {
        let ids = draws(sampling, 3, &logits, 100)?;
        assert!(ids.iter().all(|id| [3, 11].contains(id)), "{ids:?}");
    }
    Ok(())
}

#[test]
fn unusable_input_is_an_error() -> Result<()> {
    let device = Device::Cpu;
    let sample = |sampling: Sampling, logits: &Tensor| {
        let error = LogitsProcessor::from_sampling(0, sampling).sample(logits);
        error.unwrap_err().to_string()
    };
    for sampling in all_samplings(1.) {
        let with_nan = Tensor::new(&[0f32, f32::NAN, 1., f32::NAN], &device)?;
        let error = sample(sampling.clone(), &with_nan);
        assert!(
            error.contains("2 of 4") && error.contains("NaN at token 1"),
            "{error}"
        );
        let infinite = Tensor::new(&[0f32, f32::INFINITY], &device)?;
        assert!(sample(sampling.clone(), &infinite).contains("inf at token 1"));
        let nothing_allowed = Tensor::new(&[f32::NEG_INFINITY; 3], &device)?;
        assert!(sample(sampling, &nothing_allowed).contains("all 3 logits are -inf"));
    }
    let fine = Tensor::new(&[0f32, 1.], &device)?;
    for temperature in [f64::NAN, f64::INFINITY] {
        let error = sample(Sampling::All { temperature }, &fine);
        assert!(error.contains("temperature"), "{error}");
    }
    assert!(LogitsProcessor::new(0, Some(f64::NAN), None)
        .sample(&fine)
        .is_err());
    let error = sample(
        Sampling::TopK {
            k: 0,
            temperature: 1.,
        },
        &fine,
    );
    assert!(error.contains("k = 0"), "{error}");
    for sampling in [Sampling::ArgMax, Sampling::All { temperature: 1. }] {
        let error = sample(sampling.clone(), &fine.unsqueeze(0)?);
        assert!(error.contains("[1, 2]"), "{error}");
        let empty = Tensor::zeros(0, DType::F32, &device)?;
        assert!(sample(sampling, &empty).contains("no logits"));
    }
    Ok(())
}

/// Logits that are on the host already draw the same.
#[test]
fn vectors_are_as_tensors() -> Result<()> {
    let values: Vec<f32> = (0..40).map(|i| ((i * 7) % 13) as f32 / 4.).collect();
    let logits = Tensor::new(&values[..], &Device::Cpu)?;
    for sampling in all_samplings(0.7).into_iter().chain([Sampling::ArgMax]) {
        let mut processor = LogitsProcessor::from_sampling(5, sampling.clone());
        let expected = draws(sampling, 5, &logits, 20)?;
        for id in expected {
            assert_eq!(processor.sample_vec(values.clone(), |_| {})?, id);
        }
    }
    let mut processor = LogitsProcessor::new(0, Some(1.), None);
    assert!(processor.sample_vec(Vec::new(), |_| {}).is_err());
    Ok(())
}

#[test]
fn probabilities_can_be_changed() -> Result<()> {
    let logits = Tensor::new(&[5f32, 1., 1.], &Device::Cpu)?;
    let mut processor = LogitsProcessor::new(0, Some(1.), None);
    let id = processor.sample_f(&logits, |probs| {
        let sum: f32 = probs.iter().sum();
        assert!((sum - 1.).abs() < 1e-6);
        probs[0] = 0.;
        probs[1] = 0.;
    })?;
    assert_eq!(id, 2);
    for bad in [0f32, -1., f32::NAN] {
        assert!(processor
            .sample_f(&logits, |probs| probs.fill(bad))
            .is_err());
    }
    Ok(())
}

fn greedy_tokens_feed_the_next_step(device: &Device) -> Result<()> {
    // A permutation as a model: token i is followed by 7 i + 3 modulo 31.
    let rows = (0..31).flat_map(|i| (0..31).map(move |j| f32::from(j == (7 * i + 3) % 31)));
    let next = Tensor::from_iter(rows, device)?.reshape((31, 31))?;
    let forward = |ids: &Tensor| {
        assert_eq!((ids.dims(), ids.dtype()), (&[1, 1][..], DType::U32));
        next.index_select(&ids.flatten_all()?, 0)?.get(0)
    };
    let mut token = NextToken::choose(&next.get(5)?)?;
    let mut expected = 5;
    for _ in 0..40 {
        let following = NextToken::choose(&forward(token.ids())?)?;
        expected = (7 * expected + 3) % 31;
        assert_eq!(std::mem::replace(&mut token, following).wait()?, expected);
    }
    for logits in [next, Tensor::zeros(0, DType::F32, device)?] {
        assert!(NextToken::choose(&logits).is_err());
    }
    Ok(())
}
test_device!(greedy_tokens_feed_the_next_step);
