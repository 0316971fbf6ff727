//! The tokenizer that a GGUF file carries in its metadata, as a [`tokenizers::Tokenizer`].
//!
//! `tokenizer.ggml.model` determines the kind: `gpt2` (byte-level BPE with merges; `tokenizer.ggml.pre` names the pre-tokenisation),
//! `llama` (SentencePiece's BPE, whose merges follow from the tokens' scores), `t5` (SentencePiece's unigram) or `bert` (WordPiece).
//! The keys are those of the [GGUF specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer).

mod metadata;
mod split;
mod word_piece;

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::unicode::{Nmt, NFC, NFKC};
use tokenizers::normalizers::utils::Sequence as Normalizers;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::processors::template::{SpecialToken, Template, TemplateProcessing};
use tokenizers::{AddedToken, DecoderWrapper, ModelWrapper, Tokenizer};

use super::gguf_file::Content;
use crate::{Error, Result};
use metadata::{Metadata, Token, TokenKind};

/// SentencePiece's space.
const SPACE: char = '▁';

/// Maximum length in bytes of a token whose merges are searched. Real tokens are far shorter; the search is quadratic in the length.
const MAX_MERGED_BYTES: usize = 1024;

/// Types that can be built from a GGUF file's metadata.
pub trait TokenizerFromGguf: Sized {
    /// Builds the tokenizer of a file.
    ///
    /// # Errors
    /// Names the key that is missing, is of another kind, or has an unknown value.
    fn from_gguf(ct: &Content) -> Result<Self>;
}

impl TokenizerFromGguf for Tokenizer {
    fn from_gguf(ct: &Content) -> Result<Self> {
        let metadata = Metadata(&ct.metadata);
        let tokens = metadata.tokens()?;
        let model = metadata.text("model")?;
        let (mut tokenizer, adds) = match model.as_str() {
            "gpt2" => byte_level(&metadata, &tokens)?,
            "llama" => sentence_piece(&metadata, &tokens)?,
            "t5" => unigram(&metadata, &tokens)?,
            "bert" => return word_piece::tokenizer(&metadata, &tokens),
            other => {
                return Err(metadata.refuse(
                    "model",
                    format!("{other:?} is not supported; expected gpt2, llama, t5 or bert"),
                ))
            }
        };
        add_tokens(&mut tokenizer, &metadata, &tokens)?;
        add_template(&mut tokenizer, &metadata, &tokens, adds)?;
        Ok(tokenizer)
    }
}

/// The special tokens that a kind of tokenizer adds to a text by default.
struct Adds {
    bos: bool,
    eos: bool,
}

fn failed(err: tokenizers::Error) -> Error {
    Error::Msg(format!("GGUF tokenizer: {err}")).bt()
}

fn vocab(tokens: &[Token]) -> Vocab {
    let ids = tokens.iter().zip(0u32..);
    ids.map(|(token, id)| (token.text.to_string(), id))
        .collect()
}

/// Byte-level BPE: the bytes of a text are mapped to characters, which merges join.
fn byte_level(metadata: &Metadata, tokens: &[Token]) -> Result<(Tokenizer, Adds)> {
    let merges = metadata.texts("merges")?;
    let merges = merges.enumerate().map(|(i, merge)| {
        let merge = merge?;
        // The first character may be a space itself.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        match merge[first..].find(' ') {
            Some(at) => {
                let (left, right) = merge.split_at(first + at);
                Ok((left.to_string(), right[1..].to_string()))
            }
            None => Err(metadata.refuse("merges", format!("merge {i}, {merge:?}, is not a pair"))),
        }
    });
    let merges = merges.collect::<Result<Merges>>()?;
    let split = split::by_name(metadata)?;
    let model = BPE::builder()
        .vocab_and_merges(vocab(tokens), merges)
        .ignore_merges(split.ignore_merges)
        .build()
        .map_err(|err| metadata.refuse("merges", err.to_string()))?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(model));
    if split.composes {
        tokenizer.with_normalizer(Some(NFC)).map_err(failed)?;
    }
    tokenizer.with_pre_tokenizer(Some(split.pre_tokenizer()?));
    tokenizer.with_decoder(Some(byte_level_decoder(tokens)?));
    let adds = Adds {
        bos: split.adds_bos,
        eos: false,
    };
    Ok((tokenizer, adds))
}

