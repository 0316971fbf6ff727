//! A query and a document as one row of tokens.

use super::prompt::Prompt;
use crate::error::one_line;
use crate::{Error, Result};
use candle_transformers::rerank::Pair;
use tokenizers::{Encoding, PostProcessor, Tokenizer, TruncationDirection};

/// The tokens of a query, to be paired with documents.
#[derive(Clone, Debug)]
pub struct QueryTokens {
    encoding: Encoding,
    /// Whether the query alone is longer than the model takes.
    cut: bool,
}

/// The tokens of a query and a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairTokens {
    /// The row that the model reads.
    pub pair: Pair,
    /// Whether the two were longer than the model takes. The longer of the two lost its end first, as with Transformers' `longest_first`.
    pub cut: bool,
}

impl AsRef<Pair> for PairTokens {
    fn as_ref(&self) -> &Pair {
        &self.pair
    }
}

/// The tokenizer of a reranker.
pub(super) struct Pairing {
    tokenizer: Tokenizer,
    direction: TruncationDirection,
    /// Tokens of a query and a document together, without the special ones.
    room: usize,
    lowercase: bool,
    /// The prompt of language models, instead of special tokens.
    prompt: Option<Prompt>,
}

impl Pairing {
    /// Pairs and their special tokens have at most this number of tokens. With `lowercase` texts are converted to lower case first.
    pub(super) fn new(
        mut tokenizer: Tokenizer,
        most: usize,
        lowercase: bool,
        prompt: Option<Prompt>,
    ) -> std::result::Result<Self, String> {
        let direction = tokenizer.get_truncation().map(|params| params.direction);
        // Pairs are cut here: the tokenizer would make every combination of the parts that are cut off.
        tokenizer.with_padding(None);
        let cleared = tokenizer.with_truncation(None);
        cleared.map_err(|err| one_line(&err.to_string()))?;
        let processor = tokenizer.get_post_processor();
        let special = match &prompt {
            Some(prompt) => prompt.before.len() + prompt.after.len(),
            None => processor.map_or(0, |processor| processor.added_tokens(true)),
        };
        match most.checked_sub(special).filter(|room| *room >= 2) {
            Some(room) => Ok(Self {
                tokenizer,
                direction: direction.unwrap_or_default(),
                room,
                lowercase,
                prompt,
            }),
            None => Err(format!(
                "adds {special} special tokens to a pair, but the model's limit is {most} tokens"
            )),
        }
    }

    pub(super) fn query(&self, origin: &str, text: &str) -> Result<QueryTokens> {
        let mut encoding = self.tokens(origin, text, Prompt::query)?;
        // The end of this part names the document.
        if self.prompt.is_some() && encoding.len() > self.room / 2 {
            let problem = format!(
                "the query and the instruction have {} tokens; the model takes up to {}",
                encoding.len(),
                self.room / 2
            );
            return Err(wrong(origin, problem));
        }
        // Each document gets a copy.
        let cut = self.cut(&mut encoding, self.room);
        Ok(QueryTokens { encoding, cut })
    }

    pub(super) fn pair(
        &self,
        origin: &str,
        query: &QueryTokens,
        document: &str,
    ) -> Result<PairTokens> {
        let mut document = self.tokens(origin, document, |_, text| Prompt::document(text))?;
        let (mut first, kept) = (
            query.encoding.clone(),
            kept((query.encoding.len(), document.len()), self.room),
        );
        let of_query = query.cut | self.cut(&mut first, kept.0);
        let cut = of_query | self.cut(&mut document, kept.1);
        if let Some(prompt) = &self.prompt {
            let (query, document) = (first.get_ids(), document.get_ids());
            let ids = [&prompt.before[..], query, document, &prompt.after].concat();
            let types = vec![0; ids.len()];
            let pair = Pair { ids, types };
            return Ok(PairTokens { pair, cut });
        }
        // For tokenizers that do not say which segment is which.
        document.set_type_ids(vec![1; document.len()]);
        let both = self.tokenizer.post_process(first, Some(document), true);
        let both = both.map_err(|err| wrong(origin, one_line(&err.to_string())))?;
        let pair = Pair {
            ids: both.get_ids().to_vec(),
            types: both.get_type_ids().to_vec(),
        };
        Ok(PairTokens { pair, cut })
    }

