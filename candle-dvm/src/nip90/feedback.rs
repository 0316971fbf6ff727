//! Feedback, kind 7000: a provider's events about an unfinished job.

use super::crypto::{decrypt, Scheme};
use super::request::hidden_tags;
use super::result::{amount, job};
use super::{
    expect_kind, first, sign, tag, tags, token, token_tag, ReadError, WriteError, FEEDBACK,
};
use nostr::prelude::{Event, EventId, Keys, PublicKey};

/// The status of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The job continues once an invoice is paid.
    PaymentRequired,
    /// It is accepted.
    Processing,
    /// It ended without a result.
    Error,
    /// It ended with one.
    Success,
    /// Part of the result is there.
    Partial,
}

impl Status {
    const ALL: [Self; 5] = [
        Self::PaymentRequired,
        Self::Processing,
        Self::Error,
        Self::Success,
        Self::Partial,
    ];

    /// The name in the tag.
    pub fn name(self) -> &'static str {
        match self {
            Self::PaymentRequired => "payment-required",
            Self::Processing => "processing",
            Self::Error => "error",
            Self::Success => "success",
            Self::Partial => "partial",
        }
    }
}

/// A feedback event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// The request's id.
    pub job: EventId,
    /// The status of the job.
    pub status: Status,
    /// More about it, for people: the reason of an error.
    pub extra: Option<String>,
    /// All text so far; empty where there is none.
    pub text: String,
    /// The price of the job, in thousandths of a satoshi.
    pub amount_msat: Option<u64>,
    /// An invoice for that.
    pub invoice: Option<String>,
    /// A Cashu token for the customer: what was paid for a job that failed.
    pub cashu: Option<String>,
    /// When the feedback stops to matter.
    pub expiration: Option<u64>,
    /// The encryption of `extra` and `text`.
    pub encryption: Option<Scheme>,
}

impl Feedback {
    /// Feedback without a text.
    pub fn new(job: EventId, status: Status) -> Self {
        Self {
            job,
            status,
            extra: None,
            text: String::new(),
            amount_msat: None,
            invoice: None,
            cashu: None,
            expiration: None,
            encryption: None,
        }
    }

    /// Writes the feedback for the customer.
    ///
    /// The plain text of an encrypted one is an array of tags, as in a request, because NDK reads it so: `status` with its extra, and
    /// `content` with the text.
    ///
    /// # Errors
    /// A text that the encryption cannot hold.
    pub fn write(&self, keys: &Keys, now: u64, customer: &PublicKey) -> Result<Event, WriteError> {
        let mut status = vec![self.status.name()];
        status.extend(self.extra.as_deref());
        let mut outer = vec![tag("e", [self.job.to_hex()]), tag("p", [customer.to_hex()])];
        if let Some(amount) = self.amount_msat {
            outer.push(tag(
                "amount",
                [amount.to_string()].into_iter().chain(self.invoice.clone()),
            ));
        }
        if let Some(token) = &self.cashu {
            outer.push(token_tag(keys, customer, token)?);
        }
        if let Some(at) = self.expiration {
            outer.push(tag("expiration", [at.to_string()]));
        }
        let content = match self.encryption {
            None => {
                outer.insert(0, tag("status", status));
                self.text.clone()
            }
            Some(scheme) => {
                outer.insert(0, tag("status", [self.status.name()]));
                outer.push(tag("encrypted", [""; 0]));
                let mut hidden = vec![[&["status"], status.as_slice()].concat()];
                if !self.text.is_empty() {
                    hidden.push(vec!["content", &self.text]);
                }
                let text = serde_json::to_string(&hidden)
                    .map_err(|err| WriteError::Encryption(err.to_string()))?;
                scheme.encrypt(keys, customer, &text)?
            }
        };
        sign(keys, now, FEEDBACK, content, outer)
    }

    /// Reads feedback, as the customer with `keys`.
    ///
    /// # Errors
    /// Another kind, no job, an unknown status, and content that cannot be decrypted.
    pub fn read(event: &Event, keys: &Keys) -> Result<Self, ReadError> {
        expect_kind(event, FEEDBACK)?;
        let tags = tags(event);
        let values = first(&tags, "status").ok_or(ReadError::Missing("status"))?;
        let name = values.first().map_or("", String::as_str);
        let status = Status::ALL
            .into_iter()
            .find(|status| status.name() == name)
            .ok_or_else(|| ReadError::value("status", name, "a status of NIP-90"))?;
        let (amount_msat, invoice) = amount(&tags);
        let mut read = Self {
            job: job(&tags)?,
            status,
            extra: values.get(1).filter(|text| !text.is_empty()).cloned(),
            text: event.content.clone(),
            amount_msat,
            invoice,
            cashu: token(&tags, keys, &event.pubkey),
            expiration: super::expiration(event),
            encryption: None,
        };
        if first(&tags, "encrypted").is_some() && !event.content.is_empty() {
            let (text, scheme) = decrypt(keys, &event.pubkey, &event.content)?;
            read.encryption = Some(scheme);
            // Other providers encrypt the text as it is.
            match hidden_tags(&text) {
                Ok(hidden) => {
                    let extra = first(&hidden, "status").and_then(|status| status.get(1));
                    read.extra = extra.cloned().or(read.extra);
                    let text = first(&hidden, "content").and_then(|text| text.first());
                    read.text = text.cloned().unwrap_or_default();
                }
                Err(_) => read.text = text,
            }
        }
        Ok(read)
    }
}