/// The characters for bytes: printable Latin-1 characters represent themselves, the other bytes are mapped to U+0100 and up, in order.
fn letters() -> [char; 256] {
    let mut free = ('\u{100}'..).fuse();
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => free.next().unwrap_or_default(),
    })
}

/// Maps characters back to bytes. Added tokens are text, not mapped bytes; a token that consists of such characters would be decoded as
/// bytes. So the characters of its bytes replace it first.
fn byte_level_decoder(tokens: &[Token]) -> Result<DecoderWrapper> {
    let letters = letters();
    let taken_for_bytes = |token: &&Token| {
        matches!(token.kind, TokenKind::Control | TokenKind::UserDefined)
            && !token.text.is_ascii()
            && token.text.chars().all(|c| letters.contains(&c))
    };
    let mut decoders = vec![];
    for token in tokens.iter().filter(taken_for_bytes) {
        let as_letters: String = token
            .text
            .bytes()
            .map(|b| letters[usize::from(b)])
            .collect();
        let mut whole = r"\A".to_string();
        for c in token.text.chars() {
            if r"\.+*?()|[]{}^$#&-~".contains(c) {
                whole.push('\\');
            }
            whole.push(c);
        }
        whole.push_str(r"\z");
        let replace = Replace::new(ReplacePattern::Regex(whole), as_letters).map_err(failed)?;
        decoders.push(DecoderWrapper::Replace(replace));
    }
    if decoders.is_empty() {
        return Ok(DecoderWrapper::ByteLevel(ByteLevel::default()));
    }
    decoders.push(DecoderWrapper::ByteLevel(ByteLevel::default()));
    Ok(DecoderWrapper::Sequence(Decoders::new(decoders)))
}

/// SentencePiece's BPE: joins the pair of neighbours whose joint token has the highest score first.
fn sentence_piece(metadata: &Metadata, tokens: &[Token]) -> Result<(Tokenizer, Adds)> {
    let scores = metadata.scores(tokens.len())?;
    let vocab = vocab(tokens);
    let mut merges = Vec::new();
    for (token, score) in tokens.iter().zip(&scores) {
        let text = token.text;
        if !token.kind.is_text() || text.len() > MAX_MERGED_BYTES {
            continue;
        }
        let first = merges.len();
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(&l), Some(&r)) = (vocab.get(left), vocab.get(right)) {
                merges.push((*score, l, r, left, right));
            }
        }
        merges[first..].sort_by_key(|&(_, l, r, ..)| (l, r));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    let merges = merges
        .into_iter()
        .map(|(_, _, _, left, right)| (left.to_string(), right.to_string()))
        .collect();

    let mut model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(true)
        .byte_fallback(true);
    if let Some((_, unknown)) = metadata.token("unknown_token_id", tokens)? {
        model = model.unk_token(unknown.to_string());
    }
    let model = model.build().map_err(failed)?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(model));

    let has_prefix = metadata.flag("add_space_prefix")?.unwrap_or(true);
    let mut normalizers = Vec::new();
    let mut decoders = vec![
        DecoderWrapper::Replace(replace(SPACE, " ")?),
        DecoderWrapper::ByteFallback(ByteFallback::new()),
        DecoderWrapper::Fuse(Fuse::new()),
    ];
    if has_prefix {
        normalizers.push(NormalizerWrapper::Prepend(Prepend::new(SPACE.into())));
        decoders.push(DecoderWrapper::Strip(Strip::new(' ', 1, 0)));
    }
    normalizers.push(NormalizerWrapper::Replace(replace(' ', SPACE)?));
    tokenizer
        .with_normalizer(Some(Normalizers::new(normalizers)))
        .map_err(failed)?;
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    let adds = Adds {
        bos: true,
        eos: false,
    };
    Ok((tokenizer, adds))
}