    /// The tokens of a text, which `part` makes a part of the prompt if there is one.
    fn tokens(
        &self,
        origin: &str,
        text: &str,
        part: impl FnOnce(&Prompt, &str) -> String,
    ) -> Result<Encoding> {
        let text = text.trim();
        if text.is_empty() {
            let problem = "the text is empty; give at least one character";
            return Err(wrong(origin, problem.to_string()));
        }
        let mut text = if self.lowercase {
            text.to_lowercase()
        } else {
            text.to_string()
        };
        if let Some(prompt) = &self.prompt {
            text = part(prompt, &text);
        }
        let encoding = self.tokenizer.encode(text, false);
        encoding.map_err(|err| wrong(origin, one_line(&err.to_string())))
    }

    /// Cuts a text, and returns whether it was longer.
    fn cut(&self, encoding: &mut Encoding, kept: usize) -> bool {
        let longer = encoding.len() > kept;
        encoding.truncate(kept, 0, self.direction);
        // The parts that are cut off.
        drop(encoding.take_overflowing());
        longer
    }
}

pub(super) fn wrong(origin: &str, problem: String) -> Error {
    Error::Text {
        origin: origin.to_string(),
        problem,
    }
}

/// Numbers of tokens of a query and a document that are kept if `room` tokens fit: the longer one is truncated until both fit or have equal
/// lengths.
fn kept((query, document): (usize, usize), room: usize) -> (usize, usize) {
    if query + document <= room {
        return (query, document);
    }
    let half = room / 2;
    match (query <= half, document <= half) {
        (true, _) => (query, room - query),
        (_, true) => (room - document, document),
        // The odd one is the longer text's.
        _ if query > document => (room - half, half),
        _ => (half, room - half),
    }
}

#[cfg(test)]
mod tests {
    use super::{kept, Pairing, Prompt};
    use crate::rerank::prompt::TASK;
    use serde_json::json;
    use std::str::FromStr;
    use tokenizers::utils::truncation::truncate_encodings;
    use tokenizers::{Encoding, Tokenizer, TruncationDirection, TruncationParams};

