//! The result, kind 6050.

use super::crypto::{decrypt, Scheme};
use super::{all, expect_kind, first, sign, tag, tags, ReadError, WriteError, RESULT};
use nostr::prelude::{Event, EventId, Keys, Tag};

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    /// The request's id.
    pub job: EventId,
    /// The generated text.
    pub text: String,
    /// What is asked for it, in thousandths of a satoshi.
    pub amount_msat: Option<u64>,
    /// An invoice for that.
    pub invoice: Option<String>,
    /// How the text is hidden from others.
    pub encryption: Option<Scheme>,
}

impl JobResult {
    /// Writes the result of `request`, with `relay` as the place where the request is found, in at most `limit` bytes of JSON.
    ///
    /// A result repeats its request twice. Where there is no room, the inputs go first, then the request.
    ///
    /// # Errors
    /// A text for which there is no room, or which the encryption cannot hold.
    pub fn write(
        &self,
        keys: &Keys,
        now: u64,
        request: &Event,
        relay: Option<&str>,
        limit: usize,
    ) -> Result<Event, WriteError> {
        let content = match self.encryption {
            Some(scheme) => scheme.encrypt(keys, &request.pubkey, &self.text)?,
            None => self.text.clone(),
        };
        let mut least = vec![tag(
            "e",
            [self.job.to_hex()]
                .into_iter()
                .chain(relay.map(str::to_string)),
        )];
        least.push(tag("p", [request.pubkey.to_hex()]));
        if let Some(amount) = self.amount_msat {
            least.push(tag(
                "amount",
                [amount.to_string()].into_iter().chain(self.invoice.clone()),
            ));
        }
        if self.encryption.is_some() {
            least.push(tag("encrypted", [""; 0]));
        }
        let with_request = || {
            let mut tags = vec![tag("request", [request.as_json()])];
            tags.extend(least.clone());
            tags
        };
        let inputs = request.tags.iter().filter(|tag| tag.kind() == "i");
        let complete = || {
            let mut tags = with_request();
            tags.extend(inputs.clone().cloned());
            tags
        };
        let forms: [&dyn Fn() -> Vec<Tag>; 3] = [&complete, &with_request, &|| least.clone()];
        // An encrypted request has its inputs inside.
        let first = usize::from(self.encryption.is_some());
        let mut size = 0;
        for form in &forms[first..] {
            let event = sign(keys, now, RESULT, content.clone(), form())?;
            size = event.as_json().len();
            if size <= limit {
                return Ok(event);
            }
        }
        Err(WriteError::TooLarge { size, limit })
    }

    /// Reads a result, as the customer with `keys`.
    ///
    /// # Errors
    /// Another kind, no job, and content that cannot be decrypted.
    pub fn read(event: &Event, keys: &Keys) -> Result<Self, ReadError> {
        expect_kind(event, RESULT)?;
        let tags = tags(event);
        let (text, encryption) = match first(&tags, "encrypted") {
            Some(_) => {
                let (text, scheme) = decrypt(keys, &event.pubkey, &event.content)?;
                (text, Some(scheme))
            }
            None => (event.content.clone(), None),
        };
        let (amount_msat, invoice) = amount(&tags);
        Ok(Self {
            job: job(&tags)?,
            text,
            amount_msat,
            invoice,
            encryption,
        })
    }
}

/// The job that an answer names.
pub(super) fn job(tags: &[Vec<String>]) -> Result<EventId, ReadError> {
    all(tags, "e")
        .find_map(|e| EventId::from_hex(e.first()?).ok())
        .ok_or(ReadError::Missing("e"))
}

/// The price that an answer names, and its invoice.
pub(super) fn amount(tags: &[Vec<String>]) -> (Option<u64>, Option<String>) {
    let values = first(tags, "amount").unwrap_or_default();
    (
        values.first().and_then(|amount| amount.parse().ok()),
        values.get(1).filter(|text| !text.is_empty()).cloned(),
    )
}
