//! `/v1/rerank`, as at Jina and Cohere, and as the servers of llama.cpp and vLLM have it.

use super::fields::Fields;
use super::turns::{Item, Names, Turns};
use super::{access, reply, ApiError, Asked, Served};
use axum::extract::{self, State};
use axum::Json;
use candle_engine::rerank::{ranked, PairTokens, RerankerFiles};
use candle_transformers::rerank::Reranker as Model;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;

/// As at Jina.
const MAX_DOCUMENTS: usize = 2048;
/// Tokens of a request. The query counts once for each document: a short request could be a lot of work otherwise.
const MAX_TOKENS: usize = 1 << 20;

const NAMES: Names = Names {
    thread: "candle-rerank",
    model: "reranker",
    field: "documents",
};

/// A model that scores documents for a query.
pub struct Reranker {
    /// The name that clients use.
    pub name: String,
    /// Its tokenizer and its scoring options.
    pub files: RerankerFiles,
    /// The model.
    pub model: Model,
}

/// A reranker that works on one request after the other.
pub(super) struct Scores {
    pub(super) reranker: Arc<Reranker>,
    turns: Turns<PairTokens, (), f32>,
}

impl Item for PairTokens {
    fn tokens(&self) -> usize {
        self.pair.ids.len()
    }
}

impl Scores {
    /// Starts the thread, which ends with this.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn new(reranker: Reranker) -> crate::Result<Self> {
        let reranker = Arc::new(reranker);
        let model = reranker.clone();
        let options = model.files.options();
        let turns = Turns::start(NAMES, move |pairs: &[PairTokens], ()| {
            model.model.scores(pairs, &options)?.to_vec1::<f32>()
        })?;
        Ok(Self { reranker, turns })
    }

    /// Requests that wait or are worked on.
    pub(super) fn open(&self) -> usize {
        self.turns.open()
    }
}

/// A document, alone or in an object as at Jina.
#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    const EXPECTED: &'static str = "a list of texts";

    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// A request whose documents are tokens, each with the query.
struct Prepared {
    pairs: Vec<PairTokens>,
    /// Results that are wanted at most.
    top: usize,
    /// The documents, if they are wanted back.
    documents: Option<Vec<String>>,
}

impl Prepared {
    fn new(served: &Asked, bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(bytes)?;
        let model: String = fields.need("model", "a text")?;
        let reranker = served.scores.as_ref().map(|scores| &scores.reranker);
        let reranker = match reranker {
            Some(reranker) if reranker.name == model => reranker,
            Some(other) => {
                let known = std::iter::once(other.name.as_str());
                return Err(ApiError::no_such_model(&model, known));
            }
            None => {
                return Err(fields.wrong(
                    "model",
                    "no reranker is loaded; start the server with --rerank-model",
                ))
            }
        };
        let query: String = fields.need("query", "a text")?;
        let documents: Vec<Document> = fields.need("documents", Document::EXPECTED)?;
        let top: Option<usize> = fields.take("top_n", "a whole number")?;
        let wants_documents: Option<bool> = fields.take("return_documents", "true or false")?;
        fields.end()?;
        if !(1..=MAX_DOCUMENTS).contains(&documents.len()) {
            let problem = format!(
                "found {} documents; expected 1 to {MAX_DOCUMENTS}",
                documents.len()
            );
            return Err(ApiError::field("documents", problem));
        }
        if top == Some(0) {
            return Err(ApiError::field("top_n", "found 0; expected at least 1"));
        }
        let documents = documents.into_iter().map(Document::into_text);
        let documents: Vec<String> = documents.collect();
        let query = reranker.files.query("query", &query)?;
        let (mut pairs, mut tokens) = (Vec::with_capacity(documents.len()), 0);
        for (at, document) in documents.iter().enumerate() {
            let pair = reranker
                .files
                .pair(&format!("documents[{at}]"), &query, document)?;
            tokens += pair.tokens();
            check(tokens)?;
            pairs.push(pair);
        }
        Ok(Self {
            top: top.unwrap_or(pairs.len()),
            pairs,
            documents: (wants_documents == Some(true)).then_some(documents),
        })
    }
}

/// Refuses a request of too many tokens.
fn check(tokens: usize) -> Result<(), ApiError> {
    if tokens <= MAX_TOKENS {
        Ok(())
    } else {
        let problem = format!(
                "the documents, each with the query, have more than {MAX_TOKENS} tokens; send fewer at once"
            );
        Err(ApiError::field("documents", problem))
    }
}

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    request: extract::Request,
) -> Result<Json<Value>, ApiError> {
    let owner = access::owner(&request);
    let Prepared {
        pairs,
        top,
        documents,
    } = served.read(request, Prepared::new).await?;
    let count: usize = pairs.iter().map(Item::tokens).sum();
    let stopped = || candle_engine::Error::Batch("no reranker is loaded".to_string());
    let scores = served.scores.as_ref().ok_or_else(stopped)?;
    let name = &scores.reranker.name;
    let scores = scores.turns.of(owner, pairs, ()).await?;
    let results = ranked(scores)?.into_iter().take(top).map(|(index, score)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if let Some(documents) = &documents {
            result["document"] = json!({ "text": documents[index] });
        }
        result
    });
    let results: Vec<Value> = results.collect();
    let usage = reply::prompt_usage(count);
    Ok(Json(
        json!({ "object": "list", "model": name, "results": results, "usage": usage }),
    ))
}

#[cfg(test)]
mod tests {
    use super::{check, MAX_TOKENS};

    #[test]
    fn the_query_counts_with_each_document() {
        assert!(check(MAX_TOKENS).is_ok());
        // A query of 512 tokens with 2049 documents of none.
        let refused = check(512 * 2049).unwrap_err();
        assert!(
            format!("{refused:?}").contains("1048576 tokens"),
            "{refused:?}"
        );
    }
}
