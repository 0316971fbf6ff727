//! Decoders with a part of their layers, or their experts, on the CPU: logits are those of the whole on the CPU.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{test_device, DType, Device, IndexOp, Result, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::{
    at_once, Decoder, DecoderPart, Offload, Placement, Reading, Reread, Stored, Wanted,
    WeightSource,
};
use candle_transformers::generation::Draw;

use super::encoders::{assert_error, lacking};
use super::support::{assert_close, token_ids};

const VOCAB: usize = 61;
const LAYERS: usize = 3;
const TOLERANCE: f32 = 1e-4;

const SIZES: &str = r#""vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5"#;
/// Families by what crosses: a window, a tied table, positions of a table, two branches at once, experts, a state of fixed size.
const FAMILIES: [&str; 6] = [
    r#""model_type": "mistral", "sliding_window": 5"#,
    r#""model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": true"#,
    r#""model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 64, "layer_norm_epsilon": 1e-5"#,
    r#""model_type": "gpt_neox", "use_parallel_residual": true, "rotary_pct": 0.5, "layer_norm_eps": 1e-5"#,
    r#""model_type": "qwen3_moe", "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "decoder_sparse_step": 1, "norm_topk_prob": true, "mlp_only_layers": [0]"#,
    r#""model_type": "lfm2", "conv_L_cache": 3, "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 1e-5,
        "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.0"#,
];

fn config(family: &str) -> String {
    format!("{{{family}, {SIZES}}}")
}

fn weights(dtype: DType) -> VarBuilder<'static> {
    lacking(&[], dtype, &Device::Cpu)
}

fn whole(config: &str, dtype: DType) -> Result<Decoder> {
    Decoder::from_vb(config_spec(config)?, weights(dtype))
}

fn in_parts(
    config: &str,
    dtype: DType,
    device: &Device,
    layers: usize,
    experts: bool,
) -> Result<Decoder> {
    let to = Placement {
        device: Device::Cpu,
        dtype: DType::F32,
    };
    let offload = Offload {
        to,
        layers,
        experts,
    };
    let spec = config_spec(config)?;
    Decoder::load_offloaded(spec, &mut weights(DType::F32), dtype, device, offload)
}

fn logits_are_those_of_the_whole(device: &Device) -> Result<()> {
    for family in FAMILIES {
        let config = config(family);
        let whole = whole(&config, DType::F32)?;
        let prompt = token_ids(2, 9, VOCAB, &Device::Cpu)?;
        let step = token_ids(2, 1, VOCAB, &Device::Cpu)?;
        let mut state = whole.new_state();
        let wanted = [
            whole.next_logits(&prompt, 0, &mut state)?,
            whole.next_logits(&step, 9, &mut state)?,
        ];
        for (layers, experts) in [(0, true), (1, false), (2, true), (LAYERS, false)] {
            let parts = in_parts(&config, DType::F32, device, layers, experts)?;
            let mut state = parts.new_state();
            // Ids on the model's device, and on that of its first layer.
            let found = [
                parts.next_logits(&prompt.to_device(device)?, 0, &mut state)?,
                parts.next_logits(&step, 9, &mut state)?,
            ];
            for (found, wanted) in found.iter().zip(&wanted) {
                assert!(found.device().same_device(device), "{family}");
                assert_close(found, wanted, TOLERANCE);
            }
        }
    }
    Ok(())
}
test_device!(logits_are_those_of_the_whole);

/// The weights of all families, and the number of times that they were read again.
#[derive(Debug, Default)]
struct Again(AtomicUsize);

impl Reread for Again {
    fn reread(&self, load: &mut dyn FnMut(&mut dyn WeightSource) -> Result<()>) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        load(&mut weights(DType::F32))
    }
}

/// The layers run on the device for long pieces, and where their weights are for short ones; each continues what the other keeps.
fn long_pieces_run_on_the_device(device: &Device) -> Result<()> {
    const PIECES: [usize; 5] = [5, 128, 1, 130, 1];
    const ON_CPU: usize = 2;
    for family in FAMILIES {
        let config = config(family).replace(": 64", ": 512");
        let whole = whole(&config, DType::F32)?;
        let again = Arc::new(Again::default());
        let parts = in_parts(&config, DType::F32, device, ON_CPU, false)?;
        let parts = parts.with_streamed_layers(again.clone());
        let (mut wanted, mut found) = (whole.new_state(), parts.new_state());
        let mut offset = 0;
        for t in PIECES {
            let ids = token_ids(1, t, VOCAB, &Device::Cpu)?;
            let wanted = whole.next_logits(&ids, offset, &mut wanted)?;
            let found = parts.next_logits(&ids, offset, &mut found)?;
            assert_close(&found, &wanted, TOLERANCE);
            offset += t;
        }
        // A convolution's state stays where it is.
        let long = if parts.spec().can_stream(ON_CPU) {
            2
        } else {
            0
        };
        assert_eq!(again.0.load(Ordering::Relaxed), long * ON_CPU, "{family}");
        assert_eq!(long == 0, family.contains("lfm2"));
        // Layers on the device whose experts are elsewhere.
        if family.contains("experts") {
            let parts = in_parts(&config, DType::F32, device, 1, true)?;
            let parts = parts.with_streamed_layers(Arc::new(Again::default()));
            let ids = token_ids(1, 128, VOCAB, &Device::Cpu)?;
            let wanted = whole.next_logits(&ids, 0, &mut whole.new_state())?;
            let found = parts.next_logits(&ids, 0, &mut parts.new_state())?;
            assert_close(&found, &wanted, TOLERANCE);
            assert!(parts.streams_prompts());
        }
        // Texts of the same length in a batch, without a state.
        let ids = token_ids(2, 70, VOCAB, &Device::Cpu)?;
        let (mut wanted, mut found) = (whole.new_state(), parts.new_state());
        (wanted.use_cache, found.use_cache) = (false, false);
        let wanted = whole.next_logits(&ids, 0, &mut wanted)?;
        assert_close(&parts.next_logits(&ids, 0, &mut found)?, &wanted, TOLERANCE);
    }
    Ok(())
}
test_device!(long_pieces_run_on_the_device);

