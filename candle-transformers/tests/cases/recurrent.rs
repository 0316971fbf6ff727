//! What every recurrent model has to do that has its own state: one body of checks over tiny configurations, on every device.

use candle_core::{bail, test_device, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{based, mamba, mamba2, rwkv_v5, rwkv_v6, rwkv_v7};

use super::support::{assert_close, token_ids, Numbers};

const VOCAB: usize = 56;

/// Weights that depend on their names alone.
struct Made;

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let seed = name.bytes().fold(7u64, |hash, byte| {
            hash.wrapping_mul(0x0100_0000_01b3)
                .wrapping_add(u64::from(byte))
        });
        let mut numbers = Numbers::new(seed);
        let tensor = match s.dims() {
            [_] if name.ends_with("weight") => (numbers.tensor(s.dims(), 0.2, dev)? + 1.)?,
            [_] => numbers.tensor(s.dims(), 0.1, dev)?,
            dims => {
                let inputs = dims[1..].iter().product::<usize>();
                numbers.tensor(dims, (3. / inputs as f32).sqrt(), dev)?
            }
        };
        tensor.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        // RWKV 7 takes ranks from files. The first layer has no other's values to take.
        let rank = match name {
            "blocks.0.att.w1" | "blocks.0.att.a1" | "blocks.1.att.a1" => 6,
            "blocks.1.att.v1" => 3,
            "blocks.0.att.g1" | "blocks.1.att.g1" | "blocks.1.att.w1" => 9,
            _ => bail!("{name} is requested without a shape"),
        };
        self.get((32, rank).into(), name, Init::Const(0.), dtype, dev)
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn weights(dtype: DType, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Made), dtype, device.clone())
}

/// The last position's logits, `(b, vocab)`, after feeding `ids` in pieces of these lengths to a new model.
type Run = fn(&Tensor, &[usize], DType) -> Result<Tensor>;

/// The models; of the first, pieces are single tokens.
const MODELS: &[(&str, Run)] = &[
    ("mamba", |ids, pieces, dtype| {
        let config = mamba::Config {
            d_model: 32,
            n_layer: 2,
            vocab_size: VOCAB,
            pad_vocab_size_multiple: 8,
        };
        let model = mamba::Model::new(&config, weights(dtype, ids.device()))?;
        let mut state = mamba::State::new(ids.dim(0)?, &config, dtype, ids.device())?;
        let ones = vec![1; pieces.iter().sum()];
        in_pieces(ids, &ones, |ids, _| {
            model.forward(&ids.squeeze(1)?, &mut state)?.unsqueeze(1)
        })
    }),
    ("mamba2", |ids, pieces, dtype| {
        let config = mamba2::Config {
            d_model: 32,
            n_layer: 2,
            vocab_size: VOCAB,
            d_state: 8,
            expand: 2,
            headdim: 16,
            ngroups: 2,
            pad_vocab_size_multiple: 8,
        };
        let model = mamba2::Model::new(&config, weights(dtype, ids.device()))?;
        let mut state = mamba2::State::new(ids.dim(0)?, &config, dtype, ids.device())?;
        in_pieces(ids, pieces, |ids, _| {
            model.forward_prefill(ids, &mut state, 8)
        })
    }),
    ("rwkv_v5", |ids, pieces, dtype| {
        let config = rwkv_config();
        let model = rwkv_v5::Model::new(&config, weights(dtype, ids.device()))?;
        let mut state = rwkv_v5::State::new(ids.dim(0)?, &config, ids.device())?;
        in_pieces(ids, pieces, |ids, _| model.forward(ids, &mut state))
    }),
    ("rwkv_v6", |ids, pieces, dtype| {
        let config = rwkv_config();
        let model = rwkv_v6::Model::new(&config, weights(dtype, ids.device()))?;
        let mut state = rwkv_v6::State::new(ids.dim(0)?, &config, ids.device())?;
        in_pieces(ids, pieces, |ids, _| model.forward(ids, &mut state))
    }),
    ("rwkv_v7", |ids, pieces, dtype| {
        rwkv_v7_in_pieces(rwkv_v7::ModelVersion::V7, ids, pieces, dtype)
    }),
    ("rwkv_v7a", |ids, pieces, dtype| {
        rwkv_v7_in_pieces(rwkv_v7::ModelVersion::V7a, ids, pieces, dtype)
    }),
    ("rwkv_v7b", |ids, pieces, dtype| {
        rwkv_v7_in_pieces(rwkv_v7::ModelVersion::V7b, ids, pieces, dtype)
    }),
    ("based", |ids, pieces, dtype| {
        let config = serde_json::from_str(
            r#"{"vocab_size": 56, "n_embd": 32, "n_inner": 64, "n_layer": 4, "n_head": 4, "layer_norm_epsilon": 1e-5,
                "alt_mixer_layers": [1, 3], "alt_mixer_2_layers": [2], "alt_mixer": {"num_heads": 4, "feature_dim": 4,
                "feature_map": {"input_dim": 4}}, "alt_mixer_2": {"num_heads": 4, "window_size": 16}}"#,
        );
        let config: based::Config = config.map_err(candle_core::Error::wrap)?;
        let mut model = based::Model::new(&config, weights(dtype, ids.device()))?;
        in_pieces(ids, pieces, |ids, offset| model.forward(ids, offset))
    }),
];