/// SentencePiece's unigram model: selects the tokens with the highest sum of scores.
fn unigram(metadata: &Metadata, tokens: &[Token]) -> Result<(Tokenizer, Adds)> {
    let scores = metadata.scores(tokens.len())?;
    let pairs = tokens.iter().zip(scores);
    let pairs = pairs.map(|(token, score)| (token.text.to_string(), f64::from(score)));
    let unknown = metadata.token("unknown_token_id", tokens)?;
    let model = Unigram::from(pairs.collect(), unknown.map(|(id, _)| id as usize), false);
    let mut tokenizer = Tokenizer::new(ModelWrapper::Unigram(model.map_err(failed)?));
    // The rules that these models were trained with, instead of their compiled form in `precompiled_charsmap`.
    let spaces = Replace::new(ReplacePattern::Regex(" {2,}".into()), " ").map_err(failed)?;
    let normalizers = vec![
        NormalizerWrapper::Nmt(Nmt),
        NormalizerWrapper::NFKC(NFKC),
        NormalizerWrapper::Replace(spaces),
    ];
    tokenizer
        .with_normalizer(Some(Normalizers::new(normalizers)))
        .map_err(failed)?;
    let prepend = if metadata.flag("add_space_prefix")?.unwrap_or(true) {
        PrependScheme::Always
    } else {
        PrependScheme::Never
    };
    let spaces = Metaspace::new(SPACE, prepend, true);
    tokenizer.with_pre_tokenizer(Some(spaces.clone()));
    tokenizer.with_decoder(Some(spaces));
    let adds = Adds {
        bos: false,
        eos: true,
    };
    Ok((tokenizer, adds))
}

fn replace(what: char, with: impl Into<String>) -> Result<Replace> {
    Replace::new(ReplacePattern::String(what.into()), with).map_err(failed)
}

/// Adds the tokens that are matched verbatim in a text: control tokens, and user-defined ones.
fn add_tokens(tokenizer: &mut Tokenizer, metadata: &Metadata, tokens: &[Token]) -> Result<()> {
    let added = |kind, special| {
        let of_kind = tokens.iter().filter(move |token| token.kind == kind);
        let of_kind = of_kind.filter(|token| !token.text.is_empty());
        of_kind
            .map(move |token| AddedToken::from(token.text, special).normalized(false))
            .collect::<Vec<_>>()
    };
    let mut special = added(TokenKind::Control, true);
    for key in ["bos_token_id", "eos_token_id", "padding_token_id"] {
        if let Some((_, text)) = metadata
            .token(key, tokens)?
            .filter(|(_, text)| !text.is_empty())
        {
            special.push(AddedToken::from(text, true).normalized(false));
        }
    }
    tokenizer.add_special_tokens(special).map_err(failed)?;
    let defined = added(TokenKind::UserDefined, false);
    tokenizer.add_tokens(defined).map_err(failed)?;
    Ok(())
}

/// Adds the tokens at the start and the end of a text.
fn add_template(
    tokenizer: &mut Tokenizer,
    metadata: &Metadata,
    tokens: &[Token],
    adds: Adds,
) -> Result<()> {
    let mut specials = Vec::new();
    let mut wanted = |key: &'static str, switch, default| -> Result<bool> {
        let asked = metadata.flag(switch)?;
        if !asked.unwrap_or(default) {
            return Ok(false);
        }
        match metadata.token(key, tokens)? {
            Some((id, text)) => {
                let token = SpecialToken::new(key.into(), vec![id], vec![text.into()]);
                specials.push(token.map_err(failed)?);
                Ok(true)
            }
            // A file that requests a token has to name it.
            None if asked.is_some() => Err(metadata.missing(key)),
            None => Ok(false),
        }
    };
    let bos = wanted("bos_token_id", "add_bos_token", adds.bos)?;
    let eos = wanted("eos_token_id", "add_eos_token", adds.eos)?;
    if !bos && !eos {
        return Ok(());
    }
    let around = |text: &str, ty: u32| {
        let bos = bos.then(|| format!("bos_token_id:{ty}"));
        let eos = eos.then(|| format!("eos_token_id:{ty}"));
        let text = Some(format!("${text}:{ty}"));
        [bos, text, eos].into_iter().flatten().collect::<Vec<_>>()
    };
    let template = |pieces: Vec<String>| {
        Template::try_from(pieces).map_err(|err| Error::Msg(format!("GGUF tokenizer: {err}")).bt())
    };
    let single = template(around("A", 0))?;
    let pair = template([around("A", 0), around("B", 1)].concat())?;
    let processor = TemplateProcessing::builder()
        .single(single)
        .pair(pair)
        .special_tokens(specials)
        .build()
        .map_err(|err| Error::Msg(format!("GGUF tokenizer: {err}")).bt())?;
    tokenizer.with_post_processor(Some(processor));
    Ok(())
}
