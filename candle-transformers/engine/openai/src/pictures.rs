//! Images in messages: `image_url` parts with `data:` URLs. Nothing is fetched: a server that fetches what a request names reaches its own
//! network.

use super::error::short;
use super::ApiError;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use base64::Engine;
use candle_engine::pictures::{read_picture, Picture, MAX_PICTURES};
use candle_engine::{CandleBackend, Error};
use serde_json::{json, Map, Value};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The most bytes of pixels that requests hold together, those that wait too.
const MOST_HELD: usize = 1 << 30;

/// The images that requests hold.
static HELD: Mutex<Vec<Weak<Picture>>> = Mutex::new(Vec::new());

/// The images of a conversation, in their order.
pub(super) struct Pictures<'a> {
    backend: &'a CandleBackend,
    /// The model's name here.
    model: &'a str,
    found: Vec<Arc<Picture>>,
}

impl<'a> Pictures<'a> {
    pub(super) fn of(backend: &'a CandleBackend, model: &'a str) -> Self {
        Self {
            backend,
            model,
            found: Vec::new(),
        }
    }

    /// Whether a content part is an image.
    pub(super) fn is_image(part: &Map<String, Value>) -> bool {
        let kind = part.get("type").and_then(Value::as_str);
        matches!(kind, Some("image_url" | "input_image"))
    }

    /// Adds the image of a message part; returns the part as templates see it.
    ///
    /// # Errors
    /// A model without image input, a URL that is not a `data:` URL of a PNG or JPEG, too many images, or too large ones; `place` names the
    /// field.
    pub(super) fn take(
        &mut self,
        place: &str,
        part: &Map<String, Value>,
    ) -> Result<Value, ApiError> {
        let wrong = |problem: String| ApiError::field(&format!("{place}.image_url"), problem);
        self.backend.check_images().map_err(|err| match err {
            Error::NoPictures { why, .. } => {
                let model = self.model.to_string();
                wrong(Error::NoPictures { model, why }.one_line())
            }
            other => other.into(),
        })?;
        if self.found.len() == MAX_PICTURES {
            return Err(wrong(format!(
                "more than {MAX_PICTURES} images; the maximum is {MAX_PICTURES}"
            )));
        }
        let url = match part.get("image_url") {
            // In responses the URL is the field itself.
            Some(Value::String(url)) => Some(url.as_str()),
            Some(Value::Object(fields)) => fields.get("url").and_then(Value::as_str),
            _ => None,
        };
        let url = url.ok_or_else(|| wrong("expected an object with the text `url`".to_string()))?;
        let bytes = data(url).map_err(wrong)?;
        let picture = read_picture(&bytes, "the image").map_err(|err| wrong(err.one_line()))?;
        self.found.push(hold(picture)?);
        Ok(json!({ "type": "image" }))
    }

    /// All images.
    pub(super) fn into_all(self) -> Vec<Arc<Picture>> {
        self.found
    }
}

/// The bytes of a `data:` URL in base64.
fn data(url: &str) -> Result<Vec<u8>, String> {
    const WANTED: &str = "expected data:image/png;base64,… or data:image/jpeg;base64,…";
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    if !scheme.eq_ignore_ascii_case("data") {
        let found = short(url);
        return Err(format!(
            "{found:?} is not fetched: send the image itself; {WANTED}"
        ));
    }
    let Some((kind, data)) = rest.split_once(',') else {
        return Err(format!("a data: URL without a comma; {WANTED}"));
    };
    let Some(kind) = kind.strip_suffix(";base64") else {
        return Err(format!("a data: URL that is not base64; {WANTED}"));
    };
    if !["image/png", "image/jpeg", "image/jpg"].contains(&kind.to_ascii_lowercase().as_str()) {
        return Err(format!("{:?} is not supported; {WANTED}", short(kind)));
    }
    let data = data.trim_end_matches('=');
    let decoded = STANDARD_NO_PAD.decode(data);
    decoded.map_err(|err| format!("invalid base64: {err}"))
}

/// Counts the image as held until its last owner drops it.
fn hold(picture: Picture) -> Result<Arc<Picture>, ApiError> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.retain(|it| it.strong_count() > 0);
    let bytes = held.iter().filter_map(Weak::upgrade);
    let bytes: usize = bytes.map(|it| it.rgb().len()).sum();
    if bytes + picture.rgb().len() > MOST_HELD {
        return Err(Error::Busy(held.len()).into());
    }
    let picture = Arc::new(picture);
    held.push(Arc::downgrade(&picture));
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::data;

    #[test]
    fn urls() {
        assert_eq!(data("data:image/png;base64,AQID").unwrap(), [1, 2, 3]);
        assert_eq!(data("DATA:IMAGE/JPEG;base64,AQ==").unwrap(), [1]);
        for (url, problem) in [
            (
                "https://example.com/a.png",
                "is not fetched: send the image itself",
            ),
            ("file:///etc/passwd", "is not fetched"),
            ("a.png", "is not fetched"),
            ("data:image/png;base64", "without a comma"),
            ("data:image/png,AQID", "not base64"),
            ("data:image/svg+xml;base64,AQID", "image/svg+xml"),
            ("data:image/png;base64,A?", "invalid base64"),
        ] {
            let error = data(url).unwrap_err();
            assert!(
                error.contains(problem) && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
