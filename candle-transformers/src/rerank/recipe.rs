//! The files that sentence-transformers stores with a reranker.

use candle_core::{bail, Context, Result};
use serde::Deserialize;

use super::Scale;
use crate::embed::recipe::{read, Limits};

/// A model's format of pairs and use of logits, by the files of sentence-transformers. The default is that of a folder without them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recipe {
    /// The function from logits to scores.
    pub scale: Scale,
    /// Maximum length of a pair, in tokens; longer ones are truncated. The model may take more.
    pub max_tokens: Option<usize>,
    /// Whether texts are put into lower case before the tokenizer sees them.
    pub lowercase: bool,
}

#[derive(Deserialize)]
struct Said {
    activation_fn: Option<String>,
}

#[derive(Deserialize)]
struct InConfig {
    sentence_transformers: Option<Said>,
    sbert_ce_default_activation_function: Option<String>,
}

impl Recipe {
    /// Reads the activation in `config_sentence_transformers.json`, or else in `config.json`; and for the longest pair
    /// `sentence_bert_config.json`, or else `tokenizer_config.json`. `file` gives the text of one by its name, `None` where it is not there.
    ///
    /// # Errors
    /// Those of `file`; a file that is not JSON of its form, or an activation that is not supported.
    pub fn read(file: &mut dyn FnMut(&str) -> Result<Option<String>>) -> Result<Self> {
        const NEWEST: &str = "config_sentence_transformers.json";
        const CONFIG: &str = "config.json";
        let own: Option<Said> = read(file, NEWEST)?;
        let config: Option<InConfig> = read(file, CONFIG)?;
        let said = match (own.and_then(|own| own.activation_fn), config) {
            (Some(name), _) => Some((NEWEST, name)),
            (None, None) => None,
            (None, Some(config)) => {
                let newer = config.sentence_transformers.and_then(|it| it.activation_fn);
                let name = newer.or(config.sbert_ce_default_activation_function);
                name.map(|name| (CONFIG, name))
            }
        };
        let scale = match said {
            None => Scale::default(),
            Some((place, name)) => scale_of(&name).context(place)?,
        };
        let Limits {
            max_tokens,
            lowercase,
        } = Limits::read(file)?;
        Ok(Self {
            scale,
            max_tokens,
            lowercase,
        })
    }
}

/// Files have the path of a class of PyTorch.
fn scale_of(name: &str) -> Result<Scale> {
    match name.rsplit('.').next().unwrap_or_default() {
        "Sigmoid" => Ok(Scale::Sigmoid),
        "Identity" => Ok(Scale::Identity),
        _ => bail!("activation {name:?} is not supported; expected Sigmoid or Identity"),
    }
}
