//! The request, kind 5050 or 5000.
//!
//! The input of a recording is a URL. A prompt may be in these locations, in this order; only the first that has one counts:
//!
//! 1. The tags `i`, `["i", data, type]`, and `input`, which some write as `["input", type, data]`, in the order in which they come.
//! 2. The parameter `prompt`, of several the last.
//! 3. The content, of a request that is not encrypted and has no parameter that is foreign to text: often it is a title for people, and with
//!    such parameters a job of another sort.
//!
//! A request without any of them, with an input of an unknown type, or with an output other than text
//! ([`super::ReadError::is_other_job`]) is left to others unless it names this provider.

use super::crypto::{decrypt, Scheme};
use super::params::{self, Params};
use super::speech::{self, SpeechParams};
use super::{all, first, sign_with_work, tag, tags, JobKind, ReadError, WriteError};
use nostr::prelude::{Event, Keys, PublicKey, Tag};

/// The most inputs, of parameters, and of relays that a request may have.
const MOST: usize = 64;

/// The type of an input's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// The text itself. Read from `text`, `prompt`, an empty type and none.
    Text,
    /// An address to fetch.
    Url,
    /// The id of an event, whose content is the input.
    Event,
    /// The id of another request, whose result is the input.
    Job,
}

impl InputKind {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Url => "url",
            Self::Event => "event",
            Self::Job => "job",
        }
    }
}

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The text, address or id.
    pub data: String,
    /// The type of the data.
    pub kind: InputKind,
    /// A relay that may have the event or the result.
    pub relay: Option<String>,
    /// The use of the input; nothing here reads it.
    pub marker: Option<String>,
}

impl Input {
    /// A text.
    pub fn text(data: impl Into<String>) -> Self {
        Self {
            data: data.into(),
            kind: InputKind::Text,
            relay: None,
            marker: None,
        }
    }
}

/// A job by its sort, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// A text that follows the inputs.
    Text(Params),
    /// The text of the recording that is the input.
    Speech(SpeechParams),
}

impl Task {
    /// The name of the requested model.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Text(params) => params.model.as_deref(),
            Self::Speech(params) => params.model.as_deref(),
        }
    }
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobRequest {
    /// The sort of job.
    pub kind: JobKind,
    /// The inputs, in order.
    pub inputs: Vec<Input>,
    /// The parameters as they are written; [`Self::task`] makes sense of them.
    pub params: Vec<(String, String)>,
    /// The type of answer that is wanted, such as `text/plain`.
    pub output: Option<String>,
    /// The most that the customer pays, in thousandths of a satoshi.
    pub bid_msat: Option<u64>,
    /// The relays on which the customer wants the answers.
    pub relays: Vec<String>,
    /// The providers of the request; empty means any.
    pub providers: Vec<PublicKey>,
    /// When the job stops to matter.
    pub expiration: Option<u64>,
    /// A Cashu token that pays for the job.
    pub cashu: Option<String>,
    /// The encryption of the inputs, the parameters and the token.
    pub encryption: Option<Scheme>,
}

impl JobRequest {
    /// Reads a request. `keys` are those of the reader, for encrypted ones.
    ///
    /// # Errors
    /// Another kind, content that cannot be read, values that do not fit, and more than 64 inputs, parameters or relays.
    pub fn read(event: &Event, keys: &Keys) -> Result<Self, ReadError> {
        let kind = JobKind::of_request(event)?;
        let outer = tags(event);
        let mut request = Self {
            kind,
            providers: all(&outer, "p")
                .filter_map(|p| PublicKey::from_hex(p.first()?).ok())
                .collect(),
            relays: at_most("relays", all(&outer, "relays").flatten().cloned())?,
            expiration: super::expiration(event),
            bid_msat: number(&outer, "bid")?,
            ..Self::default()
        };
        // What is inside of an encrypted content comes first; some customers leave parameters outside.
        let mut read = Vec::new();
        if first(&outer, "encrypted").is_some() {
            if !request.providers.contains(&keys.public_key()) {
                return Err(ReadError::NotForUs);
            }
            let (text, scheme) = decrypt(keys, &event.pubkey, &event.content)?;
            read = hidden_tags(&text)?;
            request.encryption = Some(scheme);
            request.bid_msat = request.bid_msat.or(number(&read, "bid")?);
        }
        if request.relays.is_empty() {
            // NDK hides these too.
            request.relays = at_most("relays", all(&read, "relays").flatten().cloned())?;
        }
        read.extend(outer);
        let is_input = |tag: &&Vec<String>| {
            tag.first()
                .is_some_and(|name| name == "i" || name == "input")
        };
        let inputs = at_most("i", read.iter().filter(is_input))?;
        request.inputs = inputs
            .into_iter()
            .map(|tag| input(tag))
            .collect::<Result<_, _>>()?;
        let named = all(&read, "param").filter(|param| !param.is_empty());
        request.params = at_most("param", named.flat_map(param))?;
        request.cashu = first(&read, "cashu").and_then(|token| token.first().cloned());
        request.output = first(&read, "output").and_then(|output| output.first().cloned());
        if request.inputs.is_empty() && kind == JobKind::Text {
            let prompt = request.other_prompt(&event.content);
            request.inputs.extend(prompt.map(Input::text));
        }
        Ok(request)
    }

