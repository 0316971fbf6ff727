//! `candle-dvm embed`.

use crate::print;
use crate::{Error, Result};
use candle_engine::device::{describe, DeviceChoice, DeviceParser};
use candle_engine::embed::{EncoderFiles, TextTokens};
use candle_engine::error::Doing;
use candle_engine::progress::note;
use candle_engine::registry::BackendRegistry;
use candle_engine::Error as EngineError;
use candle_transformers::embed::{unit, Options, Pooling};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Texts to embed
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// A Hugging Face folder (config.json, tokenizer.json, safetensors) with a BERT, DistilBERT, RoBERTa, XLM-RoBERTa, ModernBERT,
    /// NomicBERT, JinaBERT, Jina v3, DeBERTa, NV-Embed, EuroBERT or EmbeddingGemma, or a Qwen2, Qwen3 or Mistral embedding model
    #[arg(long, value_name = "FOLDER")]
    model: PathBuf,
    /// File with more texts, one per line
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Prefix for each text, such as "search_query: ", if the model expects one
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    prefix: String,
    /// How to pool token vectors [default: as in the folder's sentence-transformers files, otherwise mean]
    #[arg(long, value_enum)]
    pooling: Option<PoolingName>,
    /// Normalize vectors to length 1 [default: as in the folder's sentence-transformers files]
    #[arg(long, overrides_with = "no_normalize")]
    normalize: bool,
    /// Do not normalize vectors
    #[arg(long)]
    no_normalize: bool,
    /// Truncate vectors to N elements and normalize them again, for Matryoshka models
    #[arg(long, value_name = "N")]
    dim: Option<usize>,
    /// Print one JSON object per line for each text: text, tokens, cut, embedding
    #[arg(long)]
    json: bool,
    /// Number of texts per batch
    #[arg(long, value_name = "N", default_value_t = Options::default().batch)]
    batch: usize,
    /// Device to run on
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PoolingName {
    /// Mean of all tokens
    Mean,
    /// First token, [CLS]
    Cls,
    /// Last token
    Last,
}

impl From<PoolingName> for Pooling {
    fn from(name: PoolingName) -> Self {
        match name {
            PoolingName::Mean => Self::Mean,
            PoolingName::Cls => Self::Cls,
            PoolingName::Last => Self::Last,
        }
    }
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    text: &'a str,
    tokens: usize,
    cut: bool,
    embedding: &'a [f32],
}

pub(super) fn run(args: Args) -> Result<()> {
    let texts = args.texts()?;
    if args.batch == 0 {
        return Err(Error::parameter("batch", 0, "at least 1"));
    }
    let files = EncoderFiles::open(&args.model, args.pooling.map(Pooling::from))?;
    let options = args.options(&files)?;
    // A text that cannot work is reported before a GPU is woken and weights are read.
    let tokens: Vec<TextTokens> = texts
        .iter()
        .map(|(origin, text)| files.tokens(origin, &args.prefix, text))
        .collect::<candle_engine::Result<_>>()?;

    let registry = BackendRegistry::detect();
    let device = registry.select(args.device)?.open()?;
    let name = files.name.clone();
    let encoder = files.load(device)?;
    note(&format!(
        "{name}: {}, {} of {} elements, {} pooling, {}, f32 on {}",
        encoder.config().model_type,
        options.dim.unwrap_or(encoder.config().size),
        encoder.config().size,
        options.pooling.name(),
        if options.normalize {
            "length 1"
        } else {
            "not normalized"
        },
        describe(device),
    ));
    let vectors = encoder
        .embed(&tokens, &options)
        .doing("embedding the texts")?;
    if args.json {
        let vectors = vectors.to_vec2::<f32>().doing("reading the vectors")?;
        let mut lines = String::new();
        for (((_, text), tokens), embedding) in texts.iter().zip(&tokens).zip(&vectors) {
            let line = Line {
                text,
                tokens: tokens.ids.len(),
                cut: tokens.cut,
                embedding,
            };
            let line = serde_json::to_string(&line);
            lines += &line.map_err(|err| Error::Stdout(std::io::Error::other(err)))?;
            lines.push('\n');
        }
        return print(&lines);
    }
    let cosines = unit(&vectors)
        .and_then(|vectors| vectors.matmul(&vectors.t()?)?.to_vec2::<f32>())
        .doing("comparing the vectors")?;
    let texts: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
    print(&table(&texts, &cosines))
}

impl Args {
    /// Texts to embed, each with what to call it in messages.
    fn texts(&self) -> Result<Vec<(String, String)>> {
        let numbered = self.texts.iter().enumerate();
        let mut texts: Vec<_> = numbered
            .map(|(i, text)| (format!("text {}", i + 1), text.clone()))
            .collect();
        if let Some(file) = &self.file {
            let lines = std::fs::read_to_string(file).map_err(|err| Error::file(file, err))?;
            let lines = lines.lines().enumerate();
            texts.extend(
                lines.map(|(i, line)| (format!("{}:{}", file.display(), i + 1), line.to_string())),
            );
        }
        if texts.is_empty() {
            return Err(EngineError::Text {
                origin: "embed".to_string(),
                problem: "no texts; give them as arguments, or one per line in --file".to_string(),
            }
            .into());
        }
        Ok(texts)
    }

    fn options(&self, files: &EncoderFiles) -> Result<Options> {
        let given = files.options();
        let size = files.config().size;
        match self.dim {
            Some(dim) if !(1..=size).contains(&dim) => {
                return Err(EngineError::Text {
                    origin: format!("--dim {dim}"),
                    problem: format!(
                        "out of range; the model's vectors have {size} elements, use 1 to {size}"
                    ),
                }
                .into())
            }
            _ => (),
        }
        Ok(Options {
            normalize: !self.no_normalize
                && (self.normalize || self.dim.is_some() || given.normalize),
            dim: self.dim,
            batch: self.batch,
            ..given
        })
    }
}

/// The similarities of all pairs of texts, a line and a column for each text.
fn table(texts: &[&str], cosines: &[Vec<f32>]) -> String {
    const MOST: usize = 48;
    let wide = texts.len().to_string().len();
    let mut lines = " ".repeat(wide);
    for column in 1..=texts.len() {
        // Writing to a string cannot fail.
        let _ = write!(lines, " {column:>6}");
    }
    lines.push('\n');
    for (i, (text, row)) in texts.iter().zip(cosines).enumerate() {
        let _ = write!(lines, "{:>wide$}", i + 1);
        for cosine in row {
            let _ = write!(lines, " {cosine:>6.3}");
        }
        let shown: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let _ = match shown.char_indices().nth(MOST) {
            Some((end, _)) => writeln!(lines, "  {}…", &shown[..end]),
            None => writeln!(lines, "  {shown}"),
        };
    }
    lines
}