/// The weights of a family with matrices in blocks.
#[derive(Debug)]
struct InBlocks;

impl WeightSource for InBlocks {
    fn contains(&self, name: &str) -> bool {
        weights(DType::F32).contains(name)
    }

    fn shape(&self, _: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let read = || {
            let tensor = at_once(weights(DType::F32).read(wanted))?;
            match tensor {
                Stored::Dense(tensor) if tensor.rank() == 2 => {
                    QTensor::quantize(&tensor, GgmlDType::Q8_0).map(Stored::from)
                }
                tensor => Ok(tensor),
            }
        };
        Box::pin(std::future::ready(read()))
    }
}

impl Reread for InBlocks {
    fn reread(&self, load: &mut dyn FnMut(&mut dyn WeightSource) -> Result<()>) -> Result<()> {
        load(&mut InBlocks)
    }
}

/// Blocks that are copied in turn have the same bits as those that stay: merged, longer than what a card copies directly, prompt for
/// prompt.
fn copied_blocks_are_the_same(device: &Device) -> Result<()> {
    const T: usize = Decoder::STREAMED_FROM;
    let config = r#"{"model_type": "mistral", "sliding_window": null, "vocab_size": 61, "hidden_size": 256, "intermediate_size": 2048,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5}"#;
    let offload = |layers| Offload {
        to: Placement {
            device: Device::Cpu,
            dtype: DType::F32,
        },
        layers,
        experts: false,
    };
    let load = |layers| -> Result<Decoder> {
        let (spec, offload) = (config_spec(config)?, offload(layers));
        let decoder = Decoder::load_offloaded(spec, &mut InBlocks, DType::F32, device, offload)?;
        Ok(decoder.with_streamed_layers(Arc::new(InBlocks)))
    };
    let logits = |decoder: &Decoder, prompt: &Tensor| {
        let logits = decoder.next_logits(prompt, 0, &mut decoder.new_state())?;
        logits.flatten_all()?.to_vec1::<f32>()
    };
    let (whole, parts) = (load(0)?, load(LAYERS)?);
    for length in [T, T + 1, T] {
        let prompt = token_ids(1, length, VOCAB, &Device::Cpu)?;
        let wanted = logits(&whole, &prompt.to_device(device)?)?;
        assert_eq!(logits(&parts, &prompt)?, wanted, "{length} tokens");
    }
    Ok(())
}
test_device!(copied_blocks_are_the_same);

/// The same of texts in slots, which begin at different positions and share a cache.
fn long_pieces_in_slots(device: &Device) -> Result<()> {
    const CALLS: [(usize, &[usize]); 4] = [
        (1, &[130]),
        (0, &[3, 2, 1]),
        (0, &[128, 100]),
        (0, &[1, 1, 1]),
    ];
    for family in &FAMILIES[..2] {
        let config = config(family).replace(": 64", ": 512");
        let whole = whole(&config, DType::F32)?;
        let again = Arc::new(Again::default());
        let parts = in_parts(&config, DType::F32, device, 2, false)?;
        let parts = parts.with_streamed_layers(again.clone());
        let (mut wanted, mut found) = (whole.new_slots(3)?, parts.new_slots(3)?);
        for (first, counts) in CALLS {
            let t = counts.iter().copied().max().unwrap_or(0);
            let ids = token_ids(counts.len(), t, VOCAB, &Device::Cpu)?;
            let wanted = whole.next_logits_of_slots(&ids, counts, first, &mut wanted)?;
            let found = parts.next_logits_of_slots(&ids, counts, first, &mut found)?;
            assert_close(&found, &wanted, TOLERANCE);
        }
        assert_eq!(again.0.load(Ordering::Relaxed), 2 * 2, "{family}");
    }
    Ok(())
}
test_device!(long_pieces_in_slots);

