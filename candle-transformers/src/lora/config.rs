//! `adapter_config.json`: what an adapter is, and the factor of its changes.

use std::collections::BTreeMap;

use candle_core::{bail, Context, Result};
use fancy_regex::Regex;
use serde_json::Value;

/// Kinds of `init_lora_weights` that change the model's own weights before training, which the adapter's file does not have.
const CHANGED_MODEL: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Fields of variants that compute something else than `scale * B A`.
const VARIANTS: [&str; 9] = [
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "lora_bias",
    "use_qalora",
    "alora_invocation_tokens",
    "arrow_config",
    "use_bdlora",
    "ensure_weight_tying",
];

/// The fields of `adapter_config.json` on which sums depend.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Option<String>,
    pub(super) dora: bool,
    rank: usize,
    alpha: f64,
    rslora: bool,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
}

impl Config {
    /// # Errors
    /// No JSON object, another method than LoRA, a variant of it that is not supported, a field that does not fit; each with its name.
    pub(super) fn parse(json: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(json)
            .map_err(candle_core::Error::wrap)
            .context("adapter_config.json")?;
        let text = |key: &str| json.get(key).and_then(Value::as_str);
        match text("peft_type") {
            Some("LORA") => {}
            Some(other) => bail!("adapter_config.json: peft_type {other:?} is not supported; supported: LORA"),
            None => bail!("adapter_config.json: peft_type is missing; expected \"LORA\": is this an adapter of peft?"),
        }
        for name in VARIANTS {
            if json.get(name).is_some_and(is_on) {
                bail!(
                    "adapter_config.json: {name} = {} is not supported; merge the adapter with peft's `merge_and_unload`",
                    json[name]
                )
            }
        }
        if let Some(init) = text("init_lora_weights") {
            let lower = init.to_ascii_lowercase();
            if CHANGED_MODEL.iter().any(|kind| lower.starts_with(kind)) {
                bail!(
                    "adapter_config.json: init_lora_weights {init:?} changes the model's own weights; save the adapter with peft's \
                     `path_initial_model_for_weight_conversion`"
                )
            }
        }
        if let Some(bias @ ("all" | "lora_only")) = text("bias") {
            // Their tensors are replacements, as those of `modules_to_save`.
            tracing::debug!("bias {bias:?}: biases come from the adapter");
        }
        let number = |key: &str| match json.get(key) {
            Some(Value::Number(n)) => n.as_f64().filter(|n| n.is_finite()),
            _ => None,
        };
        let rank = json.get("r").and_then(Value::as_u64).filter(|r| *r > 0);
        let Some(rank) = rank.and_then(|r| usize::try_from(r).ok()) else {
            bail!(
                "adapter_config.json: r must be a whole number of at least 1, found {}",
                json["r"]
            )
        };
        let Some(alpha) = number("lora_alpha") else {
            bail!(
                "adapter_config.json: lora_alpha must be a number, found {}",
                json["lora_alpha"]
            )
        };
        let flag = |key: &str| match json.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => bail!("adapter_config.json: {key} must be true or false, found {other}"),
        };
        Ok(Self {
            base: text("base_model_name_or_path")
                .filter(|name| !name.is_empty())
                .map(str::to_string),
            dora: flag("use_dora")?,
            rslora: flag("use_rslora")?,
            rank,
            alpha,
            ranks: patterns(&json, "rank_pattern")?,
            alphas: patterns(&json, "alpha_pattern")?,
        })
    }

    /// The factor of `B A` for the module `name`, whose `A` has `rank` rows.
    ///
    /// # Errors
    /// The configuration says another rank.
    pub(super) fn scale(&self, name: &str, rank: usize) -> Result<f64> {
        let said = of_pattern(&self.ranks, name)?.map_or(self.rank, |rank| rank as usize);
        if said != rank {
            bail!(
                "module {name:?}: lora_A has {rank} rows, but adapter_config.json says rank {said}"
            )
        }
        let alpha = of_pattern(&self.alphas, name)?.unwrap_or(self.alpha);
        Ok(if self.rslora {
            alpha / (rank as f64).sqrt()
        } else {
            alpha / rank as f64
        })
    }
}