fn rwkv_config() -> rwkv_v5::Config {
    rwkv_v5::Config {
        vocab_size: VOCAB,
        hidden_size: 32,
        num_hidden_layers: 2,
        attention_hidden_size: 32,
        num_attention_heads: 8,
        head_size: 8,
        intermediate_size: Some(48),
        layer_norm_epsilon: 1e-5,
        rescale_every: 0,
    }
}

fn rwkv_v7_config(version: rwkv_v7::ModelVersion) -> rwkv_v7::Config {
    rwkv_v7::Config {
        version,
        vocab_size: VOCAB,
        hidden_size: 32,
        num_hidden_layers: 2,
        head_size: 8,
        intermediate_size: Some(48),
        rescale_every: 0,
    }
}

fn rwkv_v7_in_pieces(
    version: rwkv_v7::ModelVersion,
    ids: &Tensor,
    pieces: &[usize],
    dtype: DType,
) -> Result<Tensor> {
    let config = rwkv_v7_config(version);
    let model = rwkv_v7::Model::new(&config, weights(dtype, ids.device()))?;
    let mut state = rwkv_v7::State::new_with_dtype(&config, ids.device(), dtype)?;
    in_pieces(ids, pieces, |ids, offset| {
        assert_eq!(state.pos, offset);
        let (b, t) = ids.dims2()?;
        let logits = model.forward(ids, &mut state, &numbers(ids)?)?;
        match (b, t) {
            (1, 1) => assert_eq!(logits.dims(), [VOCAB]),
            _ => assert_eq!(logits.dims(), [b, t, VOCAB]),
        }
        logits.reshape((b, t, VOCAB))
    })
}

fn numbers(ids: &Tensor) -> Result<Vec<u32>> {
    ids.flatten_all()?.to_vec1()
}

fn in_pieces(
    ids: &Tensor,
    pieces: &[usize],
    mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut offset = 0;
    let mut logits = None;
    for &piece in pieces {
        logits = Some(forward(&ids.narrow(1, offset, piece)?, offset)?);
        offset += piece;
    }
    assert_eq!(offset, ids.dim(1)?, "the pieces have to cover the ids");
    let logits = logits.expect("at least one piece");
    let last = logits.dim(1)? - 1;
    logits.narrow(1, last, 1)?.squeeze(1)?.to_dtype(DType::F32)
}

fn each(check: impl Fn(Run) -> Result<()>) -> Result<()> {
    for (name, run) in MODELS {
        println!("{name}");
        check(*run).map_err(|err| err.context(*name))?;
    }
    Ok(())
}

/// A prompt at once, token by token and in two pieces, which end within and at the end of a chunk.
fn recurrent_pieces(device: &Device) -> Result<()> {
    each(|run| {
        let ids = token_ids(1, 37, VOCAB, device)?;
        let whole = run(&ids, &[37], DType::F32)?;
        assert_eq!(whole.dims(), [1, VOCAB]);
        for pieces in [vec![1; 37], vec![2, 1, 34], vec![16, 21], vec![36, 1]] {
            assert_close(&run(&ids, &pieces, DType::F32)?, &whole, 1e-4);
        }
        Ok(())
    })
}
test_device!(recurrent_pieces);

/// Rows of a batch are what they are alone.
fn recurrent_batches(device: &Device) -> Result<()> {
    each(|run| {
        let first = token_ids(1, 12, VOCAB, device)?;
        let second = ((first.to_dtype(DType::F32)? * -1.)? + (VOCAB - 1) as f64)?;
        let second = second.to_dtype(DType::U32)?;
        let pieces = [9, 1, 2];
        let both = Tensor::cat(&[&first, &second], 0)?;
        let together = run(&both, &pieces, DType::F32)?;
        for (i, ids) in [first, second].iter().enumerate() {
            let alone = run(ids, &pieces, DType::F32)?;
            assert_close(&together.narrow(0, i, 1)?, &alone, 1e-4);
        }
        Ok(())
    })
}
test_device!(recurrent_batches);

