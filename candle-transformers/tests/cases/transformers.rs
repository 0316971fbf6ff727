//! What Hugging Face's Transformers computes of tiny models, whose configurations are as it writes them. The numbers and the script that
//! makes them are in `tests/transformers/`; weights come from a rule that both sides compute.

use std::collections::HashMap;

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::{CausalLm, Decoder};
use candle_transformers::embed::EncoderConfig;
use candle_transformers::lora;
use candle_transformers::models as m;
use candle_transformers::rerank::{self, Answers, Pair, RerankerConfig, Scale};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{json, Value};

/// The token ids, then a case a line.
pub(super) const CASES: &str = include_str!("../transformers/cases.json");

/// All modules are f32 here and there; what differs is the order of sums.
const TOLERANCE: f32 = 2e-4;

#[derive(Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    kind: String,
    config: Value,
    weights: HashMap<String, Vec<usize>>,
    pub(super) expected: HashMap<String, Vec<f32>>,
    adapter: Option<AdapterCase>,
}

/// An adapter of peft: its configuration, and shapes by name.
#[derive(Deserialize)]
struct AdapterCase {
    config: Value,
    weights: HashMap<String, Vec<usize>>,
}

/// Numbers in -1..1: FNV-1a of the name and MurmurHash3's finaliser.
pub(super) fn numbers(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(2166136261u32, |seed, byte| {
        (seed ^ u32::from(byte)).wrapping_mul(16777619)
    });
    let number = |i: u32| {
        let mut h = seed ^ i.wrapping_mul(0x9E37_79B9);
        h ^= h >> 16;
        h = h.wrapping_mul(0x85EB_CA6B);
        h ^= h >> 13;
        h = h.wrapping_mul(0xC2B2_AE35);
        h ^= h >> 16;
        (h >> 8) as f32 / (1 << 23) as f32 - 1.
    };
    (0..count as u32).map(number).collect()
}

