//! A draft model, as arguments of several commands, and what became of its tokens.

use candle_core::DType;
use candle_engine::format::KvType;
use candle_engine::model::{ModelFiles, ModelSource};
use candle_engine::registry::BackendEntry;
use candle_engine::{CandleBackend, Completion};
use std::path::PathBuf;

/// Default of `--draft-tokens`: only a limit, since the number follows from their success.
const TOKENS: usize = 8;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Draft {
    /// Draft model: a smaller model with the same tokenizer, as for --model. It proposes tokens, and the model verifies them in one step. The
    /// output is the same, drawn or not; it is faster where the draft model is often right
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,
    /// Maximum number of tokens that the draft model proposes at once, 1 to 64. How many it does follows from how often they are right and from
    /// what they cost [default: 8]
    #[arg(long, value_name = "N", requires = "draft")]
    draft_tokens: Option<usize>,
}

/// A draft model that fits, on no device yet.
pub(super) struct DraftFiles {
    files: ModelFiles,
    tokens: usize,
}

/// A draft model on its device.
pub(super) struct LoadedDraft {
    model: CandleBackend,
    tokens: usize,
}

impl Draft {
    /// Whether there is one.
    #[cfg(feature = "api")]
    pub(super) fn is_given(&self) -> bool {
        self.draft.is_some()
    }

    /// Reads the draft model for `model`, if the command has one.
    ///
    /// # Errors
    /// Files that are missing or do not fit, and a model with another vocabulary.
    pub(super) fn open(
        &self,
        model: &ModelFiles,
        kv_type: KvType,
    ) -> candle_engine::Result<Option<DraftFiles>> {
        let Some(path) = &self.draft else {
            return Ok(None);
        };
        let tokens = self.draft_tokens.unwrap_or(TOKENS);
        CandleBackend::check_draft_tokens(tokens)?;
        let mut files = ModelFiles::open(&ModelSource::at(path.clone()))?;
        files.kv_type = kv_type;
        model.check_draft(&files)?;
        Ok(Some(DraftFiles { files, tokens }))
    }
}

impl DraftFiles {
    /// The size of its weights in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.total_bytes()
    }

    /// The name of the pair in messages: `model with draft model NAME`.
    pub(super) fn with(draft: Option<&Self>, model: &str) -> String {
        match draft {
            None => model.to_string(),
            Some(draft) => format!("{model} with draft model {}", draft.files.name),
        }
    }

    /// Loads a draft model, if there is one.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn load(
        draft: Option<Self>,
        entry: &BackendEntry,
        dtype: Option<DType>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> candle_engine::Result<Option<LoadedDraft>> {
        let Some(draft) = draft else {
            return Ok(None);
        };
        Ok(Some(LoadedDraft {
            model: entry.load(draft.files, dtype, progress)?,
            tokens: draft.tokens,
        }))
    }
}

impl LoadedDraft {
    /// `model` with a draft model, if there is one.
    ///
    /// # Errors
    /// A pair that cannot work together.
    pub(super) fn beside(
        draft: Option<Self>,
        model: CandleBackend,
    ) -> candle_engine::Result<CandleBackend> {
        match draft {
            None => Ok(model),
            Some(draft) => model.with_draft(draft.model, draft.tokens),
        }
    }
}

/// The count of proposed and accepted tokens as a line, if tokens were proposed.
pub(super) fn of_proposals(completion: &Completion) -> Option<String> {
    let guesses = completion.guesses?;
    let (made, right) = (guesses.made, guesses.right);
    let share = match made {
        0 => String::new(),
        made => format!(" ({:.0}%)", right as f64 / made as f64 * 100.),
    };
    Some(format!("proposed tokens: {made}, accepted: {right}{share}"))
}