/// In 16 bits: near the numbers of f32, and no NaN.
fn recurrent_16_bits(device: &Device) -> Result<()> {
    each(|run| {
        let ids = token_ids(1, 60, VOCAB, device)?;
        let exact = run(&ids, &[59, 1], DType::F32)?;
        let size = exact.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
        for (dtype, tolerance) in [(DType::F16, 0.03), (DType::BF16, 0.15)] {
            let error = (run(&ids, &[59, 1], dtype)? - &exact)?.sqr()?.mean_all()?;
            let error = error.to_scalar::<f32>()?.sqrt();
            // Not `error > ..`, which is false for NaN.
            assert!(error <= tolerance * size, "{dtype:?}: {error} of {size}");
        }
        Ok(())
    })
}
test_device!(recurrent_16_bits);

const RWKV_7: [rwkv_v7::ModelVersion; 3] = [
    rwkv_v7::ModelVersion::V7,
    rwkv_v7::ModelVersion::V7a,
    rwkv_v7::ModelVersion::V7b,
];

/// The last logits of a prompt; a state of one sequence can continue in several rows, and a new state is independent of it.
fn rwkv_v7_states(device: &Device) -> Result<()> {
    for version in RWKV_7 {
        let config = rwkv_v7_config(version);
        let model = rwkv_v7::Model::new(&config, weights(DType::F32, device))?;
        let prompt = token_ids(1, 20, VOCAB, device)?;
        let mut state = rwkv_v7::State::new(&config, device)?;
        let logits = model.forward_seq(&numbers(&prompt)?, &mut state)?;
        assert_eq!(logits.dims(), [VOCAB]);
        let whole = rwkv_v7_in_pieces(version, &prompt, &[20], DType::F32)?;
        assert_close(&logits.unsqueeze(0)?, &whole, 1e-4);
        assert_eq!(state.pos, 20);
        let layer = &state.per_layer[1];
        assert_eq!(layer.att_kv.dims(), [4, 8, 8]);
        assert_eq!(layer.att_x_prev.dims(), [32]);

        let then = Tensor::new(&[[3u32, 1, 4], [1, 5, 9]], device)?;
        let rows = model.forward(&then, &mut state, &numbers(&then)?)?;
        assert_eq!(state.per_layer[1].ffn_x_prev.dims(), [2, 32]);
        let more = Tensor::new(&[[2u32], [6]], device)?;
        let more = (&more, model.forward(&more, &mut state, &numbers(&more)?)?);
        assert_eq!(state.pos, 24);
        for row in 0..2 {
            let ids = then.narrow(0, row, 1)?;
            let alone = Tensor::cat(&[&prompt, &ids], 1)?;
            let expected = rwkv_v7_in_pieces(version, &alone, &[23], DType::F32)?;
            let found = rows.narrow(0, row, 1)?.narrow(1, 2, 1)?.squeeze(1)?;
            assert_close(&found, &expected, 1e-4);
            let alone = Tensor::cat(&[&alone, &more.0.narrow(0, row, 1)?], 1)?;
            let expected = rwkv_v7_in_pieces(version, &alone, &[24], DType::F32)?;
            assert_close(&more.1.narrow(0, row, 1)?.squeeze(1)?, &expected, 1e-4);
        }

        let mut fresh = rwkv_v7::State::new(&config, device)?;
        let logits = model.forward_seq(&numbers(&prompt)?, &mut fresh)?;
        assert_close(&logits.unsqueeze(0)?, &whole, 1e-4);

        // A state of f32 with weights of 16 bits.
        let model = rwkv_v7::Model::new(&config, weights(DType::F16, device))?;
        let mut state = rwkv_v7::State::new(&config, device)?;
        let logits = model.forward_seq(&numbers(&prompt)?, &mut state)?;
        assert_eq!(logits.dtype(), DType::F16);
        assert_eq!(state.per_layer[0].att_x_prev.dtype(), DType::F32);
        assert_close(&logits.to_dtype(DType::F32)?.unsqueeze(0)?, &whole, 0.05);
    }
    Ok(())
}
test_device!(rwkv_v7_states);