/// Whether a field says something else than "no".
fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

/// Numbers by the end of a module's name, which is a regular expression, in the order of the file.
fn patterns(json: &Value, key: &str) -> Result<Vec<(Regex, f64)>> {
    let map: BTreeMap<String, Value> = match json.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(map)) => map.clone().into_iter().collect(),
        Some(other) => bail!("adapter_config.json: {key} must be an object, found {other}"),
    };
    let pattern = |(pattern, value): (String, Value)| {
        let Some(number) = value.as_f64().filter(|n| n.is_finite()) else {
            bail!("adapter_config.json: {key}.{pattern} must be a number, found {value}")
        };
        let whole = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$"))
            .map_err(candle_core::Error::wrap)
            .with_context(|| format!("adapter_config.json: {key}.{pattern}"))?;
        Ok((whole, number))
    };
    map.into_iter().map(pattern).collect()
}

/// The number of the pattern that fits. Of several, peft takes the first of its file, whose order is gone here: they have to agree.
fn of_pattern(patterns: &[(Regex, f64)], name: &str) -> Result<Option<f64>> {
    let mut found: Option<(&Regex, f64)> = None;
    for (pattern, number) in patterns {
        if !pattern.is_match(name).map_err(candle_core::Error::wrap)? {
            continue;
        }
        match found {
            Some((first, other)) if other != *number => bail!(
                "module {name:?}: the patterns {:?} and {:?} of adapter_config.json give {other} and {number}; expected one of them",
                first.as_str(),
                pattern.as_str()
            ),
            _ => found = Some((pattern, *number)),
        }
    }
    Ok(found.map(|(_, number)| number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Result<Config> {
        Config::parse(&format!(
            r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 8{more}}}"#
        ))
    }

    #[test]
    fn scales() -> Result<()> {
        let name = "model.layers.1.self_attn.q_proj";
        assert_eq!(config("")?.scale(name, 4)?, 2.);
        assert_eq!(config(r#", "use_rslora": true"#)?.scale(name, 4)?, 4.);
        let some = config(
            r#", "rank_pattern": {"layers.1.self_attn.q_proj": 2, "^model.layers.0.mlp.up_proj": 1}, "alpha_pattern": {"q_proj": 3}"#,
        )?;
        assert_eq!(some.scale(name, 2)?, 1.5);
        assert_eq!(some.scale("model.layers.0.mlp.up_proj", 1)?, 8.);
        assert_eq!(some.scale("model.layers.0.k_q_proj", 4)?, 2.);
        let err = some.scale(name, 4).unwrap_err().to_string();
        assert!(err.contains("4 rows") && err.contains("rank 2"), "{err}");
        Ok(())
    }

    #[test]
    fn what_is_refused_is_named() {
        for (json, part) in [
            ("[", "adapter_config.json"),
            ("{}", "peft_type is missing"),
            (r#"{"peft_type": "IA3"}"#, "\"IA3\""),
            (
                r#"{"peft_type": "LORA", "r": 0, "lora_alpha": 1}"#,
                "r must be",
            ),
            (r#"{"peft_type": "LORA", "r": 2}"#, "lora_alpha"),
        ] {
            let err = Config::parse(json).unwrap_err().to_string();
            assert!(err.contains(part), "{json}: {err}");
        }
        for (more, part) in [
            (r#", "layer_replication": [[0, 4]]"#, "layer_replication"),
            (
                r#", "target_parameters": ["experts.up"]"#,
                "target_parameters",
            ),
            (r#", "init_lora_weights": "pissa_niter_4""#, "pissa_niter_4"),
            (r#", "use_rslora": 1"#, "use_rslora"),
            (r#", "rank_pattern": {"(": 2}"#, "rank_pattern"),
        ] {
            let err = config(more).unwrap_err().to_string();
            assert!(err.contains(part), "{more}: {err}");
        }
        assert!(config(r#", "target_parameters": [], "init_lora_weights": true"#).is_ok());
    }
}
