//! Families in GGUF files: the same weights under Hugging Face's names and, as llama.cpp's converter writes them, in a GGUF file give the
//! same logits.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use candle_core::quantized::gguf_file::{self, Content, MmapedContent, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::auto;
use candle_transformers::blocks::{
    at_once, Decoder, GgufMetadata, GgufReader, Reading, Stored, Wanted, WeightSource,
};

use candle_transformers::embed::{gguf_weights, EncoderConfig, Options, Pooling};

use super::families::{Made, VOCAB};
use super::gguf::neighbours;
use super::support::{assert_close, token_ids};

/// Gives what [`Made`] gives, and keeps it.
struct Kept<'a>(Made, &'a RefCell<BTreeMap<String, Tensor>>);

impl WeightSource for Kept<'_> {
    fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        self.0.shape(name)
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(async move {
            let stored = self.0.read(wanted).await?;
            if let Stored::Dense(tensor) = &stored {
                let name = wanted.name.to_string();
                self.1.borrow_mut().insert(name, tensor.clone());
            }
            Ok(stored)
        })
    }
}

/// The parts of a layer, without `.weight` and `.bias`: Hugging Face's names, and llama.cpp's.
const PARTS: &[(&str, &str)] = &[
    ("attn.Wqkv", "attn_qkv"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("attn.out_proj", "attn_output"),
    ("attention.dense", "attn_output"),
    ("attention.query_key_value", "attn_qkv"),
    ("ffn.down_proj", "ffn_down"),
    ("ffn.up_proj", "ffn_up"),
    ("input_layernorm", "attn_norm"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("ln_attn", "attn_norm_2"),
    ("ln_mlp", "attn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("mlp.dense_4h_to_h", "ffn_down"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.up_proj", "ffn_up"),
    ("norm_1", "attn_norm"),
    ("norm_2", "ffn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attention.dense", "attn_output"),
    ("self_attention.query_key_value", "attn_qkv"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.v_proj", "attn_v"),
];

/// Names outside of the layers.
const OTHERS: &[(&str, &str)] = &[
    ("embed_out", "output"),
    ("gpt_neox.embed_in", "token_embd"),
    ("gpt_neox.final_layer_norm", "output_norm"),
    ("lm_head", "output"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("transformer.embedding.word_embeddings", "token_embd"),
    ("transformer.encoder.final_layernorm", "output_norm"),
    ("transformer.ln_f", "output_norm"),
    ("transformer.norm_f", "output_norm"),
    ("transformer.output_layer", "output"),
    ("transformer.word_embeddings", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.wte", "token_embd"),
];

const LAYERS: [&str; 5] = [
    "gpt_neox.layers.",
    "model.layers.",
    "transformer.h.",
    "transformer.blocks.",
    "transformer.encoder.layers.",
];

/// A tensor under its name in a GGUF file.
fn renamed(name: &str) -> String {
    let (stem, ending) = name.rsplit_once('.').expect("a name with an ending");
    let found = |table: &[(&str, &'static str)], stem: &str| {
        let entry = table.iter().find(|(from, _)| *from == stem);
        entry
            .unwrap_or_else(|| panic!("{name} has no name in GGUF files"))
            .1
    };
    match LAYERS.iter().find_map(|layers| stem.strip_prefix(layers)) {
        Some(rest) => {
            let (layer, part) = rest.split_once('.').expect("a number and a name");
            format!("blk.{layer}.{}.{ending}", found(PARTS, part))
        }
        None => format!("{}.{ending}", found(OTHERS, stem)),
    }
}

type Tensors = BTreeMap<String, Tensor>;

/// The converter's work beyond other names.
#[derive(Clone, Copy)]
enum Converter {
    /// Nothing.
    Rename,
    /// The rows of queries and keys in the order of neighbours, by the size of a head.
    Permute(usize),
    /// Queries, keys and values of all groups in sequence: key heads, query heads for each, size of a head.
    Sort(usize, usize, usize),
    /// OLMo 2's norms.
    PostNorms,
    /// The norm before the MLP has the name of one after attention, and experts are joined.
    PostNormsAndExperts,
    /// Nemotron's norms.
    PlusOne,
    /// GPT-2's projections.
    Transpose,
    /// The norms of heads as one tensor.
    StackNorms,
    /// DeepSeek: joined experts apart, and `kv_b` in two by heads and elements of a key that are not rotated, if given.
    DeepSeek(Option<(usize, usize)>),
}

fn convert(tensors: &Tensors, converter: Converter) -> Result<Tensors> {
    let mut out = Tensors::new();
    // Heads' norms and experts, by the name of the tensor that they become.
    let mut stacked: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
    for (name, tensor) in tensors {
        let projection = ["q_proj.", "k_proj."]
            .iter()
            .any(|part| name.contains(part));
        match converter {
            Converter::Permute(head_dim) if projection && tensor.rank() == 2 => {
                out.insert(renamed(name), neighbours(tensor, head_dim)?);
            }
            Converter::Sort(kv, each, head_dim) if name.contains("query_key_value") => {
                let mut dims = vec![kv, each + 2, head_dim];
                dims.extend(&tensor.dims()[1..]);
                let grouped = tensor.reshape(dims)?;
                let part = |start, len| grouped.narrow(1, start, len)?.contiguous()?.flatten(0, 2);
                let sorted = [part(0, each)?, part(each, 1)?, part(each + 1, 1)?];
                out.insert(renamed(name), Tensor::cat(&sorted, 0)?);
            }
            Converter::PostNorms | Converter::PostNormsAndExperts
                if name.contains("post_attention_layernorm") =>
            {
                let name = renamed(name).replace("ffn_norm", "post_attention_norm");
                out.insert(name, tensor.clone());
            }
            Converter::StackNorms if name.contains("_layernorm.norms.") => {
                let (stem, rest) = name.split_once("_layernorm.norms.").unwrap();
                let head = rest.trim_end_matches(".weight").parse().unwrap();
                let all = stacked.entry(renamed(&format!("{stem}_norm.weight")));
                all.or_default().insert(head, tensor.clone());
            }
            Converter::PlusOne if name.ends_with("norm.weight") => {
                out.insert(renamed(name), (tensor + 1.)?);
            }
            Converter::Transpose if tensor.rank() == 2 && name.contains(".c_") => {
                out.insert(renamed(name), tensor.t()?.contiguous()?);
            }
            Converter::DeepSeek(_) | Converter::PostNormsAndExperts
                if name.contains("mlp.experts.") =>
            {
                // `model.layers.1.mlp.experts.0.gate_proj.weight`
                let parts: Vec<&str> = name.split('.').collect();
                let part = parts[6].trim_end_matches("_proj");
                let name = format!("blk.{}.ffn_{part}_exps.weight", parts[2]);
                let expert = parts[5].parse().expect("a number");
                let all = stacked.entry(name).or_default();
                all.insert(expert, tensor.clone());
            }
            Converter::DeepSeek(_) | Converter::PostNormsAndExperts
                if name.contains("e_score_correction_bias") =>
            {
                let layer = name.split('.').nth(2).unwrap();
                out.insert(format!("blk.{layer}.exp_probs_b.bias"), tensor.clone());
            }
            Converter::DeepSeek(Some((heads, plain))) if name.contains("kv_b_proj") => {
                let (rows, rank) = tensor.dims2()?;
                let each = rows / heads;
                let by_head = tensor.reshape((heads, each, rank))?;
                let k = by_head.narrow(1, 0, plain)?.transpose(1, 2)?;
                let v = by_head.narrow(1, plain, each - plain)?;
                let name = renamed(name);
                out.insert(name.replace("attn_kv_b", "attn_k_b"), k.contiguous()?);
                out.insert(name.replace("attn_kv_b", "attn_v_b"), v.contiguous()?);
            }
            _ => {
                out.insert(renamed(name), tensor.clone());
            }
        }
    }
    for (name, rows) in stacked {
        let rows: Vec<Tensor> = rows.into_values().collect();
        out.insert(name, Tensor::stack(&rows, 0)?);
    }
    Ok(out)
}

fn n(count: u32) -> Value {
    Value::U32(count)
}

fn f(number: f32) -> Value {
    Value::F32(number)
}

fn listed<const N: usize>(flags: [bool; N]) -> Value {
    Value::Array(flags.map(Value::Bool).to_vec())
}

const LAYER_EPS: &str = "attention.layer_norm_epsilon";
const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";

/// A family: a name, a `config.json`, the architecture, keys of the metadata, and what the converter does.
type Family = (
    &'static str,
    &'static str,
    &'static str,
    Vec<(&'static str, Value)>,
    Converter,
);

/// Sizes that all have: 2 layers of 32, an MLP of 48, 4 heads and 2 key heads, unless `keys` says another.
fn families() -> Vec<Family> {
    vec![
        (
            "falcon 7B",
            r#"{"model_type": "falcon", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}"#,
            "falcon",
            vec![
                (LAYER_EPS, f(1e-5)),
                ("feed_forward_length", n(128)),
                ("attention.head_count_kv", n(1)),
            ],
            Converter::Rename,
        ),
        (
            "falcon 40B",
            r#"{"model_type": "falcon", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_kv_heads": 2, "new_decoder_architecture": true}"#,
            "falcon",
            vec![(LAYER_EPS, f(1e-5)), ("feed_forward_length", n(128))],
            Converter::Sort(2, 2, 8),
        ),
        (
            "falcon 11B, one norm",
            r#"{"model_type": "falcon", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_kv_heads": 2, "new_decoder_architecture": true, "num_ln_in_parallel_attn": 1}"#,
            "falcon",
            vec![(LAYER_EPS, f(1e-5)), ("feed_forward_length", n(128))],
            Converter::Sort(2, 2, 8),
        ),
        (
            "starcoder2",
            r#"{"model_type": "starcoder2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rope_theta": 5000.0}"#,
            "starcoder2",
            vec![(LAYER_EPS, f(1e-5)), ("rope.freq_base", f(5000.))],
            Converter::Rename,
        ),
        (
            "starcoder",
            r#"{"model_type": "gpt_bigcode", "vocab_size": 61, "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4,
                "n_positions": 512}"#,
            "starcoder",
            vec![(LAYER_EPS, f(1e-5)), ("attention.head_count_kv", n(1))],
            Converter::Rename,
        ),
        (
            "stablelm",
            r#"{"model_type": "stablelm", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "use_qkv_bias": true}"#,
            "stablelm",
            vec![(LAYER_EPS, f(1e-5)), ("rope.dimension_count", n(2))],
            Converter::Rename,
        ),
        (
            "stablelm 12B",
            r#"{"model_type": "stablelm", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "qk_layernorm": true,
                "partial_rotary_factor": 0.5, "use_parallel_residual": true}"#,
            "stablelm",
            vec![(LAYER_EPS, f(1e-5)), ("rope.dimension_count", n(4))],
            Converter::StackNorms,
        ),
        (
            "olmo",
            r#"{"model_type": "olmo", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "clip_qkv": 0.8}"#,
            "olmo",
            vec![(LAYER_EPS, f(1e-5)), ("attention.clamp_kqv", f(0.8))],
            Converter::Permute(8),
        ),
        (
            "olmo2",
            r#"{"model_type": "olmo2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6}"#,
            "olmo2",
            vec![(RMS_EPS, f(1e-6))],
            Converter::PostNorms,
        ),
        (
            "granite",
            r#"{"model_type": "granite", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "embedding_multiplier": 6.0,
                "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 3.0, "tie_word_embeddings": true}"#,
            "granite",
            vec![
                (RMS_EPS, f(1e-6)),
                ("embedding_scale", f(6.)),
                ("attention.scale", f(0.2)),
                ("residual_scale", f(0.4)),
                ("logit_scale", f(3.)),
            ],
            Converter::Permute(8),
        ),
        (
            "mpt",
            r#"{"model_type": "mpt", "vocab_size": 61, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
                "attn_config": {"kv_n_heads": 2, "alibi": true, "clip_qkv": 1.5}}"#,
            "mpt",
            vec![
                (LAYER_EPS, f(1e-5)),
                ("feed_forward_length", n(128)),
                ("attention.clamp_kqv", f(1.5)),
                ("attention.max_alibi_bias", f(8.)),
            ],
            Converter::Rename,
        ),
        (
            "chatglm",
            r#"{"model_type": "chatglm", "num_layers": 2, "padded_vocab_size": 61, "hidden_size": 32, "ffn_hidden_size": 48,
                "kv_channels": 8, "num_attention_heads": 4, "seq_length": 512, "layernorm_epsilon": 1e-5, "rmsnorm": true,
                "apply_residual_connection_post_layernorm": false, "post_layer_norm": true, "add_bias_linear": false,
                "add_qkv_bias": true, "bias_dropout_fusion": true, "multi_query_attention": true, "multi_query_group_num": 2,
                "apply_query_key_layer_scaling": true, "attention_softmax_in_fp32": true, "fp32_residual_connection": false,
                "rope_ratio": 500}"#,
            "chatglm",
            vec![
                (RMS_EPS, f(1e-5)),
                ("rope.dimension_count", n(4)),
                ("rope.freq_base", f(5e6)),
            ],
            Converter::Rename,
        ),
        (
            "olmo3",
            r#"{"model_type": "olmo3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
                "sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"], "rope_theta": 10000.0,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}"#,
            "olmo2",
            vec![
                (RMS_EPS, f(1e-5)),
                ("attention.sliding_window", n(6)),
                ("attention.sliding_window_pattern", listed([false, true])),
                ("rope.scaling.type", Value::String("yarn".into())),
                ("rope.scaling.factor", f(4.)),
                ("rope.scaling.original_context_length", n(128)),
            ],
            Converter::PostNorms,
        ),
        (
            "exaone4 without windows",
            r#"{"model_type": "exaone4", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}"#,
            "exaone4",
            vec![(RMS_EPS, f(1e-5))],
            Converter::PostNorms,
        ),
        (
            "exaone4",
            r#"{"model_type": "exaone4", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
                "sliding_window": 6, "sliding_window_pattern": "LG"}"#,
            "exaone4",
            vec![
                (RMS_EPS, f(1e-5)),
                ("attention.sliding_window", n(6)),
                ("attention.sliding_window_pattern", listed([true, false])),
            ],
            Converter::PostNorms,
        ),
        (
            "command-r plus",
            r#"{"model_type": "cohere", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "use_qk_norm": true}"#,
            "command-r",
            vec![
                (LAYER_EPS, f(1e-5)),
                ("logit_scale", f(0.0625)),
                ("rope.freq_base", f(5e5)),
            ],
            Converter::Rename,
        ),
        (
            "cohere2",
            r#"{"model_type": "cohere2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 6,
                "sliding_window_pattern": 2, "logit_scale": 0.25}"#,
            "cohere2",
            vec![
                (LAYER_EPS, f(1e-5)),
                ("logit_scale", f(0.25)),
                ("attention.sliding_window", n(6)),
                ("attention.sliding_window_pattern", n(2)),
            ],
            Converter::Rename,
        ),
        (
            "gptneox",
            r#"{"model_type": "gpt_neox", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rotary_pct": 0.5}"#,
            "gptneox",
            vec![
                (LAYER_EPS, f(1e-5)),
                ("attention.head_count_kv", n(4)),
                ("rope.dimension_count", n(4)),
                ("use_parallel_residual", Value::Bool(true)),
            ],
            Converter::Sort(4, 1, 8),
        ),
        (
            "gptneox in sequence",
            r#"{"model_type": "gpt_neox", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rotary_pct": 1.0,
                "use_parallel_residual": false}"#,
            "gptneox",
            vec![
                (LAYER_EPS, f(1e-5)),
                ("attention.head_count_kv", n(4)),
                ("use_parallel_residual", Value::Bool(false)),
            ],
            Converter::Sort(4, 1, 8),
        ),
        (
            "gpt2",
            r#"{"model_type": "gpt2", "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}"#,
            "gpt2",
            vec![
                (LAYER_EPS, f(1e-5)),
                ("attention.head_count_kv", n(4)),
                ("feed_forward_length", n(128)),
            ],
            Converter::Transpose,
        ),
        (
            "nemotron",
            r#"{"model_type": "nemotron", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}"#,
            "nemotron",
            vec![(LAYER_EPS, f(1e-5)), ("rope.dimension_count", n(4))],
            Converter::PlusOne,
        ),
        (
            "arcee",
            r#"{"model_type": "arcee", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}"#,
            "arcee",
            vec![(RMS_EPS, f(1e-5))],
            Converter::Permute(8),
        ),
        (
            "seed_oss",
            r#"{"model_type": "seed_oss", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16}"#,
            "seed_oss",
            vec![
                (RMS_EPS, f(1e-6)),
                ("attention.key_length", n(16)),
                ("attention.value_length", n(16)),
            ],
            Converter::PostNorms,
        ),
        (
            "ernie4_5",
            r#"{"model_type": "ernie4_5", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16}"#,
            "ernie4_5",
            vec![
                (RMS_EPS, f(1e-5)),
                ("attention.key_length", n(16)),
                ("attention.value_length", n(16)),
                ("rope.freq_base", f(5e5)),
            ],
            Converter::Rename,
        ),
        (
            "hunyuan-dense",
            r#"{"model_type": "hunyuan_v1_dense", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
                "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}}"#,
            "hunyuan-dense",
            vec![
                (RMS_EPS, f(1e-5)),
                ("rope.freq_base", f(1e4 * 50f32.powf(8. / 6.))),
            ],
            Converter::Rename,
        ),
        (
            "mistral3",
            r#"{"model_type": "ministral3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 8,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "llama_4_scaling_beta": 0.1,
                    "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 8}}"#,
            "mistral3",
            vec![
                (RMS_EPS, f(1e-5)),
                ("rope.scaling.type", Value::String("yarn".into())),
                ("rope.scaling.factor", f(4.)),
                ("rope.scaling.original_context_length", n(8)),
                ("rope.scaling.yarn_log_multiplier", f(1.)),
                ("attention.temperature_scale", f(0.1)),
            ],
            Converter::Permute(8),
        ),
        (
            "olmoe",
            r#"{"model_type": "olmoe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "num_experts": 5,
                "num_experts_per_tok": 2}"#,
            "olmoe",
            vec![
                (RMS_EPS, f(1e-5)),
                ("expert_count", n(5)),
                ("expert_used_count", n(2)),
            ],
            Converter::DeepSeek(None),
        ),
        (
            "glm4moe",
            r#"{"model_type": "glm4_moe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
                "use_qk_norm": true, "attention_bias": true, "n_routed_experts": 6, "num_experts_per_tok": 2,
                "moe_intermediate_size": 24, "routed_scaling_factor": 1.5}"#,
            "glm4moe",
            vec![
                (RMS_EPS, f(1e-5)),
                ("block_count", n(3)),
                ("nextn_predict_layers", n(1)),
                ("attention.key_length", n(16)),
                ("attention.value_length", n(16)),
                ("rope.dimension_count", n(8)),
                ("leading_dense_block_count", n(1)),
                ("expert_count", n(6)),
                ("expert_used_count", n(2)),
                ("expert_shared_count", n(1)),
                ("expert_feed_forward_length", n(24)),
                ("expert_weights_scale", f(1.5)),
                ("expert_weights_norm", Value::Bool(true)),
                ("expert_gating_func", n(2)),
            ],
            Converter::PostNormsAndExperts,
        ),
        (
            "deepseek2, V2 Lite in an old file",
            r#"{"model_type": "deepseek_v2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
                "num_hidden_layers": 2, "num_attention_heads": 4, "n_shared_experts": 2, "n_routed_experts": 6,
                "routed_scaling_factor": 2.0, "topk_method": "greedy", "num_experts_per_tok": 3, "first_k_dense_replace": 1,
                "max_position_embeddings": 512, "q_lora_rank": null, "kv_lora_rank": 24, "qk_nope_head_dim": 12,
                "qk_rope_head_dim": 8, "v_head_dim": 16, "rope_scaling": {"type": "yarn", "factor": 4.0,
                "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}}"#,
            "deepseek2",
            vec![
                (RMS_EPS, f(1e-6)),
                ("attention.head_count_kv", n(4)),
                ("attention.key_length", n(20)),
                ("attention.value_length", n(16)),
                ("attention.kv_lora_rank", n(24)),
                ("rope.dimension_count", n(8)),
                ("leading_dense_block_count", n(1)),
                ("expert_count", n(6)),
                ("expert_used_count", n(3)),
                ("expert_shared_count", n(2)),
                ("expert_feed_forward_length", n(24)),
                ("expert_weights_scale", f(2.)),
                ("rope.scaling.type", Value::String("yarn".into())),
                ("rope.scaling.factor", f(4.)),
                ("rope.scaling.original_context_length", n(128)),
                ("rope.scaling.yarn_log_multiplier", f(0.0707)),
            ],
            Converter::DeepSeek(None),
        ),
        (
            "deepseek2, V3",
            r#"{"model_type": "deepseek_v3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
                "num_hidden_layers": 2, "num_attention_heads": 4, "n_shared_experts": 1, "n_routed_experts": 8, "n_group": 4,
                "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "max_position_embeddings": 512,
                "q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16}"#,
            "deepseek2",
            vec![
                (RMS_EPS, f(1e-6)),
                ("attention.head_count_kv", n(1)),
                ("attention.key_length", n(32)),
                ("attention.value_length", n(24)),
                ("attention.key_length_mla", n(20)),
                ("attention.value_length_mla", n(16)),
                ("attention.q_lora_rank", n(20)),
                ("attention.kv_lora_rank", n(24)),
                ("rope.dimension_count", n(8)),
                ("leading_dense_block_count", n(1)),
                ("expert_count", n(8)),
                ("expert_used_count", n(3)),
                ("expert_shared_count", n(1)),
                ("expert_group_count", n(4)),
                ("expert_group_used_count", n(2)),
                ("expert_feed_forward_length", n(24)),
                ("expert_weights_scale", f(2.5)),
                ("expert_weights_norm", Value::Bool(true)),
                ("expert_gating_func", n(2)),
            ],
            Converter::DeepSeek(Some((4, 12))),
        ),
    ]
}

