//! BERT's WordPiece: words are split into the longest tokens from the left.

use tokenizers::decoders::wordpiece::WordPiece as Decoder;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use super::metadata::{Metadata, Token, TokenKind};
use super::{failed, Vocab, SPACE};
use crate::Result;

/// The special tokens: their keys, the first existing one counts, and their default texts.
const BEGIN: (&[&str], &str) = (&["cls_token_id", "bos_token_id"], "[CLS]");
/// The first key uses llama.cpp's spelling.
const END: (&[&str], &str) = (
    &["seperator_token_id", "separator_token_id", "eos_token_id"],
    "[SEP]",
);
const UNKNOWN: (&[&str], &str) = (&["unknown_token_id"], "[UNK]");
const PADDING: (&[&str], &str) = (&["padding_token_id"], "[PAD]");
const MASK: (&[&str], &str) = (&["mask_token_id"], "[MASK]");

fn special(
    metadata: &Metadata,
    tokens: &[Token],
    (keys, text): (&[&str], &str),
) -> Result<Option<(String, u32)>> {
    for key in keys {
        if let Some((id, text)) = metadata.token(key, tokens)? {
            return Ok(Some((text.to_string(), id)));
        }
    }
    let mut known = tokens.iter().zip(0u32..);
    Ok(known
        .find(|(token, _)| token.text == text)
        .map(|(_, id)| (text.to_string(), id)))
}

/// Builds the tokenizer. llama.cpp's converter marks tokens that begin a word with a space, whereas BERT's vocabulary marks those that do
/// not.
pub(super) fn tokenizer(metadata: &Metadata, tokens: &[Token]) -> Result<Tokenizer> {
    let required = |found: Option<(String, u32)>, key| found.ok_or_else(|| metadata.missing(key));
    let begin = required(special(metadata, tokens, BEGIN)?, "cls_token_id")?;
    let end = required(special(metadata, tokens, END)?, "seperator_token_id")?;
    let unknown = required(special(metadata, tokens, UNKNOWN)?, "unknown_token_id")?;
    let mut specials = vec![begin.clone(), end.clone(), unknown.clone()];
    specials.extend(special(metadata, tokens, PADDING)?);
    specials.extend(special(metadata, tokens, MASK)?);

    let ids = tokens.iter().zip(0u32..);
    let vocab = ids.map(|(token, id)| {
        let is_special =
            token.kind == TokenKind::Control || specials.iter().any(|(_, special)| *special == id);
        let text = match token.text.strip_prefix(SPACE) {
            _ if is_special => token.text.to_string(),
            Some(word) => word.to_string(),
            None => format!("##{}", token.text),
        };
        (text, id)
    });
    // Files do not store whether texts are lowercased: a vocabulary with capitals is useful only if they are not.
    let cased = tokens.iter().any(|token| {
        token.kind.is_text()
            && token.text.starts_with(SPACE)
            && token.text.chars().any(char::is_uppercase)
    });
    let model = WordPiece::builder()
        .vocab(vocab.collect::<Vocab>())
        .unk_token(unknown.0.clone())
        .build()
        .map_err(failed)?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::WordPiece(model));
    let normalizer = BertNormalizer::new(true, true, None, !cased);
    tokenizer
        .with_normalizer(Some(normalizer))
        .map_err(failed)?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    tokenizer.with_post_processor(Some(BertProcessing::new(end, begin)));
    tokenizer.with_decoder(Some(Decoder::default()));
    let added = specials
        .into_iter()
        .map(|(text, _)| AddedToken::from(text, true).normalized(false));
    tokenizer
        .add_special_tokens(added.collect::<Vec<_>>())
        .map_err(failed)?;
    Ok(tokenizer)
}
