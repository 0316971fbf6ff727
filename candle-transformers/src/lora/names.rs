//! From the names of modules in Transformers, which adapters have, to those of a model's files.

use candle_core::{bail, Result};

use crate::blocks::{DecoderSpec, MixerSpec, Names, RotaryPairs};

/// Parts of a module's path that some versions of Transformers, or some files, have and others have not.
const OUTER: [&str; 5] = [
    "model",
    "language_model",
    "transformer",
    "backbone",
    "base_model",
];

/// A name without the outer parts of its path: `model.language_model.layers.0`, `language_model.model.layers.0` and
/// `model.layers.0` are one.
pub(super) fn canonical(name: &str) -> &str {
    let mut rest = name;
    while let Some((first, behind)) = rest.split_once('.') {
        if OUTER.contains(&first) {
            rest = behind
        } else {
            break;
        }
    }
    rest
}

/// Families of GGUF files whose tensors have the rows of the modules, and those whose queries and keys the converter permutes.
const GGUF_FAMILIES: [(&str, bool); 10] = [
    ("llama", true),
    ("granite", true),
    ("olmo", true),
    ("arcee", true),
    ("qwen2", false),
    ("qwen3", false),
    ("phi3", false),
    ("gemma", false),
    ("starcoder2", false),
    ("gpt2", false),
];

/// Modules of a layer, and what GGUF files call them.
const GGUF_PARTS: [(&str, &str); 13] = [
    ("self_attn.q_proj", Names::GGUF.q),
    ("self_attn.k_proj", Names::GGUF.k),
    ("self_attn.v_proj", Names::GGUF.v),
    ("self_attn.o_proj", Names::GGUF.o),
    ("self_attn.qkv_proj", Names::GGUF.qkv),
    ("mlp.gate_proj", Names::GGUF.gate),
    ("mlp.up_proj", Names::GGUF.up),
    ("mlp.down_proj", Names::GGUF.down),
    ("mlp.gate_up_proj", Names::GGUF.gate_up),
    ("attn.c_attn", Names::GGUF.qkv),
    ("attn.c_proj", Names::GGUF.o),
    ("mlp.c_fc", Names::GGUF.up),
    ("mlp.c_proj", Names::GGUF.down),
];

/// Whether a decoder's names are those of GGUF files.
pub(super) fn is_gguf(spec: &DecoderSpec) -> bool {
    spec.names.layers == Names::GGUF.layers
}

/// The location of a module in a GGUF file.
pub(super) struct GgufPlace {
    /// The tensor, without `.weight`.
    pub(super) name: String,
    /// The heads of its outputs that the converter permutes: how many, and the size of each.
    pub(super) permuted: Option<(usize, usize)>,
}

/// The tensor of a module, by its canonical name.
///
/// # Errors
/// A family with an unknown converter, or a module without a separate tensor.
pub(super) fn in_gguf(spec: &DecoderSpec, module: &str) -> Result<GgufPlace> {
    let family = GGUF_FAMILIES.iter().find(|(name, _)| *name == spec.family);
    let Some((_, permutes)) = family else {
        let known: Vec<&str> = GGUF_FAMILIES.iter().map(|(name, _)| *name).collect();
        bail!(
            "LoRA beside a GGUF file of {} is not supported; supported: {}; or use the model's safetensors",
            spec.family,
            known.join(", ")
        )
    };
    let plain = |name: &str| GgufPlace {
        name: name.to_string(),
        permuted: None,
    };
    match module {
        "lm_head" => return Ok(plain(Names::GGUF.head)),
        "embed_tokens" | "wte" => return Ok(plain(Names::GGUF.embedding)),
        _ => {}
    }
    let inside = ["layers.", "h."].iter().find_map(|before| {
        let (index, part) = module.strip_prefix(before)?.split_once('.')?;
        let (_, gguf) = GGUF_PARTS.iter().find(|(name, _)| *name == part)?;
        Some((index.parse::<usize>().ok()?, *gguf))
    });
    let Some((index, part)) = inside else {
        bail!(
            "module {module:?} has no known tensor in GGUF files; supported are the projections of attention and MLP, and lm_head: use the \
             model's safetensors"
        )
    };
    let attention = match spec.layers.get(index).map(|layer| &layer.mixer) {
        Some(MixerSpec::Attention(attention)) => Some(attention),
        _ => None,
    };
    let permuted = attention.filter(|_| *permutes).and_then(|attention| {
        let rotary = spec.rotaries.get(attention.rotary.unwrap_or(0))?;
        let heads = match part {
            _ if part == Names::GGUF.q => attention.heads,
            _ if part == Names::GGUF.k => attention.kv_heads,
            _ => return None,
        };
        (rotary.pairs == RotaryPairs::Neighbours).then_some((heads, attention.head_dim))
    });
    Ok(GgufPlace {
        name: format!("{}.{part}", spec.names.layer(index)),
        permuted,
    })
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn outer_parts_do_not_count() {
        for name in [
            "model.layers.0.mlp.up_proj",
            "layers.0.mlp.up_proj",
            "model.language_model.layers.0.mlp.up_proj",
            "language_model.model.layers.0.mlp.up_proj",
        ] {
            assert_eq!(canonical(name), "layers.0.mlp.up_proj");
        }
        assert_eq!(canonical("transformer.h.0.attn.c_attn"), "h.0.attn.c_attn");
        assert_eq!(canonical("language_model.lm_head"), "lm_head");
        assert_eq!(canonical("model.visual.merger"), "visual.merger");
    }
}