/// The content of a GGUF file of these tensors, and the file.
fn file(
    architecture: &str,
    keys: &[(&str, Value)],
    tensors: &Tensors,
) -> Result<(Content, Cursor<Vec<u8>>)> {
    let mut metadata: HashMap<String, Value> = HashMap::new();
    let sizes = [
        ("block_count", 2),
        ("context_length", 512),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    for (key, value) in sizes {
        metadata.insert(format!("{architecture}.{key}"), n(value));
    }
    for (key, value) in keys {
        metadata.insert(format!("{architecture}.{key}"), value.clone());
    }
    let name = Value::String(architecture.into());
    metadata.insert("general.architecture".into(), name);
    let mut quantized = Vec::new();
    for (name, tensor) in tensors {
        let tensor = QTensor::quantize(&tensor.contiguous()?, GgmlDType::F32)?;
        quantized.push((name.as_str(), tensor));
    }
    let metadata: Vec<_> = metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
    let quantized: Vec<_> = quantized.iter().map(|(name, t)| (*name, t)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &quantized)?;
    file.set_position(0);
    Ok((Content::read(&mut file)?, file))
}

#[test]
fn logits_of_the_same_weights() -> Result<()> {
    let cpu = Device::Cpu;
    for (name, config, architecture, keys, converter) in families() {
        println!("{name}");
        let check = || {
            let kept = RefCell::default();
            let mut weights = Kept(Made(DType::F32, cpu.clone()), &kept);
            let spec = auto::config_spec(config)?;
            let model = Decoder::load(spec, &mut weights, DType::F32, &cpu)?;
            let ids = token_ids(1, 19, VOCAB, &cpu)?;
            let expected = model.next_logits(&ids, 0, &mut model.new_state())?;

            let tensors = convert(&kept.borrow(), converter)?;
            let (content, mut reader) = file(architecture, &keys, &tensors)?;
            let mut source = GgufReader {
                content,
                reader: &mut reader,
            };
            let spec = auto::gguf_spec(&GgufMetadata::new(&source.content.metadata, &source)?)?;
            // Every tensor of the file is used.
            let mut used = Decoder::check_weights(spec.clone(), &mut source)?;
            used.sort();
            used.dedup();
            assert_eq!(used, tensors.keys().cloned().collect::<Vec<_>>());
            let model = Decoder::load(spec, &mut source, DType::F32, &cpu)?;
            let found = model.next_logits(&ids, 0, &mut model.new_state())?;
            assert_close(&found, &expected, 1e-5);
            Ok(())
        };
        check().map_err(|err: candle_core::Error| err.context(name))?;
    }
    Ok(())
}

/// A language model that is part of a checkpoint with encoders of images, under the names of either version of Transformers and under its own.
#[test]
fn language_models_beside_encoders() -> Result<()> {
    let cpu = Device::Cpu;
    let sizes = r#""hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 512"#;
    for (alone, beside, more) in [
        (
            "gemma3_text",
            "gemma3",
            r#", "head_dim": 16, "sliding_window": 6, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}"#,
        ),
        (
            "mistral",
            "mistral3",
            r#", "head_dim": 16, "sliding_window": null, "tie_word_embeddings": false"#,
        ),
        (
            "qwen3",
            "qwen3_vl",
            r#", "head_dim": 16, "rope_scaling": {"mrope_interleaved": true, "mrope_section": [3, 3, 2], "rope_type": "default"}"#,
        ),
        (
            "qwen2",
            "qwen2_5_vl",
            r#", "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}"#,
        ),
    ] {
        let kept = RefCell::default();
        let mut weights = Kept(Made(DType::F32, cpu.clone()), &kept);
        let config = format!(r#"{{"model_type": "{alone}", {sizes}{more}}}"#);
        let spec = auto::config_spec(&config)?;
        let model = Decoder::load(spec, &mut weights, DType::F32, &cpu)?;
        let ids = token_ids(1, 19, VOCAB, &cpu)?;
        let expected = model.next_logits(&ids, 0, &mut model.new_state())?;
        let config = format!(
            r#"{{"model_type": "{beside}", "vision_config": {{"hidden_size": 7}}, "text_config": {{"model_type": "{alone}", {sizes}{more}}}}}"#
        );
        for (model_prefix, head) in [
            ("model.language_model.", "lm_head.weight"),
            ("language_model.model.", "language_model.lm_head.weight"),
            ("model.", "lm_head.weight"),
        ] {
            let renamed = |name: &String| match name.strip_prefix("model.") {
                Some(rest) => format!("{model_prefix}{rest}"),
                None => head.to_string(),
            };
            let tensors = kept.borrow();
            let tensors = tensors
                .iter()
                .map(|(name, tensor)| (renamed(name), tensor.clone()));
            let mut tensors: HashMap<String, Tensor> = tensors.collect();
            let other = Tensor::zeros((2, 2), DType::F32, &cpu)?;
            tensors.insert("vision_tower.embed_tokens.weight".into(), other);
            let vb = VarBuilder::from_tensors(tensors, DType::F32, &cpu);
            let model = Decoder::from_vb(auto::config_spec(&config)?, vb)?;
            let found = model.next_logits(&ids, 0, &mut model.new_state())?;
            assert_close(&found, &expected, 0.);
        }
        // Nothing of it is there: the error has a name that files have.
        let vb = VarBuilder::from_tensors(HashMap::new(), DType::F32, &cpu);
        let err = Decoder::from_vb(auto::config_spec(&config)?, vb)
            .unwrap_err()
            .to_string();
        assert!(err.contains("language_model.embed_tokens.weight"), "{err}");
    }
    Ok(())
}

/// Numbers for every name, kept.
struct Recorder(Arc<Mutex<BTreeMap<String, Tensor>>>);

impl SimpleBackend for Recorder {
    fn get(&self, s: Shape, name: &str, init: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let wanted = Wanted {
            name,
            shape: s.dims(),
            init,
        };
        let stored = at_once(Made(dtype, dev.clone()).read(wanted))?;
        let Stored::Dense(tensor) = stored else {
            panic!("numbers")
        };
        self.0.lock().unwrap().insert(name.into(), tensor.clone());
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        panic!("{name} without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        // The names without a prefix.
        !name.starts_with("bert.") && !name.starts_with("nomic") && !name.starts_with("model.")
    }
}

#[test]
fn vectors_of_the_same_weights() -> Result<()> {
    let cpu = Device::Cpu;
    let bert: &[(&str, &str)] = &[
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
    ];
    let nomic: &[(&str, &str)] = &[
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("emb_ln", "token_embd_norm"),
        ("attn.Wqkv", "attn_qkv"),
        ("attn.out_proj", "attn_output"),
        ("norm1", "attn_output_norm"),
        ("mlp.fc11", "ffn_up"),
        ("mlp.fc12", "ffn_gate"),
        ("mlp.fc2", "ffn_down"),
        ("norm2", "layer_output_norm"),
    ];
    for (architecture, config, names, keys) in [
        (
            "bert",
            r#"{"model_type": "bert", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                "intermediate_size": 48, "max_position_embeddings": 40}"#,
            bert,
            vec![
                (LAYER_EPS, f(1e-12)),
                ("pooling_type", n(2)),
                ("attention.causal", Value::Bool(false)),
            ],
        ),
        (
            "nomic-bert",
            r#"{"model_type": "nomic_bert", "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48,
                "n_positions": 512, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000.0, "qkv_proj_bias": false,
                "mlp_fc1_bias": false, "mlp_fc2_bias": false}"#,
            nomic,
            vec![
                (LAYER_EPS, f(1e-12)),
                ("pooling_type", n(1)),
                ("rope.freq_base", f(1000.)),
            ],
        ),
    ] {
        let kept = Arc::default();
        let backend = Box::new(Recorder(Arc::clone(&kept)));
        let vb = VarBuilder::from_backend(backend, DType::F32, cpu.clone());
        let encoder = EncoderConfig::parse(config)?.load(vb)?;
        let renamed = |name: &String| {
            let (stem, ending) = name.rsplit_once('.').unwrap();
            let inner = ["encoder.layer.", "encoder.layers."]
                .iter()
                .find_map(|layers| stem.strip_prefix(layers));
            let part = inner.map_or(stem, |inner| inner.split_once('.').unwrap().1);
            let entry = names.iter().find(|(from, _)| *from == part);
            let to = entry.unwrap_or_else(|| panic!("{name}")).1;
            match inner {
                Some(inner) => format!("blk.{}.{to}.{ending}", inner.split_once('.').unwrap().0),
                None => format!("{to}.{ending}"),
            }
        };
        let tensors: Tensors = kept
            .lock()
            .unwrap()
            .iter()
            .map(|(name, t)| (renamed(name), t.clone()))
            .collect();
        let (_, bytes) = file(architecture, &keys, &tensors)?;
        let path = tempfile::NamedTempFile::new()?;
        std::fs::write(path.path(), bytes.into_inner())?;
        // SAFETY: nothing changes the file while it is mapped.
        let content = Arc::new(unsafe { MmapedContent::new(path.path())? });
        let (config, recipe) = EncoderConfig::of_gguf(&content)?;
        assert_eq!(recipe.pooling == Pooling::Cls, architecture == "bert");
        let vb = gguf_weights(content.clone(), DType::F32, &cpu)?;
        let found = config.load(vb)?;
        let texts = [vec![2u32, 7, 9, 11, 3], vec![2, 8, 3]];
        let options = Options {
            pooling: recipe.pooling,
            normalize: recipe.normalize,
            ..Options::default()
        };
        let (found, expected) = (
            found.embed(&texts, &options)?,
            encoder.embed(&texts, &options)?,
        );
        assert_close(&found, &expected, 1e-5);

        // A tensor that is not there has both names.
        let mut lacking = tensors.clone();
        lacking.remove("blk.1.ffn_down.weight").unwrap();
        let (_, bytes) = file(architecture, &keys, &lacking)?;
        std::fs::write(path.path(), bytes.into_inner())?;
        // SAFETY: as above; `content` is not used any more.
        let content = Arc::new(unsafe { MmapedContent::new(path.path())? });
        let (config, _) = EncoderConfig::of_gguf(&content)?;
        let err = config.load(gguf_weights(content, DType::F32, &cpu)?);
        let err = err.err().expect("a tensor is missing").to_string();
        assert!(
            err.contains("blk.1.ffn_down.weight") && err.contains("encoder.layer"),
            "{err}"
        );
    }
    Ok(())
}

#[test]
fn values_that_do_not_fit_are_named() -> Result<()> {
    let cpu = Device::Cpu;
    let error = |architecture: &str, keys: &[(&str, Value)]| {
        let (_, config, _, all, converter) = families()
            .into_iter()
            .rfind(|family| family.2 == architecture)
            .expect("a family");
        let kept = RefCell::default();
        let mut weights = Kept(Made(DType::F32, cpu.clone()), &kept);
        let spec = auto::config_spec(config).unwrap();
        Decoder::load(spec, &mut weights, DType::F32, &cpu).unwrap();
        let keys = [all.as_slice(), keys].concat();
        let tensors = convert(&kept.borrow(), converter).unwrap();
        let (content, mut reader) = file(architecture, &keys, &tensors).unwrap();
        let source = GgufReader {
            content,
            reader: &mut reader,
        };
        let metadata = GgufMetadata::new(&source.content.metadata, &source);
        metadata
            .and_then(|m| auto::gguf_spec(&m))
            .unwrap_err()
            .to_string()
    };
    for (architecture, key, value, reason) in [
        // The last of its families has windows.
        (
            "olmo2",
            "attention.sliding_window_pattern",
            listed([true, false, true]),
            "3 values; there are 2 layers",
        ),
        (
            "exaone4",
            "attention.sliding_window_pattern",
            Value::Array(vec![n(1), n(0)]),
            "true and false",
        ),
        ("deepseek2", "expert_gating_func", n(7), "sigmoid"),
        (
            "deepseek2",
            "rope.dimension_count",
            n(20),
            "below the size of a key, 20",
        ),
        ("falcon", LAYER_EPS, f(0.), "above 0"),
        (
            "granite",
            "rope.scaling.finetuned",
            n(1),
            "rope.scaling.finetuned",
        ),
    ] {
        let found = error(architecture, &[(key, value)]);
        assert!(found.contains(key) && found.contains(reason), "{found}");
    }
    Ok(())
}