    /// A prompt that is in no input: the parameter, or else the content.
    fn other_prompt(&self, content: &str) -> Option<String> {
        let prompts = self.params.iter().rev();
        let mut prompts = prompts.filter(|(key, _)| params::name(key) == params::PROMPT);
        if let Some((_, prompt)) = prompts.find(|(_, prompt)| !prompt.is_empty()) {
            return Some(prompt.clone());
        }
        let is_prompt = self.encryption.is_none()
            && !content.is_empty()
            && self.params.iter().all(|(key, _)| params::is_of_text(key));
        is_prompt.then(|| content.to_string())
    }

    /// The job with its parameters, if text can be the answer to this request.
    ///
    /// # Errors
    /// No prompt, other inputs than the address of one recording, an output other than text, and the first parameter that does not fit.
    pub fn task(&self) -> Result<Task, ReadError> {
        let first = self.inputs.first().ok_or(ReadError::Missing("i"))?;
        let output = self.output.as_deref().unwrap_or_default();
        let wrong = |expected| Err(ReadError::value("output", output, expected));
        match self.kind {
            JobKind::Text if !is_text(output) => wrong("a type of text, such as text/plain"),
            JobKind::Text => params::read(&self.params).map(Task::Text),
            JobKind::Speech if !is_text(output) && !is_json(output) => {
                wrong("text/plain or application/json")
            }
            JobKind::Speech if self.inputs.len() > 1 || first.kind != InputKind::Url => {
                let expected = "one input of the type url, the address of a recording";
                Err(ReadError::value("i", first.kind.name(), expected))
            }
            JobKind::Speech => {
                let json = is_json(output);
                let params = speech::read(&self.params)?;
                Ok(Task::Speech(SpeechParams { json, ..params }))
            }
        }
    }

    /// Writes the request.
    ///
    /// # Errors
    /// No input, an input or a parameter that has no form in the event, and encryption for none or for several providers.
    pub fn write(&self, keys: &Keys, now: u64) -> Result<Event, WriteError> {
        self.write_with_work(keys, now, 0)
    }

    /// Writes the request with an id that shows `work` bits of proof of work (NIP-13). Each bit doubles the time that this takes.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn write_with_work(&self, keys: &Keys, now: u64, work: u8) -> Result<Event, WriteError> {
        let invalid = |text: &str| Err(WriteError::Invalid(text.to_string()));
        if self.inputs.is_empty() {
            return invalid("a request needs an input");
        }
        for (name, count) in [
            ("i", self.inputs.len()),
            ("param", self.params.len()),
            ("relays", self.relays.len()),
        ] {
            at_most(name, std::iter::repeat_n((), count))
                .map_err(|err| WriteError::Invalid(err.to_string()))?;
        }
        if self.params.iter().any(|(key, _)| key.is_empty()) {
            return invalid("a parameter needs a name");
        }
        let mut hidden: Vec<Tag> = self.inputs.iter().map(write_input).collect();
        hidden.extend(
            self.params
                .iter()
                .map(|(key, value)| tag("param", [key, value])),
        );
        hidden.extend(self.cashu.iter().map(|token| tag("cashu", [token])));
        hidden.extend(self.output.iter().map(|output| tag("output", [output])));

