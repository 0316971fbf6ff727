//! Tokenizers from a GGUF file's metadata.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::{Content, Value, VersionedMagic};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use tokenizers::Tokenizer;

type Metadata = HashMap<String, Value>;

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn texts(texts: &[&str]) -> Value {
    Value::Array(
        texts
            .iter()
            .map(|text| Value::String(text.to_string()))
            .collect(),
    )
}

fn numbers(numbers: &[i32]) -> Value {
    Value::Array(numbers.iter().copied().map(Value::I32).collect())
}

fn scores(scores: &[f32]) -> Value {
    Value::Array(scores.iter().copied().map(Value::F32).collect())
}

fn metadata(entries: &[(&str, Value)]) -> Metadata {
    let entries = entries.iter().cloned();
    entries.map(|(name, value)| (key(name), value)).collect()
}

fn tokenizer(metadata: &Metadata) -> candle_core::Result<Tokenizer> {
    Tokenizer::from_gguf(&Content {
        magic: VersionedMagic::GgufV3,
        metadata: metadata.clone(),
        tensor_infos: HashMap::new(),
        tensor_data_offset: 0,
    })
}

fn ids(tokenizer: &Tokenizer, text: &str, special: bool) -> Vec<u32> {
    tokenizer.encode(text, special).unwrap().get_ids().to_vec()
}

/// Byte-level: "Ġ" represents a space.
fn gpt2() -> Metadata {
    let tokens = [
        "h", "e", "l", "o", "Ġ", "1", "2", "3", "he", "ll", "hell", "hello", "Ġhello", "12", "123",
        "<s>", "</s>", "<tool>", "Ã", "¤",
    ];
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "12 3"];
    let mut kinds = [1; 20];
    (kinds[15], kinds[16], kinds[17]) = (3, 3, 4);
    metadata(&[
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String("llama-bpe".into())),
        ("tokens", texts(&tokens)),
        ("merges", texts(&merges)),
        ("token_type", numbers(&kinds)),
        ("bos_token_id", Value::U32(15)),
        ("eos_token_id", Value::U32(16)),
    ])
}

#[test]
fn byte_level() {
    let mut metadata = gpt2();
    let llama3 = tokenizer(&metadata).unwrap();
    assert_eq!(ids(&llama3, "hello hello", false), [11, 12]);
    assert_eq!(
        ids(&llama3, "hello", true),
        [15, 11],
        "Llama 3 begins with a special token"
    );
    assert_eq!(ids(&llama3, "123", false), [14], "digits by three");
    assert_eq!(ids(&llama3, "ä", false), [18, 19], "bytes");
    assert_eq!(
        ids(&llama3, "hello</s>", false),
        [11, 16],
        "a control token"
    );
    assert_eq!(ids(&llama3, "hello<tool>hello", false), [11, 17, 11]);
    assert_eq!(
        llama3.decode(&[15, 11, 12, 18, 19, 17], true).unwrap(),
        "hello helloä<tool>"
    );
    assert_eq!(llama3.decode(&[15, 11], false).unwrap(), "<s>hello");

    for (pre, digits) in [
        ("qwen2", &[5, 6, 7][..]),
        ("smollm", &[5, 6, 7]),
        ("gpt-2", &[14]),
        ("default", &[14]),
        ("tekken", &[5, 6, 7]),
        ("gpt-4o", &[14]),
        ("deepseek-v3", &[14]),
        ("deepseek-coder", &[5, 6, 7]),
        ("falcon", &[14]),
        ("dbrx", &[14]),
    ] {
        metadata.insert(key("pre"), Value::String(pre.into()));
        let tokenizer = tokenizer(&metadata).unwrap();
        assert_eq!(ids(&tokenizer, "123", true), digits, "{pre}");
        assert_eq!(ids(&tokenizer, "hello hello", true), [11, 12], "{pre}");
    }
    metadata.remove(&key("pre"));
    metadata.insert(key("add_bos_token"), Value::Bool(true));
    metadata.insert(key("add_eos_token"), Value::Bool(true));
    let both = tokenizer(&metadata).unwrap();
    assert_eq!(ids(&both, "hello", true), [15, 11, 16]);
    let pair = both.encode(("hello", "123"), true).unwrap();
    assert_eq!(pair.get_ids(), [15, 11, 16, 15, 14, 16]);
    assert_eq!(pair.get_type_ids(), [0, 0, 0, 1, 1, 1]);
}