fn slots_and_encoders_too(device: &Device) -> Result<()> {
    let config = config(FAMILIES[0]);
    let (whole, parts) = (
        whole(&config, DType::F32)?,
        in_parts(&config, DType::F32, device, 2, false)?,
    );
    let ids = token_ids(2, 6, VOCAB, &Device::Cpu)?;
    let counts = [6, 4];
    let mut wanted = whole.new_slots(3)?;
    let mut found = parts.new_slots(3)?;
    for first in [1, 0] {
        let wanted = whole.next_logits_of_slots(&ids, &counts, first, &mut wanted)?;
        let ids = ids.to_device(device)?;
        let found = parts.next_logits_of_slots(&ids, &counts, first, &mut found)?;
        assert_close(&found, &wanted, TOLERANCE);
    }
    let counted = Tensor::new(&[[1u32, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], &Device::Cpu)?;
    let wanted = whole.encode(&ids, &counted)?.normed()?;
    let found = parts.encode(&ids.to_device(device)?, &counted.to_device(device)?)?;
    let found = found.normed()?;
    assert_close(&found.i(0)?, &wanted.i(0)?, TOLERANCE);
    assert_close(&found.i((1, ..4))?, &wanted.i((1, ..4))?, TOLERANCE);
    // From embeddings with a mask, both on the model's device.
    let embeds = parts.embed(&ids)?.to_device(device)?;
    let mask = Tensor::zeros((1, 1, 6, 6), DType::F32, device)?;
    let mut state = parts.new_state();
    let found = parts.forward_embeds(&embeds, 0, &mut state, Some(&mask))?;
    let mask = mask.to_device(&Device::Cpu)?;
    let mut state = whole.new_state();
    let wanted = whole.forward_embeds(&whole.embed(&ids)?, 0, &mut state, Some(&mask))?;
    assert_close(&found.logits()?, &wanted.logits()?, TOLERANCE);
    Ok(())
}
test_device!(slots_and_encoders_too);

/// A token that is left on the device goes to the first layer.
fn tokens_that_stay_on_the_device(device: &Device) -> Result<()> {
    let config = config(FAMILIES[1]);
    let mut texts = Vec::new();
    for layers in [0, 1] {
        let decoder = in_parts(&config, DType::F32, device, layers, false)?;
        let mut state = decoder.new_state();
        let prompt = token_ids(1, 5, VOCAB, device)?;
        decoder.next_logits(&prompt, 0, &mut state)?;
        let mut ids = Tensor::new(&[[3u32]], device)?;
        let mut text = Vec::new();
        for offset in 5..12 {
            let next = decoder.next_token(&ids, offset, &mut state, &Draw::GREEDY)?;
            ids = next.ids().clone();
            text.push(ids.flatten_all()?.to_vec1::<u32>()?[0]);
        }
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1]);
    Ok(())
}
test_device!(tokens_that_stay_on_the_device);

/// Activations of the device in f16, those of the CPU in f32.
fn two_dtypes(device: &Device) -> Result<()> {
    let config = config(FAMILIES[4]);
    let prompt = token_ids(1, 7, VOCAB, device)?;
    let alone = in_parts(&config, DType::F16, device, 0, false)?;
    let wanted = alone.next_logits(&prompt, 0, &mut alone.new_state())?;
    let parts = in_parts(&config, DType::F16, device, 1, true)?;
    assert_eq!(parts.dtype(), DType::F16);
    let found = parts.next_logits(&prompt, 0, &mut parts.new_state())?;
    assert_close(&found, &wanted, 2e-2);
    Ok(())
}
test_device!(two_dtypes);

#[test]
fn parts_of_a_decoder() -> Result<()> {
    let spec = config_spec(&config(FAMILIES[4]))?;
    let parts = Decoder::weights_of_parts(spec, &mut weights(DType::F32))?;
    let of = |part| parts.iter().filter(move |(found, _)| *found == part);
    let names = |part| of(part).map(|(_, name)| name.as_str()).collect::<Vec<_>>();
    assert_eq!(names(DecoderPart::Embedding), ["model.embed_tokens.weight"]);
    assert_eq!(
        names(DecoderPart::Head),
        ["model.norm.weight", "lm_head.weight"]
    );
    // The first layer has none.
    assert_eq!(of(DecoderPart::Experts(0)).count(), 0);
    assert!(names(DecoderPart::Layer(0)).contains(&"model.layers.0.mlp.gate_proj.weight"));
    assert_eq!(of(DecoderPart::Experts(1)).count(), 1 + 3 * 4);
    assert!(names(DecoderPart::Layer(1))
        .iter()
        .all(|name| !name.contains("mlp")));
    Ok(())
}

#[test]
fn too_many_layers_are_an_error() {
    let err = in_parts(
        &config(FAMILIES[0]),
        DType::F32,
        &Device::Cpu,
        LAYERS + 1,
        false,
    );
    assert_error(err, &["4 layers", "the model has 3"]);
}