/// Invalid arguments are errors that leave the state unchanged.
#[test]
fn rwkv_v7_errors() -> Result<()> {
    let device = &Device::Cpu;
    let ids = token_ids(2, 3, VOCAB, device)?;
    for version in RWKV_7 {
        let config = rwkv_v7_config(version);
        let model = rwkv_v7::Model::new(&config, weights(DType::F32, device))?;
        let mut state = rwkv_v7::State::new(&config, device)?;
        model.forward(&ids, &mut state, &numbers(&ids)?)?;
        let kept = state.per_layer[0].att_kv.flatten_all()?.to_vec1::<f32>()?;

        let mut fails = |ids: &Tensor, token_ids: &[u32], parts: &[&str]| {
            let error = model.forward(ids, &mut state, token_ids);
            let error = error.expect_err("what cannot be").to_string();
            for part in parts {
                assert!(error.contains(part), "{error}");
            }
        };
        fails(&ids.narrow(1, 0, 0)?, &[], &["no tokens"]);
        fails(&ids.unsqueeze(0)?, &[0; 6], &["[1, 2, 3]", "(b, t)"]);
        fails(&ids.narrow(0, 0, 1)?, &[1, 2, 3], &["1 rows"]);
        if version != rwkv_v7::ModelVersion::V7 {
            fails(&ids, &[1, 2], &["2 token_ids", "2 rows of 3"]);
            fails(&ids, &[0, 0, 0, 0, 0, 56], &["56", "vocabulary"]);
        }
        let error = model.forward_seq(&[99], &mut state);
        let error = error.expect_err("no token 99").to_string();
        assert!(error.contains("99"), "{error}");
        assert!(model.forward_seq(&[], &mut state).is_err());
        assert_eq!(state.pos, 3);
        assert_eq!(
            state.per_layer[0].att_kv.flatten_all()?.to_vec1::<f32>()?,
            kept
        );
        model.forward(&ids, &mut state, &numbers(&ids)?)?;

        let mut shorter = rwkv_v7::State::new(&config, device)?;
        shorter.per_layer.pop();
        let error = model.forward_seq(&[1], &mut shorter);
        let error = error.expect_err("a layer less").to_string();
        assert!(error.contains("1 layers, but the model has 2"), "{error}");
        let wider = rwkv_v7::Config {
            hidden_size: 64,
            ..config
        };
        let mut wider = rwkv_v7::State::new(&wider, device)?;
        let error = model.forward_seq(&[1], &mut wider);
        let error = error.expect_err("another model's").to_string();
        assert!(error.contains("[64]"), "{error}");
    }

    let config = rwkv_v7_config(rwkv_v7::ModelVersion::V7b);
    let model = rwkv_v7::Model::new(&config, weights(DType::F32, device))?;
    let mut state = rwkv_v7::State::new(&rwkv_v7_config(rwkv_v7::ModelVersion::V7a), device)?;
    let error = model.forward_seq(&[1], &mut state);
    assert!(error.expect_err("no keys").to_string().contains("V7b"));

    for wrong in [
        rwkv_v7::Config {
            head_size: 0,
            ..config.clone()
        },
        rwkv_v7::Config {
            head_size: 5,
            ..config.clone()
        },
        rwkv_v7::Config {
            num_hidden_layers: 0,
            ..config.clone()
        },
    ] {
        assert!(rwkv_v7::Model::new(&wrong, weights(DType::F32, device)).is_err());
    }
    let json = r#"{"version": "V7a", "vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 1}"#;
    let config: rwkv_v7::Config = serde_json::from_str(json).expect("what may be left out");
    assert_eq!((config.head_size, config.intermediate_size), (64, None));
    Ok(())
}

/// At each position the longest token, and errors where there is none.
#[test]
fn rwkv_tokens() -> Result<()> {
    let path = std::env::temp_dir().join(format!("rwkv-tokens-{}.json", std::process::id()));
    std::fs::write(
        &path,
        r#"{"a": 7, "ab": 9, "abcd": 3, "b": 1, "c": 2, "é": 4}"#,
    )?;
    let tokenizer = rwkv_v5::Tokenizer::new(&path);
    std::fs::remove_file(&path)?;
    let tokenizer = tokenizer?;
    assert_eq!(tokenizer.encode("abcabcdaé")?, [9, 2, 3, 7, 4]);
    assert_eq!(tokenizer.decode(&[9, 2, 100, 4])?, "abcé");
    let error = tokenizer.encode("abd").expect_err("no token for d");
    assert!(error.to_string().contains("0x64, at byte 2"), "{error}");
    assert!(rwkv_v5::Tokenizer::new(&path).is_err());
    Ok(())
}
