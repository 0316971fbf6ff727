//! `candle-dvm rerank`.

use crate::print;
use crate::{Error, Result};
use candle_engine::device::{describe, DeviceChoice, DeviceParser};
use candle_engine::error::Doing;
use candle_engine::progress::note;
use candle_engine::registry::BackendRegistry;
use candle_engine::rerank::{ranked, scale_name, PairTokens, RerankerFiles};
use candle_engine::Error as EngineError;
use candle_transformers::rerank::{Options, Scale};
use serde::Serialize;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Documents to rank [default: the lines of standard input]
    #[arg(value_name = "DOCUMENT")]
    documents: Vec<String>,
    /// A Hugging Face folder (config.json, tokenizer.json, safetensors) with a BERT, DistilBERT, RoBERTa, XLM-RoBERTa, ModernBERT, DeBERTa
    /// or EuroBERT for sequence classification with one label, such as bge-reranker-v2-m3, or with a Qwen3-Reranker
    #[arg(long, value_name = "FOLDER")]
    model: PathBuf,
    /// The query that the documents may answer
    #[arg(long, value_name = "TEXT")]
    query: String,
    /// Task of a Qwen3-Reranker [default: Given a web search query, retrieve relevant passages that answer the query]
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,
    /// File with more documents, one per line; - is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print the best N documents alone
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print the model's logits [default: scores of 0 to 1, unless the folder's sentence-transformers files ask for logits]
    #[arg(long)]
    logits: bool,
    /// Print one JSON object per line for each document, the best first: index (from 0), score, document, tokens, cut
    #[arg(long)]
    json: bool,
    /// Number of documents per batch
    #[arg(long, value_name = "N", default_value_t = Options::default().batch)]
    batch: usize,
    /// Device to run on
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    score: f32,
    document: &'a str,
    tokens: usize,
    cut: bool,
}

pub(super) fn run(args: Args) -> Result<()> {
    for (name, value) in [("batch", Some(args.batch)), ("top", args.top)] {
        if value == Some(0) {
            return Err(Error::parameter(name, 0, "at least 1"));
        }
    }
    let documents = args.documents()?;
    let files = RerankerFiles::open_for(&args.model, args.instruction.as_deref())?;
    let mut options = Options {
        batch: args.batch,
        ..files.options()
    };
    if args.logits {
        options.scale = Scale::Identity;
    }
    // A text that cannot work is reported before a GPU is woken and weights are read.
    let query = files.query("--query", &args.query)?;
    let pairs: Vec<PairTokens> = documents
        .iter()
        .map(|(origin, document)| files.pair(origin, &query, document))
        .collect::<candle_engine::Result<_>>()?;

    let registry = BackendRegistry::detect();
    let device = registry.select(args.device)?.open()?;
    let reranker = files.load(device)?;
    note(&format!(
        "{}: {}, {}, f32 on {}",
        files.name,
        reranker.config().model_type,
        scale_name(options.scale),
        describe(device),
    ));
    let scores = reranker
        .scores(&pairs, &options)
        .and_then(|scores| scores.to_vec1::<f32>())
        .doing("scoring the documents")?;
    let top = args.top.unwrap_or(documents.len());
    let mut lines = String::new();
    for (index, score) in ranked(scores)?.into_iter().take(top) {
        let ((_, document), pair) = (&documents[index], &pairs[index]);
        if !args.json {
            let shown: String = document
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect();
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{score:>8.4}  {shown}");
            continue;
        }
        let line = Line {
            index,
            score,
            document,
            tokens: pair.pair.ids.len(),
            cut: pair.cut,
        };
        let line = serde_json::to_string(&line);
        lines += &line.map_err(|err| Error::Stdout(std::io::Error::other(err)))?;
        lines.push('\n');
    }
    print(&lines)
}

impl Args {
    /// Documents to rank, each with its name in messages.
    fn documents(&self) -> Result<Vec<(String, String)>> {
        let numbered = self.documents.iter().enumerate();
        let mut documents: Vec<_> = numbered
            .map(|(i, document)| (format!("document {}", i + 1), document.clone()))
            .collect();
        let is_input = |file: &PathBuf| file.as_os_str() == "-";
        let stdin = match &self.file {
            Some(file) => is_input(file),
            None => documents.is_empty() && !std::io::stdin().is_terminal(),
        };
        let read = match &self.file {
            _ if stdin => {
                let lines = std::io::read_to_string(std::io::stdin()).map_err(Error::Stdin)?;
                Some(("standard input".to_string(), lines))
            }
            Some(file) => {
                let lines = std::fs::read_to_string(file).map_err(|err| Error::file(file, err))?;
                Some((file.display().to_string(), lines))
            }
            None => None,
        };
        if let Some((name, lines)) = read {
            let lines = lines.lines().enumerate();
            documents
                .extend(lines.map(|(i, line)| (format!("{name}:{}", i + 1), line.to_string())));
        }
        if documents.is_empty() {
            return Err(EngineError::Text {
                origin: "rerank".to_string(),
                problem:
                    "no documents; give them as arguments, or one per line in --file or on standard input"
                        .to_string(),
            }
            .into());
        }
        Ok(documents)
    }
}
