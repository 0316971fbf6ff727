//! The tokens that steer the decoder.

use candle_core::{bail, Result};

use super::super::{
    EOT_TOKEN, NO_SPEECH_TOKENS, NO_TIMESTAMPS_TOKEN, SOT_TOKEN, TRANSCRIBE_TOKEN, TRANSLATE_TOKEN,
};

/// From tokens to text and back; a `tokenizer.json` is one.
pub trait Vocabulary: Send {
    /// The number of a token, by its text as the vocabulary has it.
    fn id(&self, token: &str) -> Option<u32>;

    /// The text of tokens without special ones. Bytes that do not form a character become U+FFFD.
    ///
    /// # Errors
    /// A token is unknown.
    fn text(&self, tokens: &[u32]) -> Result<String>;
}

/// The models' languages, by the codes of ISO 639 in the order of their tokens. Models before `large-v3` lack the last one.
pub const LANGUAGES: [&str; 100] = [
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it",
    "id", "hi", "fi", "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur",
    "hr", "bg", "lt", "la", "mi", "ml", "cy", "sk", "te", "fa", "lv", "bn", "sr", "az", "sl", "kn",
    "et", "mk", "br", "eu", "is", "hy", "ne", "mn", "bs", "kk", "sq", "sw", "gl", "mr", "pa", "si",
    "km", "sn", "yo", "so", "af", "oc", "ka", "be", "tg", "sd", "gu", "am", "yi", "lo", "uz", "fo",
    "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln",
    "ha", "ba", "jw", "su", "yue",
];

/// Sizes of vocabularies from here on are those of models for several languages.
const MULTILINGUAL: usize = 51_865;
/// A space by itself, as byte-level vocabularies write it.
const SPACE: &str = "Ġ";
/// Precedes the text of earlier windows.
const PREVIOUS_TOKEN: &str = "<|startofprev|>";
/// Asks for a language model alone.
const LANGUAGE_MODEL_TOKEN: &str = "<|startoflm|>";

/// The numbers of the special tokens.
#[derive(Debug, Clone)]
pub(super) struct Special {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) transcribe: u32,
    pub(super) translate: u32,
    pub(super) no_timestamps: u32,
    /// The token of 0.00 seconds; each later one is 0.02 s more.
    pub(super) first_time: u32,
    pub(super) no_speech: Option<u32>,
    pub(super) previous: Option<u32>,
    pub(super) space: Option<u32>,
    language_model: Option<u32>,
    /// Empty for a model of English alone.
    pub(super) languages: Vec<(&'static str, u32)>,
}

impl Special {
    /// The special tokens of a model with a vocabulary of `size`.
    pub(super) fn of(vocabulary: &dyn Vocabulary, size: usize) -> Result<Self> {
        let id = |token: &str| match vocabulary.id(token) {
            Some(id) => Ok(id),
            None => bail!(
                "whisper: the vocabulary has no {token}; does tokenizer.json belong to the model?"
            ),
        };
        let no_timestamps = id(NO_TIMESTAMPS_TOKEN)?;
        let language = |code: &&'static str| Some((*code, vocabulary.id(&format!("<|{code}|>"))?));
        let mut languages: Vec<_> = if size >= MULTILINGUAL {
            LANGUAGES.iter().filter_map(language).collect()
        } else {
            Vec::new()
        };
        languages.retain(|(_, id)| (*id as usize) < size);
        Ok(Self {
            start: id(SOT_TOKEN)?,
            end: id(EOT_TOKEN)?,
            transcribe: id(TRANSCRIBE_TOKEN)?,
            translate: id(TRANSLATE_TOKEN)?,
            no_timestamps,
            first_time: no_timestamps + 1,
            no_speech: NO_SPEECH_TOKENS.iter().find_map(|t| vocabulary.id(t)),
            previous: vocabulary.id(PREVIOUS_TOKEN),
            space: vocabulary.id(SPACE),
            language_model: vocabulary.id(LANGUAGE_MODEL_TOKEN),
            languages,
        })
    }

    /// Tokens that no text has.
    pub(super) fn never(&self) -> impl Iterator<Item = u32> {
        let always = [self.start, self.transcribe, self.translate];
        let some = [self.no_speech, self.previous, self.language_model];
        always.into_iter().chain(some.into_iter().flatten())
    }

    /// The token of a language.
    pub(super) fn language(&self, code: &str) -> Result<u32> {
        let known = self.languages.iter().find(|(known, _)| *known == code);
        match known {
            Some((_, id)) => Ok(*id),
            None => {
                let known: Vec<_> = self.languages.iter().map(|(code, _)| *code).collect();
                bail!(
                    "whisper: the model does not support the language {code:?}; supported: {}",
                    known.join(", ")
                )
            }
        }
    }

    /// The seconds of a token of time.
    pub(super) fn seconds(&self, token: u32) -> f64 {
        f64::from(token.saturating_sub(self.first_time)) * 0.02
    }
}
