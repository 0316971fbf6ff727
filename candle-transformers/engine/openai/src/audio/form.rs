//! The fields of a form with a recording.

use super::super::error::short;
use super::super::fields::Fields;
use super::super::ApiError;
use axum::extract::multipart::MultipartError;
use axum::extract::Multipart;
use candle_engine::speech::Asked;
use serde_json::{json, Map};

/// The most bytes of all fields but the file.
const TEXT_BYTES: usize = 64 << 10;
const FORMATS: &str = "json, text, srt, verbose_json or vtt";
const GRANULARITIES: &str = "timestamp_granularities[]";

/// A request.
pub(super) struct Form {
    pub(super) model: String,
    /// The file's name, and what is in it.
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) asked: Asked,
    pub(super) format: Format,
    pub(super) stream: bool,
}

/// The form of an answer.
#[derive(Clone, Copy)]
pub(super) enum Format {
    Json,
    Text,
    Srt,
    Vtt,
    Verbose { segments: bool, words: bool },
}

impl Form {
    /// Reads the fields of a form.
    ///
    /// # Errors
    /// The first field that is missing, wrong or not supported.
    pub(super) async fn read(mut form: Multipart, translate: bool) -> Result<Self, ApiError> {
        let mut file = None;
        let mut texts = Map::new();
        let mut granularities = Vec::new();
        let mut room = TEXT_BYTES;
        while let Some(field) = form.next_field().await.map_err(broken)? {
            let name = field.name().unwrap_or_default().to_string();
            if name == "file" {
                let of = field.file_name().unwrap_or("file").to_string();
                let bytes = field.bytes().await.map_err(broken)?;
                file = Some((of, Vec::from(bytes)));
                continue;
            }
            let text = field.text().await.map_err(broken)?;
            room = room
                .checked_sub(name.len() + text.len())
                .ok_or_else(|| ApiError::too_large(TEXT_BYTES))?;
            match name.as_str() {
                GRANULARITIES | "timestamp_granularities" => granularities.push(text),
                _ => drop(texts.insert(name, text.into())),
            }
        }
        let mut fields = Fields::of(String::new(), texts);
        let Some((name, bytes)) = file else {
            return Err(fields.wrong("file", "is missing; expected a recording"));
        };
        // Messages show it; only its ending matters.
        let name = short(&name);
        let text = "a text";
        let model = fields.need("model", text)?;
        let mut asked = Asked {
            translate,
            prompt: fields.take::<String>("prompt", text)?.unwrap_or_default(),
            ..Asked::default()
        };
        if !translate {
            asked.language = fields.take("language", text)?;
            asked.language = asked.language.filter(|code| !code.is_empty());
        }
        if let Some(given) = fields.take::<String>("temperature", text)? {
            let number = given.parse::<f64>().ok();
            let number = number.filter(|number| (0. ..=1.).contains(number));
            let problem = || format!("expected a number from 0 to 1, found {:?}", short(&given));
            asked.temperature = number.ok_or_else(|| fields.wrong("temperature", problem()))?;
        }
        let format = match fields.take::<String>("response_format", text)?.as_deref() {
            None | Some("json") => Format::Json,
            Some("text") => Format::Text,
            Some("srt") => Format::Srt,
            Some("vtt") => Format::Vtt,
            Some("verbose_json") => {
                let has = |name: &str| granularities.iter().any(|known| known == name);
                Format::Verbose {
                    segments: granularities.is_empty() || has("segment"),
                    words: has("word"),
                }
            }
            Some(other) => {
                let problem = format!("unsupported {:?}; expected {FORMATS}", short(other));
                return Err(fields.wrong("response_format", problem));
            }
        };
        let known = ["segment", "word"];
        if let Some(other) = granularities
            .iter()
            .find(|it| !known.contains(&it.as_str()))
        {
            let problem = format!("unsupported {:?}; expected segment or word", short(other));
            return Err(fields.wrong(GRANULARITIES, problem));
        }
        if !granularities.is_empty() && !matches!(format, Format::Verbose { .. }) {
            let problem = "requires response_format=verbose_json";
            return Err(fields.wrong(GRANULARITIES, problem));
        }
        asked.words = matches!(format, Format::Verbose { words: true, .. });
        let stream = match fields.take::<String>("stream", text)?.as_deref() {
            None | Some("false" | "False") => false,
            Some("true" | "True") => true,
            Some(other) => {
                let problem = format!("expected true or false, found {:?}", short(other));
                return Err(fields.wrong("stream", problem));
            }
        };
        if stream && !matches!(format, Format::Json | Format::Text) {
            return Err(fields.wrong("stream", "requires response_format=json or text"));
        }
        fields.harmless("chunking_strategy", &[json!("auto")])?;
        fields.end()?;
        Ok(Self {
            model,
            name,
            bytes,
            asked,
            format,
            stream,
        })
    }
}

fn broken(error: MultipartError) -> ApiError {
    ApiError::field("form", short(&error.body_text()))
}