    /// Words of one letter, which are numbered from 10.
    fn tokenizer(post_processor: serde_json::Value) -> Tokenizer {
        let letters = ('a'..='z').map(|letter| letter.to_string());
        let letters = letters.zip(10u32..);
        let special = [("[CLS]".to_string(), 2), ("[SEP]".to_string(), 3)];
        let vocab: serde_json::Map<_, _> = letters
            .chain(special)
            .map(|(word, id)| (word, json!(id)))
            .collect();
        let json = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "decoder": null, "truncation": null, "padding": null,
            "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": post_processor,
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "a" }
        });
        Tokenizer::from_str(&json.to_string()).unwrap()
    }

    /// The special tokens of BERT, RoBERTa and Llama, and none.
    fn post_processors() -> [serde_json::Value; 4] {
        let (cls, sep) = (json!(["[CLS]", 2]), json!(["[SEP]", 3]));
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = |id: &str, type_id| json!({"Sequence": {"id": id, "type_id": type_id}});
        let end = json!({"SpecialToken": {"id": "[SEP]", "type_id": 1}});
        [
            json!({"type": "BertProcessing", "sep": sep, "cls": cls}),
            json!({"type": "RobertaProcessing", "sep": sep, "cls": cls, "trim_offsets": true, "add_prefix_space": false}),
            json!({
                "type": "TemplateProcessing", "single": [special("[CLS]"), text("A", 0), special("[SEP]")],
                "pair": [special("[CLS]"), text("A", 0), special("[SEP]"), special("[SEP]"), text("B", 1), end],
                "special_tokens": {
                    "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                    "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}
                }
            }),
            json!(null),
        ]
    }

    #[test]
    fn pairs_are_those_of_the_tokenizer() {
        let text = |len: usize| ["c", "k", "t", "b", "z"].repeat(5)[..len].join(" ");
        for processor in post_processors() {
            for direction in [TruncationDirection::Right, TruncationDirection::Left] {
                let mut theirs = tokenizer(processor.clone());
                let params = TruncationParams {
                    max_length: 13,
                    direction,
                    ..TruncationParams::default()
                };
                theirs.with_truncation(Some(params)).unwrap();
                let ours = Pairing::new(theirs.clone(), 13, false, None).unwrap();
                let most = ours.room;
                for (query, document) in [(1, 1), (3, 5), (2, 20), (20, 2), (20, 19), (4, 9)] {
                    let (first, second) = (text(query), text(document));
                    let wanted = theirs.encode((first.clone(), second.clone()), true);
                    let wanted = wanted.unwrap();
                    let query_tokens = ours.query("query", &first).unwrap();
                    let found = ours.pair("document", &query_tokens, &second).unwrap();
                    assert_eq!(found.pair.ids, wanted.get_ids(), "{processor}");
                    assert_eq!(found.pair.types, wanted.get_type_ids(), "{processor}");
                    assert_eq!(found.cut, query + document > most, "{query} {document}");
                }
            }
        }
        let problem = Pairing::new(tokenizer(post_processors()[1].clone()), 5, false, None);
        let problem = problem.err().unwrap();
        assert!(problem.contains("4 special tokens"), "{problem}");
    }

    /// Marks of the template in texts are text.
    #[test]
    fn a_prompt_in_parts_is_the_whole() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/model/tokenizer.json");
        let json = std::fs::read(file).unwrap();
        let mut json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        for (id, content) in (5000..).zip(["<|im_start|>", "<|im_end|>", "yes", "no"]) {
            added.push(
                json!({"id": id, "content": content, "single_word": id >= 5002, "lstrip": false, "rstrip": false,
                "normalized": false, "special": id < 5002}),
            );
        }
        let whole = Tokenizer::from_str(&json.to_string()).unwrap();
        let mut tokenizer = whole.clone();
        let (prompt, answers) = Prompt::new(&mut tokenizer, TASK).unwrap();
        let id = |token: &str| whole.token_to_id(token).unwrap();
        assert_eq!((answers.yes, answers.no), (id("yes"), id("no")));
        let end = prompt.after.clone();
        let pairs = Pairing::new(tokenizer, 900, false, Some(prompt)).unwrap();
        let query = pairs.query("query", "Who wrote Faust?").unwrap();
        for document in ["Goethe did.", "(1808) fn main() {}", "\u{304}x", "4 parts"] {
            let found = pairs.pair("document", &query, document).unwrap();
            let text = format!(
                "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. \
                 Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, \
                 retrieve relevant passages that answer the query\n<Query>: Who wrote Faust?\n<Document>: {document}<|im_end|>\n\
                 <|im_start|>assistant\n<think>\n\n</think>\n\n"
            );
            let wanted = whole.encode(text, false).unwrap();
            assert_eq!(found.pair.ids, wanted.get_ids(), "{document}");
            assert_eq!(found.pair.types, vec![0; found.pair.ids.len()]);
        }
        let mark = id("<|im_end|>");
        let marks = |ids: &[u32]| ids.iter().filter(|id| **id == mark).count();
        let marked = pairs.pair("document", &query, "end<|im_end|>").unwrap();
        assert_eq!(marks(&marked.pair.ids), 2);
        let long = "word ".repeat(2000);
        let cut = pairs.pair("document", &query, &long).unwrap();
        assert!(cut.cut && cut.pair.ids.len() == 900 && cut.pair.ids.ends_with(&end));
        let problem = pairs.query("query", &long).unwrap_err().to_string();
        assert!(
            problem.contains("the query and the instruction have"),
            "{problem}"
        );
    }

    fn of(len: usize) -> Encoding {
        let tokens = (0..len as u32).map(|id| tokenizers::Token::new(id, String::new(), (0, 0)));
        Encoding::from_tokens(tokens.collect(), 0)
    }

    #[test]
    fn pairs_are_cut_as_the_tokenizer_cuts_them() {
        for room in 2..12 {
            let params = TruncationParams {
                max_length: room,
                ..TruncationParams::default()
            };
            for query in 1..26 {
                for document in 1..26 {
                    let (both, pair) = (of(query), Some(of(document)));
                    let (both, pair) = truncate_encodings(both, pair, &params).unwrap();
                    let wanted = (both.len(), pair.unwrap().len());
                    let found = kept((query, document), room);
                    assert_eq!(found, wanted, "{query} and {document} in {room}");
                }
            }
        }
    }
}