/// Added tokens are plain text: characters of the byte alphabet in them are themselves (tokenizers#1392).
#[test]
fn added_tokens_of_letters() {
    let defined = [
        "il\u{d6}veyou",
        "<\u{10d}>",
        "a.c\u{d6}",
        "<\u{ff5c}x\u{ff5c}>",
        "\u{d6}",
    ];
    let mut tokens = vec!["h", "i", "\u{c3}", "\u{a4}", "<s>"];
    tokens.extend(defined);
    let mut kinds = vec![1, 1, 1, 1, 3];
    kinds.extend([4; 5]);
    let metadata = metadata(&[
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String("gpt-2".into())),
        ("tokens", texts(&tokens)),
        ("merges", texts(&[])),
        ("token_type", numbers(&kinds)),
    ]);
    let tokenizer = tokenizer(&metadata).unwrap();
    for (id, text) in (5u32..).zip(defined) {
        assert_eq!(ids(&tokenizer, text, false), [id], "{text}");
        assert_eq!(tokenizer.decode(&[id], false).unwrap(), text);
        assert_eq!(
            tokenizer.decode(&[0, id, 1], false).unwrap(),
            format!("h{text}i")
        );
    }
    // The bytes of a character still decode to it.
    assert_eq!(tokenizer.decode(&[0, 2, 3], false).unwrap(), "h\u{e4}");
}

/// SentencePiece: "▁" represents a space; text without a token becomes bytes.
fn llama() -> Metadata {
    let tokens = [
        "<unk>", "<s>", "</s>", "<0xC3>", "<0xA4>", "▁", "a", "b", "c", "▁a", "ab", "bc", "▁ab",
    ];
    metadata(&[
        ("model", Value::String("llama".into())),
        ("tokens", texts(&tokens)),
        // "bc" before "ab".
        (
            "scores",
            scores(&[0., 0., 0., 0., 0., -9., -9., -9., -9., -4., -3., -1., -5.]),
        ),
        (
            "token_type",
            numbers(&[2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1]),
        ),
        ("unknown_token_id", Value::U32(0)),
        ("bos_token_id", Value::U32(1)),
        ("eos_token_id", Value::U32(2)),
    ])
}

#[test]
fn sentence_piece() {
    let mut metadata = llama();
    let tokens = tokenizer(&metadata).unwrap();
    assert_eq!(ids(&tokens, "ab", true), [1, 12], "▁ab");
    assert_eq!(
        ids(&tokens, "abc", false),
        [9, 11],
        "▁a and bc: the higher score first"
    );
    assert_eq!(ids(&tokens, "ä", false), [5, 3, 4], "bytes");
    assert_eq!(ids(&tokens, "☃", false), [5, 0], "bytes without a token");
    assert_eq!(ids(&tokens, "ab ab", false), [12, 12]);
    assert_eq!(ids(&tokens, "</s>", false), [2]);
    assert_eq!(
        tokens.decode(&[1, 12, 9, 11, 3, 4], true).unwrap(),
        "ab abcä"
    );
    metadata.insert(key("add_space_prefix"), Value::Bool(false));
    metadata.insert(key("add_bos_token"), Value::Bool(false));
    metadata.insert(key("add_eos_token"), Value::Bool(true));
    let plain = tokenizer(&metadata).unwrap();
    assert_eq!(ids(&plain, "ab", true), [10, 2]);
    assert_eq!(plain.decode(&[12], true).unwrap(), " ab");
}

#[test]
fn unigram() {
    let tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "▁ab", "ab"];
    let metadata = metadata(&[
        ("model", Value::String("t5".into())),
        ("tokens", texts(&tokens)),
        ("scores", scores(&[0., 0., 0., -2., -3., -3., -4., -4.5])),
        ("token_type", numbers(&[3, 3, 2, 1, 1, 1, 1, 1])),
        ("unknown_token_id", Value::U32(2)),
        ("eos_token_id", Value::U32(1)),
    ]);
    let tokens = tokenizer(&metadata).unwrap();
    assert_eq!(ids(&tokens, "ab", true), [6, 1]);
    assert_eq!(
        ids(&tokens, "ａb  ba", true),
        [6, 3, 5, 4, 1],
        "wide letters and spaces"
    );
    assert_eq!(ids(&tokens, "☃", false), [3, 2]);
    assert_eq!(tokens.decode(&[6, 3, 5, 4], true).unwrap(), "ab ba");
}

