//! The vectors of sentences that `examples/bert_similarity` makes, and the words that `examples/splade` finds.

#[path = "../../examples/common/bert.rs"]
mod bert;
#[path = "../../examples/bert_similarity/sentences.rs"]
mod made;
#[path = "../../examples/splade/words.rs"]
mod words;

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::BertForMaskedLM;
use serde_json::json;

use super::bert::{tiny_checkpoint, tiny_config, tiny_weights};
use super::support::assert_close;
use bert::{read_config, read_tokenizer};
use made::Sentences;
use words::Splade;

/// Words of one letter, between [CLS] and [SEP]; cut at `longest`, if it is given.
fn tokenizer_json(longest: Option<usize>) -> Vec<u8> {
    let letters = ('a'..='z').map(|letter| letter.to_string());
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(String::from);
    let words = words.into_iter().chain(letters).enumerate();
    let vocab: serde_json::Map<_, _> = words.map(|(id, word)| (word, json!(id))).collect();
    let truncation = longest.map(|longest| {
        json!({ "max_length": longest, "strategy": "LongestFirst", "stride": 0, "direction": "Right" })
    });
    let json = json!({
        "version": "1.0", "truncation": truncation, "added_tokens": [],
        // Sentences are filled up to the longest of a call, not to this.
        "padding": {
            "strategy": { "Fixed": 30 }, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"
        },
        "normalizer": null, "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] },
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" }
    });
    json.to_string().into_bytes()
}

fn sentences(longest: Option<usize>, device: &Device) -> Result<Sentences> {
    let config = tiny_config();
    let tokenizer = read_tokenizer(&tokenizer_json(longest), &config)?;
    let weights = VarBuilder::from_tensors(tiny_weights()?, DType::F32, device);
    Sentences::new(&config, tokenizer, weights)
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

/// Each has length 1, and is what it is without the others.
fn vectors_of_sentences(device: &Device) -> Result<()> {
    let made = sentences(None, device)?;
    let texts = strings(&["a b c", "x", "q r s t u v w"]);
    let all = made.embed(&texts)?;
    assert_eq!(all.dims(), &[3, 32]);
    let ones = Tensor::new(&[1f32, 1., 1.], device)?;
    assert_close(&all.sqr()?.sum(1)?, &ones, 1e-6);
    for (i, text) in texts.iter().enumerate() {
        let alone = made.embed(std::slice::from_ref(text))?;
        assert_close(&all.narrow(0, i, 1)?, &alone, 1e-5);
    }
    let similarities = made.similarities(&texts)?;
    assert_close(&similarities, &all.matmul(&all.t()?)?, 0.);
    let of_others = similarities.to_vec2::<f32>()?[0][2];
    assert!(of_others < 0.999, "{of_others}");
    Ok(())
}
test_device!(vectors_of_sentences);

/// The maximum over the tokens of each text alone, as the paper has it, of log(1 + relu(logit)).
fn words_of_texts(device: &Device) -> Result<()> {
    let config = tiny_config();
    let weights = VarBuilder::from_tensors(tiny_checkpoint()?, DType::F32, device);
    let model = BertForMaskedLM::load(weights.clone(), &config)?;
    let tokenizer = read_tokenizer(&tokenizer_json(None), &config)?;
    let splade = Splade::new(&config, tokenizer, weights)?;
    // [CLS], letters from 4 on, [SEP].
    let texts: [(&str, &[u32]); 2] = [("a b c", &[2, 4, 5, 6, 3]), ("x", &[2, 27, 3])];
    let found = splade.weights(&strings(&texts.map(|(text, _)| text)))?;
    assert_eq!(found.dims(), &[2, 61]);
    for (row, (_, ids)) in found.to_vec2::<f32>()?.iter().zip(texts) {
        let ids = Tensor::new(ids, device)?.unsqueeze(0)?;
        let logits = model.forward(&ids, &ids.zeros_like()?, None)?;
        let logits = logits.squeeze(0)?.to_vec2::<f32>()?;
        for (word, weight) in row.iter().enumerate() {
            let weights = logits.iter().map(|token| token[word].max(0.).ln_1p());
            let expected = weights.fold(0., f32::max);
            assert!((weight - expected).abs() < 1e-5, "{weight} {expected}");
        }
        let words = splade.words(row);
        assert!(words.is_sorted_by(|a, b| a.1 >= b.1));
        let named = row[..30].iter().filter(|weight| **weight > 0.).count();
        assert_eq!(words.len(), named);
        for (word, weight) in words {
            let id = match word.as_bytes() {
                [letter] => 4 + usize::from(letter - b'a'),
                _ => ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
                    .iter()
                    .position(|special| *special == word)
                    .unwrap(),
            };
            assert_eq!(row[id], weight, "{word}");
        }
        assert!((1..30).contains(&named), "{named}");
    }
    assert!(splade.weights(&[]).is_err());
    Ok(())
}
test_device!(words_of_texts);

#[test]
fn long_sentences_are_cut() -> Result<()> {
    let cpu = &Device::Cpu;
    let long = vec!["a"; 100].join(" ");
    // The model takes 40 tokens, two of them around the text.
    for (longest, words) in [(None, 38), (Some(10), 8), (Some(64), 38)] {
        let made = sentences(longest, cpu)?;
        let cut = vec!["a"; words].join(" ");
        let found = made.similarities(&[long.clone(), cut])?;
        assert_close(&found, &Tensor::ones((2, 2), DType::F32, cpu)?, 1e-6);
    }
    Ok(())
}

#[test]
fn bad_files_and_texts_are_errors() -> Result<()> {
    let message = |result: Result<Tensor>| result.unwrap_err().to_string();
    let made = sentences(None, &Device::Cpu)?;
    assert!(message(made.embed(&[])).contains("no texts"));

    let llama = read_config(br#"{"model_type": "llama"}"#).unwrap_err();
    let llama = llama.to_string();
    assert!(
        llama.contains("config.json") && llama.contains("llama") && llama.contains("bert"),
        "{llama}"
    );
    let missing = read_config(br#"{"model_type": "bert"}"#).unwrap_err();
    assert!(missing.to_string().contains("vocab_size"), "{missing}");
    let damaged = read_tokenizer(b"{}", &tiny_config()).unwrap_err();
    assert!(damaged.to_string().contains("tokenizer.json"), "{damaged}");
    Ok(())
}
