use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::llama::{Cache, Config, Llama};
use std::collections::HashSet;

use super::support::{
    assert_close, logits_in_pieces, tiny_config, tiny_llama, tiny_llama_of_vars, tiny_weights,
    token_ids,
};

/// f32 sums in another order: a few units in the last place per layer.
const F32_TOLERANCE: f32 = 1e-5;

fn cache(cfg: &Config, dtype: DType, device: &Device) -> Result<Cache> {
    Cache::new(true, dtype, cfg, device)
}

fn kv_cache_in_any_pieces(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let model = tiny_llama(&cfg, DType::F32, device)?;
    for b in [1, 3] {
        let ids = token_ids(b, 13, cfg.vocab_size, device)?;
        let mut no_cache = Cache::new(false, DType::F32, &cfg, device)?;
        let whole = model.forward(&ids, 0, &mut no_cache)?;
        assert_eq!(whole.dims(), &[b, cfg.vocab_size]);
        assert_eq!(whole.dtype(), DType::F32);
        for pieces in [&[13][..], &[1; 13], &[5, 1, 7], &[12, 1], &[1, 12]] {
            let mut cache = cache(&cfg, DType::F32, device)?;
            let logits = logits_in_pieces(&model, &ids, pieces, &mut cache)?;
            assert_close(&logits, &whole, F32_TOLERANCE);
        }
    }
    Ok(())
}
test_device!(kv_cache_in_any_pieces);

/// As training from the beginning has it: an empty map of variables gets what the model asks for, and all of it is trained.
fn is_made_over_an_empty_map(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let vars = VarMap::new();
    let model = Llama::load(VarBuilder::from_varmap(&vars, DType::F32, device), &cfg)?;
    let made: HashSet<String> = vars.data().lock().unwrap().keys().cloned().collect();
    let wanted: HashSet<String> = tiny_weights(&cfg)?.into_keys().collect();
    assert_eq!(made, wanted);
    let ids = token_ids(1, 5, cfg.vocab_size, device)?;
    let mut cache = Cache::new(false, DType::F32, &cfg, device)?;
    let logits = model.forward(&ids, 0, &mut cache)?;
    let gradients = logits.sqr()?.sum_all()?.backward()?;
    for var in vars.all_vars() {
        let gradient = gradients.get(var.as_tensor()).expect("every weight counts");
        assert!(gradient.abs()?.max_all()?.to_scalar::<f32>()?.is_finite());
    }
    Ok(())
}
test_device!(is_made_over_an_empty_map);

fn batch_rows_do_not_mix(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let model = tiny_llama(&cfg, DType::F32, device)?;
    let ids = token_ids(3, 6, cfg.vocab_size, device)?;
    let pieces = [5, 1];
    let together = logits_in_pieces(&model, &ids, &pieces, &mut cache(&cfg, DType::F32, device)?)?;
    for row in 0..3 {
        let alone = logits_in_pieces(
            &model,
            &ids.narrow(0, row, 1)?,
            &pieces,
            &mut cache(&cfg, DType::F32, device)?,
        )?;
        assert_close(&together.narrow(0, row, 1)?, &alone, F32_TOLERANCE);
    }
    Ok(())
}
test_device!(batch_rows_do_not_mix);

fn merged_and_separate_projections_agree(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let ids = token_ids(2, 9, cfg.vocab_size, device)?;
    let pieces = [8, 1];
    let merged = tiny_llama(&cfg, DType::F32, device)?;
    let separate = tiny_llama_of_vars(&cfg, device)?;
    let expected = logits_in_pieces(
        &merged,
        &ids,
        &pieces,
        &mut cache(&cfg, DType::F32, device)?,
    )?;
    let actual = logits_in_pieces(
        &separate,
        &ids,
        &pieces,
        &mut cache(&cfg, DType::F32, device)?,
    )?;
    assert_close(&actual, &expected, F32_TOLERANCE);
    Ok(())
}
test_device!(merged_and_separate_projections_agree);

/// Every device and dtype against f32 on the CPU. 16-bit weights and activations have 11 (f16) and 8 (bf16) bits; the
/// tolerances leave room for the two layers' roundings.
fn agrees_with_f32_on_cpu(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let pieces = [8, 1, 1];
    let run = |dtype, device: &Device| {
        let model = tiny_llama(&cfg, dtype, device)?;
        let ids = token_ids(1, 10, cfg.vocab_size, device)?;
        logits_in_pieces(&model, &ids, &pieces, &mut cache(&cfg, dtype, device)?)
    };
    let expected = run(DType::F32, &Device::Cpu)?;
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 1e-2), (DType::BF16, 8e-2)] {
        let logits = run(dtype, device)?;
        assert_eq!(logits.dtype(), DType::F32);
        assert_close(&logits, &expected, tolerance);
    }
    Ok(())
}
test_device!(agrees_with_f32_on_cpu);

