//! What sentence-transformers writes beside a model: how its tokens' vectors become a text's.

use candle_core::{bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{DenseSpec, Pooling};
use crate::auto::config::parse;

/// How a model wants its texts and its tokens' vectors, by the files of sentence-transformers. The default is that of a folder without
/// them, which sentence-transformers takes for a model whose tokens' vectors are averaged and left as long as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// How the tokens' vectors become one.
    pub pooling: Pooling,
    /// Whether it is divided by its length.
    pub normalize: bool,
    /// Where longer texts are cut, in tokens; the model may take more.
    pub max_tokens: Option<usize>,
    /// Whether texts are put into lower case before the tokenizer sees them.
    pub lowercase: bool,
    /// Whether the tokens of a prefix count when tokens are averaged.
    pub include_prefix: bool,
    /// The layers behind the pooling, in order.
    pub dense: Vec<DenseSpec>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            pooling: Pooling::Mean,
            normalize: false,
            max_tokens: None,
            lowercase: false,
            include_prefix: true,
            dense: Vec::new(),
        }
    }
}

#[derive(Deserialize)]
struct Module {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
struct TextLimits {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

#[derive(Deserialize)]
struct TokenizerLimits {
    model_max_length: Option<f64>,
}

impl Recipe {
    /// Reads `modules.json`, the configuration of pooling that it names (or `1_Pooling/config.json`), `sentence_bert_config.json` and, for the
    /// longest text, `tokenizer_config.json`. `file` gives the text of one by its path in the folder, `None` where it is not there. With
    /// `pooling`, that one is taken, whatever the files say.
    ///
    /// # Errors
    /// Those of `file`; a file that is no JSON of its form, a module or a pooling that is not supported.
    pub fn read(
        file: &mut dyn FnMut(&str) -> Result<Option<String>>,
        pooling: Option<Pooling>,
    ) -> Result<Self> {
        let mut recipe = Self::default();
        let modules: Option<Vec<Module>> = read(file, "modules.json")?;
        let mut folder = "1_Pooling".to_string();
        for Module { kind, path } in modules.iter().flatten() {
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" | "Dropout" => (),
                "Pooling" => folder.clone_from(checked(path)?),
                "Dense" => recipe
                    .dense
                    .push(DenseSpec::read(&mut *file, checked(path)?)?),
                "Normalize" => recipe.normalize = true,
                other => bail!(
                    "modules.json: module {other:?} is not supported; expected Transformer, Pooling, Dense or Normalize"
                ),
            }
        }
        let path = format!("{folder}/config.json");
        let given: Option<Map<String, Value>> = read(file, &path)?;
        if let Some(fields) = &given {
            recipe.include_prefix = fields.get("include_prompt") != Some(&Value::Bool(false));
        }
        recipe.pooling = match (pooling, &given) {
            (Some(pooling), _) => pooling,
            (None, Some(fields)) => pooling_of(fields).context(path)?,
            (None, None) => Pooling::Mean,
        };
        let limits = Limits::read(file)?;
        recipe.max_tokens = limits.max_tokens;
        recipe.lowercase = limits.lowercase;
        Ok(recipe)
    }
}

/// How a text is changed before the model reads it.
pub(crate) struct Limits {
    /// Where longer texts are cut, in tokens.
    pub(crate) max_tokens: Option<usize>,
    /// Whether they are put into lower case.
    pub(crate) lowercase: bool,
}

impl Limits {
    /// Reads `sentence_bert_config.json` and, for the longest text, `tokenizer_config.json`.
    pub(crate) fn read(file: &mut dyn FnMut(&str) -> Result<Option<String>>) -> Result<Self> {
        let said: Option<TextLimits> = read(file, "sentence_bert_config.json")?;
        let lowercase = said.as_ref().is_some_and(|said| said.do_lower_case);
        let mut max_tokens = said.and_then(|said| said.max_seq_length);
        if max_tokens.is_none() {
            let limits: Option<TokenizerLimits> = read(file, "tokenizer_config.json")?;
            // Without a limit, transformers writes 1e30.
            let limit = limits.and_then(|limits| limits.model_max_length);
            max_tokens = limit
                .filter(|limit| (1. ..1e9).contains(limit))
                .map(|limit| limit as usize);
        }
        if max_tokens == Some(0) {
            bail!("sentence_bert_config.json: max_seq_length is 0; it must be at least 1")
        }
        Ok(Self {
            max_tokens,
            lowercase,
        })
    }
}

/// The folder of a module.
fn checked(path: &String) -> Result<&String> {
    if path.is_empty() || path.contains(['/', '\\']) || path.starts_with('.') {
        bail!("modules.json: path {path:?} is not a sibling folder of the file")
    }
    Ok(path)
}

pub(crate) fn read<T: DeserializeOwned>(
    file: &mut dyn FnMut(&str) -> Result<Option<String>>,
    name: &str,
) -> Result<Option<T>> {
    let text = file(name)?;
    let parsed = text.map(|text| parse(&text)).transpose();
    parsed.with_context(|| name.to_string())
}

/// Newer files name the pooling, older ones have a switch for each.
fn pooling_of(fields: &Map<String, Value>) -> Result<Pooling> {
    const SWITCH: &str = "pooling_mode_";
    let named = fields.get("pooling_mode").and_then(Value::as_str);
    let on: Vec<&str> = match named {
        Some(name) => vec![name],
        None => fields
            .iter()
            .filter(|(_, value)| **value == Value::Bool(true))
            .filter_map(|(name, _)| name.strip_prefix(SWITCH))
            .collect(),
    };
    match on[..] {
        ["mean" | "mean_tokens"] => Ok(Pooling::Mean),
        ["cls" | "cls_token"] => Ok(Pooling::Cls),
        ["lasttoken"] => Ok(Pooling::Last),
        [] => bail!("no pooling mode is enabled; choose mean, cls or last"),
        _ => bail!(
            "pooling mode {} is not supported; expected mean, cls or last",
            on.join(" and ")
        ),
    }
}