pub fn weight(name: &str, shape: &[usize]) -> Result<Tensor> {
    let (by, from) = match name {
        _ if name.ends_with("running_var") => (0.25, 0.75),
        _ if name.ends_with("bias") || name.ends_with("running_mean") => (0.2, 0.),
        _ if shape.len() <= 1 => (0.25, 1.),
        _ => (0.5, 0.),
    };
    let numbers = numbers(name, shape.iter().product());
    let values: Vec<f32> = numbers.into_iter().map(|u| from + by * u).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

fn pixels(shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::from_vec(numbers("pixels", shape.iter().product()), shape, device)
}

/// The rows `rows` of `(1, t, n)`.
fn rows(xs: &Tensor, rows: &[u32]) -> Result<Tensor> {
    xs.squeeze(0)?
        .index_select(&Tensor::new(rows, xs.device())?, 0)
}

impl Case {
    pub(super) fn vb(&self, device: &Device) -> Result<VarBuilder<'static>> {
        let weights = self.weights.iter().map(|(name, shape)| {
            let mut value = weight(name, shape)?;
            // No norms keep the sizes of these networks' vectors.
            if self.kind == "network" && shape.len() > 1 {
                let inputs: usize = shape[1..].iter().product();
                value = (value * (2. * (6. / inputs as f64).sqrt()))?;
            }
            Ok((name.clone(), value))
        });
        let weights = weights.collect::<Result<HashMap<_, _>>>()?;
        Ok(VarBuilder::from_tensors(weights, DType::F32, device))
    }

    pub(super) fn config<T: DeserializeOwned>(&self) -> T {
        serde_json::from_value(self.config.clone())
            .unwrap_or_else(|err| panic!("{}: {err}", self.name))
    }

    fn run(&self, ids: &[u32], device: &Device) -> Result<HashMap<&'static str, Tensor>> {
        let (vb, t) = (self.vb(device)?, ids.len());
        let last = t - 1;
        let tensor = Tensor::new(ids, device)?.unsqueeze(0)?;
        let mut results = HashMap::new();
        match self.kind.as_str() {
            "causal" => {
                let spec = config_spec(&self.config.to_string())?;
                let mut lm = CausalLm::from_vb(spec, vb)?;
                let logits = lm.forward(&tensor, 0)?.logits()?;
                results.insert("logits", rows(&logits, &[5, last as u32])?);
                // Two calls give what one gives, where angles change between them too.
                lm.clear_kv_cache();
                lm.forward(&tensor.narrow(1, 0, 6)?, 0)?.last_logits()?;
                for i in 6..last {
                    lm.forward(&tensor.narrow(1, i, 1)?, i)?;
                }
                let step = lm.forward(&tensor.narrow(1, last, 1)?, last)?;
                let step = step.last_logits()?.flatten_all()?;
                let whole = logits.narrow(1, last, 1)?.flatten_all()?;
                let difference = (step - whole)?.abs()?.max(0)?.to_scalar::<f32>()?;
                assert!(
                    difference < TOLERANCE,
                    "{}: by steps {difference}",
                    self.name
                );
            }
            "lora" => {
                let adapter = self.adapter.as_ref().expect("an adapter");
                let tensors = adapter.weights.iter();
                let tensors = tensors.map(|(name, shape)| Ok((name.clone(), weight(name, shape)?)));
                let config = adapter.config.to_string();
                let adapter =
                    lora::Adapter::new(&self.name, &config, tensors.collect::<Result<_>>()?)?;
                let (spec, mut source) = (config_spec(&self.config.to_string())?, vb);
                let plan = lora::Plan::new(&spec, &mut source, &[adapter])?;
                let decoder = Decoder::load(spec, &mut plan.over(&mut source), DType::F32, device)?;
                let logits = CausalLm::new(decoder).forward(&tensor, 0)?.logits()?;
                results.insert("logits", rows(&logits, &[5, last as u32])?);
            }
            "embed" => {
                let encoder = EncoderConfig::parse(&self.config.to_string())?.load(vb)?;
                // The last two tokens are padding.
                let seen: Vec<u32> = (0..t).map(|i| u32::from(i < t - 2)).collect();
                let hidden = encoder.forward(&tensor, &Tensor::new(seen, device)?.unsqueeze(0)?)?;
                results.insert("hidden", rows(&hidden, &[0, 5, t as u32 - 3])?);
            }
            "rerank" => {
                let config = RerankerConfig::parse(&self.config.to_string())?;
                let reranker = config.with_answers(Answers { yes: 7, no: 11 }).load(vb)?;
                let pair = |ids: &[u32], query: usize| Pair {
                    ids: ids.to_vec(),
                    types: (0..ids.len()).map(|i| u32::from(i >= query)).collect(),
                };
                // Two of them in a batch, the second filled up with padding.
                let pairs = [pair(ids, 5), pair(&[9, 4, 30, 6, 11, 17, 8], 2)];
                let options = rerank::Options {
                    scale: Scale::Identity,
                    batch: 2,
                };
                results.insert("logits", reranker.scores(&pairs, &options)?);
            }
            "marian" => {
                let mut model = m::marian::MTModel::new(&self.config(), vb)?;
                let encoded = model.encoder().forward(&tensor, 0)?;
                let started = Tensor::new(&[[0u32, 5, 9]], device)?;
                let logits = model.decode(&started, &encoded, 0)?;
                results.insert("encoded", rows(&encoded, &[0, last as u32])?);
                results.insert("logits", rows(&logits, &[2])?);
            }
            "chinese_clip" => {
                use m::chinese_clip::{text_model, vision_model, Activation};
                let config = m::chinese_clip::ChineseClipConfig {
                    text_config: text_model::ChineseClipTextConfig {
                        vocab_size: 32,
                        hidden_size: 16,
                        intermediate_size: 24,
                        num_hidden_layers: 1,
                        num_attention_heads: 2,
                        max_position_embeddings: 16,
                        pad_token_id: 0,
                        hidden_act: Activation::Gelu,
                        ..Default::default()
                    },
                    vision_config: vision_model::ChineseClipVisionConfig {
                        hidden_size: 16,
                        intermediate_size: 24,
                        num_hidden_layers: 1,
                        num_attention_heads: 2,
                        projection_dim: 8,
                        image_size: 16,
                        patch_size: 8,
                        hidden_act: Activation::QuickGelu,
                        ..Default::default()
                    },
                    projection_dim: 8,
                    logit_scale_init_value: 2.6592,
                    image_size: 16,
                };
                let model = m::chinese_clip::ChineseClipModel::new(vb, &config)?;
                let pictures = pixels(&[2, 3, 16, 16], device)?;
                let mask = tensor.ones_like()?;
                let (per_text, _) = model.forward(&pictures, &tensor, None, Some(&mask))?;
                results.insert("logits", per_text);
            }
            "siglip" => {
                let model = m::siglip::Model::new(&self.config(), vb)?;
                let (per_text, _) = model.forward(&pixels(&[2, 3, 16, 16], device)?, &tensor)?;
                results.insert("logits", per_text);
            }
            "vit" => {
                let model = m::vit::Model::new(&self.config(), 3, vb)?;
                results.insert("logits", model.forward(&pixels(&[1, 3, 16, 16], device)?)?);
            }
            "segformer_class" => {
                let config: m::segformer::Config = self.config();
                let model = m::segformer::ImageClassificationModel::new(&config, 3, vb)?;
                results.insert("logits", model.forward(&pixels(&[1, 3, 32, 48], device)?)?);
            }
            "trocr" => {
                let encoder = serde_json::from_value(self.config["encoder"].clone());
                let decoder = serde_json::from_value(self.config["decoder"].clone());
                let (encoder, decoder) = (encoder.expect("a ViT"), decoder.expect("a decoder"));
                let mut model = m::trocr::TrOCRModel::new(&encoder, &decoder, vb)?;
                let encoded = model.encoder().forward(&pixels(&[1, 3, 16, 16], device)?)?;
                let started = Tensor::new(&[[2u32, 5, 9]], device)?;
                let logits = model.decode(&started, &encoded, 0)?;
                results.insert("encoded", encoded);
                results.insert("logits", rows(&logits, &[2])?);
            }
            "blip" => {
                let config = self.config();
                let mut model = m::blip::BlipForConditionalGeneration::new(&config, vb)?;
                let encoded = model
                    .vision_model()
                    .forward(&pixels(&[1, 3, 16, 16], device)?)?;
                let logits = model.text_decoder().forward(&tensor, &encoded)?;
                results.insert("encoded", encoded);
                results.insert("logits", rows(&logits, &[last as u32])?);
            }
            "paligemma" => {
                let mut model = m::paligemma::Model::new(&self.config(), vb)?;
                let logits = model.setup(&pixels(&[1, 3, 16, 16], device)?, &tensor)?;
                results.insert("logits", logits);
            }
            "network" => {
                use m::{
                    convnext, dinov2, efficientvit, fastvit, hiera, mobilenetv4, mobileone, repvgg,
                    resnet,
                };
                let network = match self.name.trim_end_matches("-transformers") {
                    "resnet18" => resnet::resnet18(10, vb)?,
                    "resnet50" => resnet::resnet50(10, vb)?,
                    "convnext_atto" => convnext::convnext(&convnext::Config::atto(), 10, vb)?,
                    "convnextv2_atto" => convnext::convnext(&convnext::Config::atto(), 10, vb)?,
                    "mobilenetv4_conv_small" => {
                        mobilenetv4::mobilenetv4(&mobilenetv4::Config::small(), 10, vb)?
                    }
                    "mobilenetv4_hybrid_medium" => {
                        mobilenetv4::mobilenetv4(&mobilenetv4::Config::hybrid_medium(), 10, vb)?
                    }
                    "fastvit_t8" => fastvit::fastvit(&fastvit::Config::t8(), 10, vb)?,
                    "efficientvit_m0" => {
                        efficientvit::efficientvit(&efficientvit::Config::m0(), 10, vb)?
                    }
                    "repvgg_a0" => repvgg::repvgg(&repvgg::Config::a0(), 10, vb)?,
                    "mobileone_s0" => mobileone::mobileone(&mobileone::Config::s0(), 10, vb)?,
                    "hiera_tiny_224" => hiera::hiera(&hiera::Config::tiny(), 10, vb)?,
                    "dinov2" => {
                        let model = dinov2::DinoVisionTransformer::new(vb, 2, 32, 2)?;
                        candle_nn::func(move |xs| model.forward(xs))
                    }
                    other => panic!("the network {other:?} is not known"),
                };
                let side = self.config["size"].as_u64().unwrap_or(0) as usize;
                let values = network.forward(&pixels(&[1, 3, side, side], device)?)?;
                results.insert("values", values);
            }
            "mamba" => {
                let size = |name: &str| self.config[name].as_u64().unwrap_or(0) as usize;
                let config = m::mamba::Config {
                    d_model: size("hidden_size"),
                    n_layer: size("num_hidden_layers"),
                    vocab_size: size("vocab_size"),
                    pad_vocab_size_multiple: 1,
                };
                // The original's name, where Transformers' has an s.
                let vb = vb.rename_f(|name| name.replace("embedding.", "embeddings."));
                let model = m::mamba::Model::new(&config, vb.pp("backbone"))?;
                let mut state = m::mamba::State::new(1, &config, DType::F32, device)?;
                let mut all = Vec::new();
                for id in ids {
                    all.push(model.forward(&Tensor::new(&[*id], device)?, &mut state)?);
                }
                results.insert("logits", rows(&Tensor::stack(&all, 1)?, &[5, last as u32])?);
            }
            "mamba2" => {
                let config: m::mamba2::Config = self.config();
                let model = m::mamba2::Model::new(&config, vb.pp("backbone"))?;
                let mut state = m::mamba2::State::new(1, &config, DType::F32, device)?;
                let logits = model.forward_prefill(&tensor, &mut state, 4)?;
                results.insert("logits", rows(&logits, &[5, last as u32])?);
            }
            "t5" => {
                let mut config = self.config.clone();
                for (name, value) in [
                    ("dropout_rate", json!(0.1)),
                    ("layer_norm_epsilon", json!(1e-6)),
                    ("initializer_factor", json!(1.)),
                ] {
                    let fields = config.as_object_mut().expect("an object");
                    fields.entry(name).or_insert(value);
                }
                let config: m::t5::Config =
                    serde_json::from_value(config).expect("a configuration");
                let mut model = m::t5::T5ForConditionalGeneration::load(vb, &config)?;
                let encoded = model.encode(&tensor)?;
                let logits = model.decode(&Tensor::new(&[[0u32, 5, 9]], device)?, &encoded)?;
                results.insert("encoded", rows(&encoded, &[0, last as u32])?);
                results.insert("logits", logits);
            }
            "segformer" => {
                let config: m::segformer::Config = self.config();
                let model = m::segformer::SemanticSegmentationModel::new(&config, 3, vb)?;
                results.insert("logits", model.forward(&pixels(&[1, 3, 32, 48], device)?)?);
            }
            "whisper" => {
                let mut model = m::whisper::model::Whisper::load(&vb, self.config())?;
                let sound = pixels(&[1, 8, 12], device)?;
                let encoded = model.encoder.forward(&sound, true)?;
                let ids = Tensor::new(&[[3u32, 5, 9]], device)?;
                let hidden = model.decoder.forward(&ids, &encoded, true)?;
                let logits = model.decoder.final_linear(&hidden)?;
                results.insert("encoded", encoded);
                results.insert("logits", rows(&logits, &[2])?);
            }
            "moonshine" => results = super::moonshine::run(&self.config(), vb, device)?,
            "parakeet" => results = super::parakeet::run(&self.config(), vb, device)?,
            "clip" => {
                use m::clip::{text_model, vision_model, ClipConfig, ClipModel};
                let activation = |part: &str| -> text_model::Activation {
                    serde_json::from_value(self.config[part]["hidden_act"].clone())
                        .expect("an activation")
                };
                let config = ClipConfig {
                    text_config: text_model::ClipTextConfig {
                        vocab_size: 32,
                        embed_dim: 16,
                        activation: activation("text_config"),
                        intermediate_size: 24,
                        max_position_embeddings: t,
                        pad_with: None,
                        num_hidden_layers: 1,
                        num_attention_heads: 2,
                        projection_dim: 8,
                    },
                    vision_config: vision_model::ClipVisionConfig {
                        embed_dim: 16,
                        activation: activation("vision_config"),
                        intermediate_size: 24,
                        num_hidden_layers: 1,
                        num_attention_heads: 2,
                        projection_dim: 8,
                        num_channels: 3,
                        image_size: 16,
                        patch_size: 8,
                    },
                    logit_scale_init_value: 2.6592,
                    image_size: 16,
                };
                let model = ClipModel::new(vb, &config)?;
                let mut ids = ids.to_vec();
                ids[last] = 31;
                let pictures = pixels(&[2, 3, 16, 16], device)?;
                let (per_text, _) =
                    model.forward(&pictures, &Tensor::new(ids, device)?.unsqueeze(0)?)?;
                results.insert("logits", per_text);
            }
            other => panic!("{}: the kind {other:?} is not known", self.name),
        }
        Ok(results)
    }
}