/// BERT: the vocabulary marks a continuation with `##`; the converter marks the start of a word with a space.
#[test]
fn word_piece() {
    let tokens = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁un", "able", "▁a", "▁,", "▁cafe", "s",
    ];
    let mut kinds = [1; 11];
    kinds[..5].fill(3);
    let mut metadata = metadata(&[
        ("model", Value::String("bert".into())),
        ("tokens", texts(&tokens)),
        ("token_type", numbers(&kinds)),
        ("cls_token_id", Value::U32(2)),
        ("seperator_token_id", Value::U32(3)),
        ("unknown_token_id", Value::U32(1)),
    ]);
    let bert = tokenizer(&metadata).unwrap();
    assert_eq!(
        ids(&bert, "Unable, Cafés a", true),
        [2, 5, 6, 8, 9, 10, 7, 3]
    );
    assert_eq!(
        ids(&bert, "able [MASK]", false),
        [1, 4],
        "a piece begins no word"
    );
    assert_eq!(bert.decode(&[2, 5, 6, 8, 3], true).unwrap(), "unable,");
    // By text, if no key gives an id.
    for name in ["cls_token_id", "seperator_token_id", "unknown_token_id"] {
        metadata.remove(&key(name)).unwrap();
    }
    assert_eq!(ids(&tokenizer(&metadata).unwrap(), "a", true), [2, 7, 3]);
    // If the vocabulary has capitals, text keeps its case.
    metadata.insert(
        key("tokens"),
        texts(&[
            "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁Un", "able", "▁a", "▁,", "▁cafe", "s",
        ]),
    );
    assert_eq!(
        ids(&tokenizer(&metadata).unwrap(), "Unable A", false),
        [5, 6, 1]
    );
    metadata.insert(key("tokens"), texts(&["a"; 11]));
    let err = tokenizer(&metadata).unwrap_err().to_string();
    assert!(
        err.contains("cls_token_id") && err.contains("missing"),
        "{err}"
    );
}

#[test]
fn what_is_missing_or_wrong() {
    let refused = |metadata: &Metadata, parts: &[&str]| {
        let err = tokenizer(metadata).unwrap_err().to_string();
        for part in parts {
            assert!(err.contains(part), "{part:?} is not in {err:?}");
        }
    };
    for (full, keys) in [
        (gpt2(), &["model", "tokens", "merges"][..]),
        (llama(), &["model", "tokens", "scores"]),
    ] {
        for name in keys {
            let mut metadata = full.clone();
            metadata.remove(&key(name));
            refused(&metadata, &[&key(name), "missing"]);
            metadata.insert(key(name), Value::U8(1));
            refused(&metadata, &[&key(name), ", found "]);
        }
    }
    let text = |text: &str| Value::String(text.into());
    for (name, value, parts) in [
        (
            "model",
            text("rwkv"),
            &["\"rwkv\" is not supported", "gpt2"][..],
        ),
        (
            "pre",
            text("mystery"),
            &["pre", "\"mystery\" is not supported", "llama-bpe"],
        ),
        (
            "merges",
            texts(&["h e", "hel"]),
            &["merges", "merge 1", "\"hel\""],
        ),
        ("merges", texts(&["h x"]), &["merges", "x"]),
        ("merges", numbers(&[1]), &["merges", "element 0"]),
        ("tokens", numbers(&[1]), &["tokens", "element 0"]),
        (
            "token_type",
            numbers(&[1]),
            &["token_type", "1 token types for 20 tokens"],
        ),
        (
            "bos_token_id",
            Value::U32(20),
            &["bos_token_id", "token 20 is out of range"],
        ),
        (
            "bos_token_id",
            text("<s>"),
            &["bos_token_id", "expected U32"],
        ),
        (
            "add_bos_token",
            Value::U8(1),
            &["add_bos_token", "expected Bool"],
        ),
    ] {
        let mut metadata = gpt2();
        metadata.insert(key(name), value);
        refused(&metadata, parts);
    }
    let mut metadata = gpt2();
    metadata.remove(&key("eos_token_id"));
    assert!(tokenizer(&metadata).is_ok());
    metadata.insert(key("add_eos_token"), Value::Bool(true));
    refused(&metadata, &["eos_token_id", "missing"]);
    let mut metadata = llama();
    metadata.insert(key("scores"), scores(&[0.]));
    refused(&metadata, &["scores", "1 scores for 13 tokens"]);
    metadata.insert(key("unknown_token_id"), Value::U32(99));
    metadata.insert(key("scores"), scores(&[0.; 13]));
    refused(&metadata, &["unknown_token_id", "99"]);
}