        let mut outer = Vec::new();
        let mut content = String::new();
        match (self.encryption, self.providers.as_slice()) {
            (None, _) => outer = hidden,
            (Some(scheme), [provider]) => {
                let lists: Vec<&[String]> = hidden.iter().map(Tag::as_slice).collect();
                let text = serde_json::to_string(&lists)
                    .map_err(|err| WriteError::Encryption(err.to_string()))?;
                content = scheme.encrypt(keys, provider, &text)?;
                outer.push(tag("encrypted", [""; 0]));
            }
            (Some(_), _) => return invalid("an encrypted request needs exactly one provider"),
        }
        outer.extend(self.bid_msat.map(|bid| tag("bid", [bid.to_string()])));
        if !self.relays.is_empty() {
            outer.push(tag("relays", &self.relays));
        }
        outer.extend(self.providers.iter().map(|p| tag("p", [p.to_hex()])));
        outer.extend(
            self.expiration
                .map(|at| tag("expiration", [at.to_string()])),
        );
        sign_with_work(keys, now, self.kind.request(), content, outer, work)
    }
}

/// The tags in the plain text of an encrypted content. Entries that are not lists of strings are ignored.
pub(super) fn hidden_tags(text: &str) -> Result<Vec<Vec<String>>, ReadError> {
    let expected = "an array of tags";
    let lists: Vec<serde_json::Value> =
        serde_json::from_str(text).map_err(|_| ReadError::value("content", "…", expected))?;
    Ok(lists
        .into_iter()
        .filter_map(|list| serde_json::from_value::<Vec<String>>(list).ok())
        .filter(|list| !list.is_empty())
        .collect())
}

/// All of them, if there are not too many.
fn at_most<T>(name: &'static str, items: impl Iterator<Item = T>) -> Result<Vec<T>, ReadError> {
    let items: Vec<T> = items.collect();
    match items.len() {
        0..=MOST => Ok(items),
        found => Err(ReadError::TooMany {
            name,
            found,
            most: MOST,
        }),
    }
}

/// An output's type, without its parameters.
fn media_type(output: &str) -> String {
    let kind = output.split(';').next().unwrap_or_default();
    kind.trim().to_ascii_lowercase()
}

/// Whether an output's type is JSON.
fn is_json(output: &str) -> bool {
    matches!(media_type(output).as_str(), "json" | "application/json")
}

/// Whether an output's type is one of text. Nothing means any.
fn is_text(output: &str) -> bool {
    let kind = media_type(output);
    let kind = kind.as_str();
    matches!(
        kind,
        "" | "text" | "txt" | "plain" | "markdown" | "md" | "string" | "*/*" | "*"
    ) || kind.starts_with("text/")
}

/// A parameter's name with its value, or with each of its values where it may have several.
fn param(values: &[String]) -> Vec<(String, String)> {
    let several = params::name(&values[0]) == params::STOP && values.len() > 2;
    let end = if several { values.len() } else { 2 };
    let values_of = (1..end).map(|at| values.get(at).cloned().unwrap_or_default());
    values_of.map(|value| (values[0].clone(), value)).collect()
}

fn kind(name: &str) -> Option<InputKind> {
    match name {
        "text" | "prompt" => Some(InputKind::Text),
        "url" => Some(InputKind::Url),
        "event" => Some(InputKind::Event),
        "job" => Some(InputKind::Job),
        _ => None,
    }
}

fn input(tag: &[String]) -> Result<Input, ReadError> {
    let (name, mut values) = (tag[0].as_str(), tag[1..].to_vec());
    // The other order of an `input`, with the type first.
    if name == "input" && values.len() > 1 && kind(&values[0]).is_some() {
        values.swap(0, 1);
    }
    let part = |at: usize| values.get(at).filter(|part| !part.is_empty()).cloned();
    let kind = match part(1) {
        None => InputKind::Text,
        Some(name) => {
            kind(&name).ok_or_else(|| ReadError::value("i", &name, "text, url, event or job"))?
        }
    };
    Ok(Input {
        data: values.first().cloned().unwrap_or_default(),
        kind,
        relay: part(2),
        marker: part(3),
    })
}

fn write_input(input: &Input) -> Tag {
    let mut values = vec![input.data.as_str(), input.kind.name()];
    let relay = input.relay.as_deref();
    match input.marker.as_deref() {
        Some(marker) => values.extend([relay.unwrap_or_default(), marker]),
        None => values.extend(relay),
    }
    tag("i", values)
}

fn number(tags: &[Vec<String>], name: &str) -> Result<Option<u64>, ReadError> {
    match first(tags, name).and_then(|values| values.first()) {
        None => Ok(None),
        Some(text) if text.is_empty() => Ok(None),
        Some(text) => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(ReadError::value(name, text, "a whole number, 0 or above")),
        },
    }
}
