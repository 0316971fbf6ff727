//! CLIP's tokenizer, of the files in the folder `tokenizer` of diffusers' layout.

use candle_core::{bail, Context, Error, Result};
use serde_json::Value;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::{Lowercase, Sequence, NFC};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
/// Contractions, words, digits, and everything else.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+";

/// The texts of the tokenizer's files.
pub struct TokenizerFiles {
    /// `vocab.json`.
    pub vocab: String,
    /// `merges.txt`.
    pub merges: String,
    /// `special_tokens_map.json`.
    pub special: String,
}

/// From texts to a fixed number of ids.
pub struct ClipTokenizer {
    inner: Tokenizer,
    start: u32,
    end: u32,
    padding: u32,
    length: usize,
}

impl ClipTokenizer {
    /// A tokenizer that makes `length` ids.
    pub fn new(files: &TokenizerFiles, length: usize) -> Result<Self> {
        let vocab: std::collections::HashMap<String, u32> =
            serde_json::from_str(&files.vocab).map_err(|err| wrong("vocab.json", &err))?;
        // A comment with the version may come first.
        let lines = files.merges.lines();
        let merges = lines.filter(|line| !line.starts_with("#version") && !line.is_empty());
        let merges = merges.map(|line| match line.split_once(' ') {
            Some((left, right)) => Ok((left.to_string(), right.to_string())),
            None => bail!("merges.txt: {line:?} is not two parts of a token"),
        });
        let id = |token: &str| {
            let id = vocab.get(token).copied();
            id.with_context(|| format!("vocab.json has no {token}"))
        };
        let special: Value = serde_json::from_str(&files.special)
            .map_err(|err| wrong("special_tokens_map.json", &err))?;
        let padding = &special["pad_token"];
        let padding = padding.as_str().or(padding["content"].as_str());
        let padding = id(padding.context("special_tokens_map.json has no pad_token")?)?;
        let (start, end) = (id(START)?, id(END)?);

        let bpe = BPE::builder()
            .vocab_and_merges(
                vocab.into_iter().collect::<Vocab>(),
                merges.collect::<Result<Vec<_>>>()?,
            )
            .unk_token(END.to_string())
            .end_of_word_suffix("</w>".to_string())
            .build()
            .map_err(|err| wrong("vocab.json and merges.txt", &err))?;
        let mut inner = Tokenizer::new(bpe);
        let spaces = Replace::new(ReplacePattern::Regex(r"\s+".into()), " ");
        let normalizers = vec![
            NFC.into(),
            spaces.map_err(Error::wrap)?.into(),
            Lowercase.into(),
        ];
        inner
            .with_normalizer(Some(Sequence::new(normalizers)))
            .map_err(Error::wrap)?;
        let words = Split::new(
            SplitPattern::Regex(WORDS.into()),
            SplitDelimiterBehavior::Removed,
            true,
        );
        inner.with_pre_tokenizer(Some(PreTokenizers::new(vec![
            words.map_err(Error::wrap)?.into(),
            ByteLevel::new(false, true, false).into(),
        ])));
        Ok(Self {
            inner,
            start,
            end,
            padding,
            length,
        })
    }

    /// The ids of a text between those of the start and of the end, filled up. Words that do not fit are an error.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.inner.encode(text, false).map_err(Error::wrap)?;
        let most = self.length.saturating_sub(2);
        if encoded.len() > most {
            bail!(
                "the text has {} tokens; the model reads {most}: shorten it",
                encoded.len()
            )
        }
        let mut ids = vec![self.start];
        ids.extend(encoded.get_ids());
        ids.push(self.end);
        ids.resize(self.length, self.padding);
        Ok(ids)
    }
}

fn wrong(name: &str, err: &dyn std::fmt::Display) -> Error {
    Error::Msg(format!("tokenizer/{name}: {err}"))
}
