//! What a provider says about itself: the announcement (kind 31990, NIP-89) and the heartbeat (kind 11998).

use super::{all, expect_kind, first, sign, tag, tags, ReadError, WriteError};
use super::{JobKind, ANNOUNCEMENT, DELETION, HEARTBEAT};
use nostr::prelude::{Event, EventId, Keys};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A parameter that a provider takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamInfo {
    /// Whether a request has to have it.
    #[serde(default)]
    pub required: bool,
    /// The permitted values; empty if they are not a list.
    #[serde(default)]
    pub values: Vec<String>,
    /// The least value of a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<String>,
    /// The greatest value of a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
    /// The default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// The model that a provider serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServedModel {
    /// Its name, which requests may ask for.
    pub name: String,
    /// The form of prompts: `chat` for turns in the model's chat template, `raw` for text that the model continues as it is.
    pub prompt: String,
    /// The tokens of a prompt and its text together, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
}

/// A provider's announcement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The announcement's `d`: a later one with the same replaces it.
    pub identifier: String,
    /// A name for people.
    pub name: String,
    /// A description of the service.
    pub about: String,
    /// The address of a picture.
    pub picture: Option<String>,
    /// The kinds of jobs; empty means text generation.
    pub kinds: Vec<JobKind>,
    /// The language model, where it is announced.
    pub model: Option<ServedModel>,
    /// The name of the speech model, where it is announced.
    pub speech_model: Option<String>,
    /// Parameters by name.
    pub params: BTreeMap<String, ParamInfo>,
    /// Words to be found by.
    pub topics: Vec<String>,
    /// Whether the provider accepts encrypted requests.
    pub encryption: bool,
    /// Mints whose Cashu tokens pay for jobs.
    pub mints: Vec<String>,
    /// The price of a job in thousandths of a satoshi, 0 if it is free; `None` if it is missing or not a number.
    pub amount_msat: Option<u64>,
}

/// The amount of what costs nothing.
const FREE: &str = "free";

/// The content's JSON. Two spellings about encryption are in use, so both are written.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Content {
    name: String,
    about: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    picture: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ServedModel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speech_model: Option<String>,
    nip90_params: BTreeMap<String, ParamInfo>,
    encryption_supported: bool,
    supports_encryption: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cashu_mints: Vec<String>,
}

impl Announcement {
    /// Writes the announcement.
    ///
    /// # Errors
    /// Failures to sign.
    pub fn write(&self, keys: &Keys, now: u64) -> Result<Event, WriteError> {
        let content = Content {
            name: self.name.clone(),
            about: self.about.clone(),
            picture: self.picture.clone(),
            model: self.model.clone(),
            speech_model: self.speech_model.clone(),
            nip90_params: self.params.clone(),
            encryption_supported: self.encryption,
            supports_encryption: self.encryption,
            amount: self.amount_msat.map(|msat| match msat {
                0 => FREE.to_string(),
                msat => msat.to_string(),
            }),
            cashu_mints: self.mints.clone(),
        };
        let content =
            serde_json::to_string(&content).map_err(|err| WriteError::Invalid(err.to_string()))?;
        let mut list = vec![tag("d", [&self.identifier])];
        let kinds = match self.kinds.as_slice() {
            [] => &[JobKind::Text],
            kinds => kinds,
        };
        let kinds = kinds.iter().map(|kind| kind.request().to_string());
        list.extend(kinds.map(|kind| tag("k", [kind])));
        list.extend(self.topics.iter().map(|topic| tag("t", [topic])));
        sign(keys, now, ANNOUNCEMENT, content, list)
    }

    /// Reads an announcement of a provider of such jobs. Content that is not as expected leaves its fields empty.
    ///
    /// # Errors
    /// Another kind of event, or of job.
    pub fn read(event: &Event) -> Result<Self, ReadError> {
        expect_kind(event, ANNOUNCEMENT)?;
        let tags = tags(event);
        let named = all(&tags, "k").flat_map(|k| k.first()?.parse().ok());
        let kinds: Vec<JobKind> = named.filter_map(JobKind::asked_by).collect();
        if kinds.is_empty() {
            return Err(ReadError::Missing("k 5050 or 5000"));
        }
        let json: serde_json::Value = serde_json::from_str(&event.content).unwrap_or_default();
        // Field by field: a field in an unknown form should not hide the name.
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_string();
        let params = json["nip90Params"].as_object().into_iter().flatten();
        Ok(Self {
            identifier: first(&tags, "d")
                .and_then(|d| d.first().cloned())
                .unwrap_or_default(),
            name: text("name"),
            about: text("about"),
            picture: json["picture"].as_str().map(str::to_string),
            kinds,
            model: serde_json::from_value(json["model"].clone()).ok().flatten(),
            speech_model: json["speechModel"].as_str().map(str::to_string),
            params: params
                .map(|(name, info)| {
                    let info = serde_json::from_value(info.clone()).unwrap_or_default();
                    (name.clone(), info)
                })
                .collect(),
            topics: all(&tags, "t").filter_map(|t| t.first().cloned()).collect(),
            encryption: json["encryptionSupported"] == true || json["supportsEncryption"] == true,
            mints: serde_json::from_value(json["cashuMints"].clone()).unwrap_or_default(),
            amount_msat: match json["amount"].as_str() {
                Some(amount) if amount.eq_ignore_ascii_case(FREE) => Some(0),
                Some(amount) => amount.parse().ok(),
                None => json["amount"].as_u64(),
            },
        })
    }
}

/// A request to delete the announcement, for when the provider stops.
///
/// # Errors
/// Failures to sign.
pub fn withdraw(
    keys: &Keys,
    now: u64,
    identifier: &str,
    announcement: Option<EventId>,
) -> Result<Event, WriteError> {
    let coordinate = format!("{ANNOUNCEMENT}:{}:{identifier}", keys.public_key().to_hex());
    let mut list = vec![tag("a", [coordinate]), tag("k", [ANNOUNCEMENT.to_string()])];
    list.extend(announcement.map(|id| tag("e", [id.to_hex()])));
    sign(keys, now, DELETION, String::new(), list)
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The announcement's `d`.
    pub identifier: String,
    /// The provider's status, such as `online`.
    pub status: String,
    /// Until when it holds.
    pub expiration: Option<u64>,
}

impl Heartbeat {
    /// Writes the heartbeat.
    ///
    /// # Errors
    /// Failures to sign.
    pub fn write(&self, keys: &Keys, now: u64) -> Result<Event, WriteError> {
        let mut list = vec![tag("d", [&self.identifier]), tag("status", [&self.status])];
        list.extend(
            self.expiration
                .map(|at| tag("expiration", [at.to_string()])),
        );
        sign(keys, now, HEARTBEAT, String::new(), list)
    }

    /// Reads a heartbeat.
    ///
    /// # Errors
    /// Another kind.
    pub fn read(event: &Event) -> Result<Self, ReadError> {
        expect_kind(event, HEARTBEAT)?;
        let tags = tags(event);
        let text = |name: &str| {
            first(&tags, name)
                .and_then(|values| values.first().cloned())
                .unwrap_or_default()
        };
        Ok(Self {
            identifier: text("d"),
            status: text("status"),
            expiration: super::expiration(event),
        })
    }
}
