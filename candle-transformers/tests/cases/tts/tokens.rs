//! MetaVoice's tokens of text and of sound.

use candle_core::Result;
use candle_transformers::models::metavoice::{adapters, tokenizers};
use serde_json::{json, Value};

use super::assert_error;

fn words() -> Value {
    json!({"pat_str": r"\s*\S+|\s+", "offset": 1000,
        "mergeable_ranks": {"a": 3, "an": 300, "na": 299, "ana": 256, " b": 301, "é": 310}})
}

/// The lowest rank is merged first, the first of equal ones; bytes have their ranks, whatever a file says.
#[test]
fn byte_pairs() -> Result<()> {
    let bpe = tokenizers::BPE::from_json(&words(), 2000)?;
    let byte = |byte: u8| u32::from(byte);
    let encode = |text: &str| bpe.byte_pair_encode(text.as_bytes());
    assert!(encode("").is_empty());
    assert_eq!(encode("a"), [byte(b'a')]);
    // "na" has a lower rank than "an"; "ana" can only come of "a" and "na".
    assert_eq!(encode("banana"), [byte(b'b'), 256, 299]);
    assert_eq!(encode("anan"), [256, byte(b'n')]);
    assert_eq!(encode("aan"), [byte(b'a'), 300]);
    assert_eq!(encode("né"), [byte(b'n'), 310]);
    assert_eq!(bpe.byte_pair_encode(&[0xff, 0xc3]), [255, 0xc3]);
    assert_eq!(bpe.encode("a b")?, [1000 + byte(b'a'), 1301, 3000]);
    assert_eq!(bpe.encode("")?, [3000]);
    let large = tokenizers::BPE::from_json(&words(), u32::MAX as usize)?;
    assert_error(large.encode("a"), &["4294967295", "1000"]);
    Ok(())
}

#[test]
fn files_that_are_not_tokenizers() {
    let read = |json: Value| tokenizers::BPE::from_json(&json, 0);
    let with = |field: &str, value: Value| {
        let mut json = words();
        json[field] = value;
        read(json)
    };
    assert_error(read(json!([])), &["object"]);
    for field in ["pat_str", "offset", "mergeable_ranks"] {
        let mut json = words();
        json.as_object_mut().expect("an object").remove(field);
        assert_error(read(json), &[field]);
        assert_error(with(field, json!(null)), &[field]);
    }
    assert_error(with("pat_str", json!("(")), &["pat_str", "("]);
    assert_error(with("offset", json!(-1)), &["offset", "-1"]);
    assert_error(with("mergeable_ranks", json!({"ab": "c"})), &["ab", "c"]);
    assert_error(
        with("mergeable_ranks", json!({"ab": 1u64 << 32})),
        &["ab", "32 bits"],
    );
}

#[test]
fn tokens_of_codebooks() {
    let flat = adapters::FlattenedInterleavedEncodec2Codebook::new(10);
    let (text, first, second) = flat.decode(&[3, 12, 10, 9, 20, 19, 31]);
    assert_eq!(
        (text, first, second),
        (vec![20, 31], vec![3, 9], vec![2, 0, 9])
    );
    let largest = adapters::FlattenedInterleavedEncodec2Codebook::new(u32::MAX - 1);
    assert_eq!(largest.decode(&[u32::MAX]), (vec![], vec![], vec![1]));

    let tilted = adapters::TiltedEncodec::new(10);
    let books = [vec![11, 3, 4, 10, 5], vec![12, 6, 10, 7]];
    assert_eq!(
        tilted.decode(&books),
        (vec![11], vec![vec![3, 4], vec![6, 7]])
    );
    assert_eq!(tilted.decode(&[]), (vec![], vec![]));
    assert_eq!(
        tilted.decode(&[vec![1], vec![10]]),
        (vec![], vec![vec![], vec![]])
    );
}