fn tied_embeddings_are_the_output_layer(device: &Device) -> Result<()> {
    let tied = Config {
        tie_word_embeddings: true,
        ..tiny_config()
    };
    let mut weights = tiny_weights(&tied)?;
    let ids = token_ids(1, 4, tied.vocab_size, device)?;
    let run = |weights, cfg: &Config| {
        let model = Llama::load(VarBuilder::from_tensors(weights, DType::F32, device), cfg)?;
        model.forward(&ids, 0, &mut cache(cfg, DType::F32, device)?)
    };
    let expected = run(weights.clone(), &tied)?;
    let embedding = weights["model.embed_tokens.weight"].clone();
    weights.insert("lm_head.weight".into(), embedding);
    let actual = run(weights, &tiny_config())?;
    assert_close(&actual, &expected, F32_TOLERANCE);
    Ok(())
}
test_device!(tied_embeddings_are_the_output_layer);

fn embeddings_instead_of_ids(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let model = tiny_llama(&cfg, DType::F32, device)?;
    let ids = token_ids(2, 5, cfg.vocab_size, device)?;
    let expected = model.forward(&ids, 0, &mut cache(&cfg, DType::F32, device)?)?;
    let embedded = model.embed(&ids)?;
    assert_eq!(embedded.dims(), &[2, 5, cfg.hidden_size]);
    let actual = model.forward_input_embed(&embedded, 0, &mut cache(&cfg, DType::F32, device)?)?;
    assert_close(&actual, &expected, 0.);
    Ok(())
}
test_device!(embeddings_instead_of_ids);

fn cloned_and_reset_caches(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let model = tiny_llama(&cfg, DType::F32, device)?;
    let mut first = cache(&cfg, DType::F32, device)?;
    let prompt = token_ids(1, 6, cfg.vocab_size, device)?;
    model.forward(&prompt, 0, &mut first)?;

    let mut second = first.clone();
    let next = |id: u32| Tensor::new(&[[id]], device);
    model.forward(&next(3)?, 6, &mut first)?;
    model.forward(&next(9)?, 6, &mut second)?;
    let with_3 = model.forward(&next(4)?, 7, &mut first)?;
    let with_9 = model.forward(&next(4)?, 7, &mut second)?;

    for (logits, branch) in [(with_3, 3), (with_9, 9)] {
        let ids = Tensor::cat(&[&prompt, &next(branch)?, &next(4)?], 1)?;
        first.reset();
        let expected = model.forward(&ids, 0, &mut first)?;
        assert_close(&logits, &expected, F32_TOLERANCE);
    }
    Ok(())
}
test_device!(cloned_and_reset_caches);

#[test]
fn prompt_past_the_limit_names_both_numbers() -> Result<()> {
    let device = Device::Cpu;
    let cfg = tiny_config();
    let limit = cfg.max_position_embeddings;
    let model = tiny_llama(&cfg, DType::F32, &device)?;
    let mut cache = cache(&cfg, DType::F32, &device)?;
    let ids = token_ids(1, limit + 3, cfg.vocab_size, &device)?;

    let error = model.forward(&ids, 0, &mut cache).unwrap_err().to_string();
    assert!(
        error.contains("43 tokens") && error.contains("of 40"),
        "{error}"
    );

    model.forward(&ids.narrow(1, 0, limit)?, 0, &mut cache)?;
    let one_more = ids.narrow(1, limit, 1)?;
    let error = model
        .forward(&one_more, limit, &mut cache)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("41 tokens") && error.contains("of 40"),
        "{error}"
    );
    let error = model
        .forward(&one_more, usize::MAX, &mut cache)
        .unwrap_err();
    assert!(error.to_string().contains("of 40"), "{error}");
    Ok(())
}

#[test]
fn bad_input_is_an_error() -> Result<()> {
    let device = Device::Cpu;
    let cfg = tiny_config();
    let model = tiny_llama(&cfg, DType::F32, &device)?;

    let nothing = Tensor::zeros((1, 0), DType::U32, &device)?;
    let error = model
        .forward(&nothing, 0, &mut cache(&cfg, DType::F32, &device)?)
        .unwrap_err();
    assert!(error.to_string().contains("no tokens"), "{error}");

    let ids = token_ids(1, 2, cfg.vocab_size, &device)?;
    let deeper = Config {
        num_hidden_layers: 3,
        ..tiny_config()
    };
    let error = model
        .forward(&ids, 0, &mut cache(&deeper, DType::F32, &device)?)
        .unwrap_err();
    assert!(error.to_string().contains("3 layers"), "{error}");

    let mut weights = tiny_weights(&cfg)?;
    weights.remove("model.layers.1.mlp.up_proj.weight");
    let vb = VarBuilder::from_tensors(weights, DType::F32, &device);
    let error = Llama::load(vb, &cfg).unwrap_err();
    assert!(
        error.to_string().contains("model.layers.1.mlp.up_proj"),
        "{error}"
    );

    for (bad, field) in [
        (
            Config {
                num_attention_heads: 3,
                ..tiny_config()
            },
            "num_key_value_heads",
        ),
        (
            Config {
                num_key_value_heads: 0,
                ..tiny_config()
            },
            "num_key_value_heads",
        ),
        (
            Config {
                hidden_size: 34,
                ..tiny_config()
            },
            "hidden_size",
        ),
        (
            Config {
                hidden_size: 4,
                ..tiny_config()
            },
            "hidden_size",
        ),
    ] {
        let error = cache(&bad, DType::F32, &device).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    Ok(())
}
