//! The prompt that Qwen3-Reranker was trained with, around a query and a document.

use crate::error::one_line;
use candle_transformers::rerank::Answers;
use tokenizers::Tokenizer;

/// The default task.
pub(super) const TASK: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// A prompt whose fixed parts are tokens.
pub(super) struct Prompt {
    task: String,
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl Prompt {
    /// The prompt and the answers in a tokenizer's tokens, after which special tokens in texts are text.
    pub(super) fn new(tokenizer: &mut Tokenizer, task: &str) -> Result<(Self, Answers), String> {
        let fixed = |text: &str| -> Result<Vec<u32>, String> {
            let encoding = tokenizer.encode(text, false);
            let encoding = encoding.map_err(|err| one_line(&err.to_string()))?;
            Ok(encoding.get_ids().to_vec())
        };
        let answer = |word: &str| {
            tokenizer.token_to_id(word).ok_or_else(|| {
                format!("has no token {word:?}, which a reranker of this family answers")
            })
        };
        let answers = Answers {
            yes: answer("yes")?,
            no: answer("no")?,
        };
        let prompt = Self {
            task: task.to_string(),
            before: fixed(BEFORE)?,
            after: fixed(AFTER)?,
        };
        tokenizer.set_encode_special_tokens(true);
        Ok((prompt, answers))
    }

    /// The part of the query. It ends before a space, where tokens end too.
    pub(super) fn query(&self, text: &str) -> String {
        format!("<Instruct>: {}\n<Query>: {text}\n<Document>:", self.task)
    }

    /// The part of the document.
    pub(super) fn document(text: &str) -> String {
        format!(" {text}")
    }
}