/// The cases that `wanted` selects by their names, and each that differs by more than a share of its largest number.
fn agree(device: &Device, tolerance: f32, wanted: fn(&str) -> bool) -> Result<()> {
    #[derive(Deserialize)]
    struct Head {
        ids: Vec<u32>,
    }
    let mut lines = CASES.lines();
    let Some(Ok(Head { ids })) = lines.next().map(serde_json::from_str) else {
        panic!("cases.json: the first line has no ids")
    };
    let (mut wrong, mut ran) = (Vec::new(), 0);
    for line in lines {
        let case: Case = serde_json::from_str(line).expect("a case");
        if !wanted(&case.name) {
            continue;
        }
        ran += 1;
        let results = match case.run(&ids, device) {
            Ok(results) => results,
            Err(err) => {
                wrong.push(format!("{}: {err}", case.name));
                continue;
            }
        };
        for (name, expected) in &case.expected {
            let found = results[name.as_str()].flatten_all()?.to_vec1::<f32>()?;
            assert_eq!(found.len(), expected.len(), "{} {name}", case.name);
            let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
            let pairs = found.iter().zip(expected);
            let difference = pairs.fold(0f32, |max, (a, b)| max.max((a - b).abs()));
            // NaN is not below the bound.
            let near =
                difference < tolerance * largest.max(1.) && found.iter().all(|v| v.is_finite());
            if !near {
                wrong.push(format!("{} {name}: {difference} of {largest}", case.name));
            }
        }
    }
    assert!(ran > 0, "no case has this name");
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

#[test]
fn agrees_on_the_cpu() -> Result<()> {
    agree(&Device::Cpu, TOLERANCE, |_| true)
}

fn rerankers_agree(device: &Device) -> Result<()> {
    agree(device, 1e-4, |name| name.starts_with("rerank-"))
}
test_device!(rerankers_agree);

fn new_encoders_agree(device: &Device) -> Result<()> {
    agree(device, 1e-4, |name| {
        name.starts_with("embed-eurobert") || name.starts_with("embed-jina")
    })
}
test_device!(new_encoders_agree);

/// Sequences that share a state end where the rotation of the whole sequence changes: they agree with one alone before, and a step past it is
/// an error.
#[test]
fn slots_end_where_the_rotation_changes() -> Result<()> {
    for (name, positions) in [("llama-longrope-past", 8), ("llama-longrope", 32)] {
        let lines = CASES.lines().skip(1);
        let mut cases = lines.map(|line| serde_json::from_str::<Case>(line).expect("a case"));
        let case = cases.find(|case| case.name == name).expect("the case");
        let spec = config_spec(&case.config.to_string())?;
        let decoder = Decoder::from_vb(spec, case.vb(&Device::Cpu)?)?;
        assert_eq!(decoder.slot_positions(), positions);
        let mut state = decoder.new_slots(2)?;
        let ids = Tensor::new(&[[1u32, 5, 9, 2, 7, 3], [4, 4, 8, 1, 6, 2]], &Device::Cpu)?;
        let found = decoder.next_logits_of_slots(&ids, &[6, 6], 0, &mut state)?;
        for row in 0..2 {
            let alone = decoder.forward(&ids.narrow(0, row, 1)?, 0, &mut decoder.new_state())?;
            let alone = alone.last_logits()?.flatten_all()?;
            let difference = (found.get(row)? - alone)?
                .abs()?
                .max(0)?
                .to_scalar::<f32>()?;
            assert!(difference < TOLERANCE, "{name}: {difference}");
        }
        let more = decoder.next_logits_of_slots(&ids.narrow(1, 0, 3)?, &[3, 3], 0, &mut state);
        match positions {
            8 => assert!(more.unwrap_err().to_string().contains("one by one")),
            _ => drop(more?),
        }
    }
    Ok(())
}

/// Fields that Transformers 5 writes in other objects, or under other names, than Candle's types.
#[test]
fn spellings_of_transformers_5() {
    fn parse<T: DeserializeOwned>(value: Value) -> std::result::Result<T, String> {
        serde_json::from_value(value).map_err(|err| err.to_string())
    }
    let text = json!({"head_dim": 8, "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu", "max_position_embeddings": 32,
        "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [2, 1, 1]}});
    for tied in [true, false] {
        let config: m::qwen3_vl::Config = parse(json!({"text_config": text, "vision_config": {}, "image_token_id": 1,
            "video_token_id": 2, "vision_start_token_id": 3, "vision_end_token_id": 4, "tie_word_embeddings": tied}))
        .unwrap();
        assert_eq!(config.text_config.tie_word_embeddings, tied);
        assert_eq!(config.text_config.rope_theta, 5e6);
    }
    let nomic: m::nomic_bert::Config = parse(json!({"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 96, "max_position_embeddings": 128, "layer_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}))
    .unwrap();
    assert_eq!((nomic.n_embd, nomic.n_layer, nomic.n_head), (64, 3, 4));
    assert_eq!((nomic.n_inner, nomic.n_positions), (96, 128));
    assert_eq!(
        (nomic.layer_norm_epsilon, nomic.rotary_emb_base),
        (1e-5, 500.)
    );
    let yarn: std::result::Result<m::pixtral::vision_model::Config, String> =
        parse(json!({"image_size": 64, "patch_size": 8,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}));
    assert!(yarn.unwrap_err().contains("\"yarn\""));
    let pixtral: m::pixtral::vision_model::Config =
        parse(json!({"image_size": 64, "patch_size": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}))
        .unwrap();
    assert_eq!(pixtral.rope_theta, 1e4);
    let gemma4: m::gemma4::Gemma4TextConfig = parse(json!({"hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "sliding_window": 8, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"],
        "per_layer_config": {"1": {"head_dim": 32, "num_key_value_heads": 1}}}))
    .unwrap();
    assert_eq!(
        (gemma4.global_head_dim, gemma4.num_global_key_value_heads),
        (32, Some(1))
    );
    let moe: m::qwen3_moe::Config = parse(json!({"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8, "attention_bias": false, "num_key_value_heads": 1,
        "max_position_embeddings": 32, "sliding_window": null, "max_window_layers": 1, "tie_word_embeddings": false,
        "rope_theta": 1e4, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu", "decoder_sparse_step": 1,
        "moe_intermediate_size": 8, "num_experts_per_tok": 1, "num_local_experts": 4, "norm_topk_prob": true}))
    .unwrap();
    assert_eq!(moe.num_experts, 4);
}
