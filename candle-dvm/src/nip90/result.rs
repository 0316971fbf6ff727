//! The result, kind 6050 or 6000.
//!
//! Beside what NIP-90 asks for, it has `status`, as most providers write it, `alt` for programs that do not know the kind (NIP-31), and in the
//! tags `llm-model`, `llm-prompt-tokens` and `llm-completion-tokens`, which agents on Nostr use, what made the text and how much of it there
//! was. An encrypted result goes without the last three, for they tell something of what is hidden.

use super::crypto::{decrypt, Scheme};
use super::{
    all, first, sign, tag, tags, token, token_tag, JobKind, ReadError, Status, WriteError,
};
use nostr::prelude::{Event, EventId, Keys, Tag};

/// The model and the token counts of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The model's name.
    pub model: String,
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub completion_tokens: u64,
}

/// The tags of [`Usage`].
const USAGE: [&str; 3] = ["llm-model", "llm-prompt-tokens", "llm-completion-tokens"];

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    /// The request's id.
    pub job: EventId,
    /// The generated text.
    pub text: String,
    /// The price, in thousandths of a satoshi.
    pub amount_msat: Option<u64>,
    /// An invoice for that.
    pub invoice: Option<String>,
    /// A Cashu token for the customer: what was paid beyond the price.
    pub cashu: Option<String>,
    /// The encryption of the text.
    pub encryption: Option<Scheme>,
    /// The model and the token counts; omitted if the text is encrypted.
    pub usage: Option<Usage>,
}

impl JobResult {
    /// Writes the result of `request`, with `relay` as the relay that has the request, in at most `limit` bytes of JSON.
    ///
    /// A result repeats its request twice. If it does not fit, the inputs are left out first, then the request, then the optional tags.
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
        let kind = JobKind::of_request(request).unwrap_or_default();
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
        if let Some(token) = &self.cashu {
            least.push(token_tag(keys, &request.pubkey, token)?);
        }
        if self.encryption.is_some() {
            least.push(tag("encrypted", [""; 0]));
        }
        least.push(tag("status", [Status::Success.name()]));
        let described = || {
            let mut tags = least.clone();
            tags.extend(self.description(kind));
            tags
        };
        let with_request = || {
            let mut tags = vec![tag("request", [request.as_json()])];
            tags.extend(described());
            tags
        };
        let inputs = request.tags.iter().filter(|tag| tag.kind() == "i");
        let complete = || {
            let mut tags = with_request();
            tags.extend(inputs.clone().cloned());
            tags
        };
        let forms: [&dyn Fn() -> Vec<Tag>; 4] =
            [&complete, &with_request, &described, &|| least.clone()];
        // An encrypted request has its inputs inside.
        let first = usize::from(self.encryption.is_some());
        let mut size = 0;
        for form in &forms[first..] {
            let event = sign(keys, now, kind.result(), content.clone(), form())?;
            size = event.as_json().len();
            if size <= limit {
                return Ok(event);
            }
        }
        Err(WriteError::TooLarge { size, limit })
    }

    /// The tags that a customer can do without. None of them repeats anything of the request or the text.
    fn description(&self, kind: JobKind) -> Vec<Tag> {
        let hidden = self.encryption.is_some();
        let result = if hidden { "Encrypted result" } else { "Result" };
        let alt = format!("{result} of a {} job (NIP-90)", kind.name());
        let mut tags = vec![tag("alt", [alt])];
        if let Some(usage) = self.usage.as_ref().filter(|_| !hidden) {
            let values = [
                usage.model.clone(),
                usage.prompt_tokens.to_string(),
                usage.completion_tokens.to_string(),
            ];
            let named = USAGE.iter().zip(values);
            tags.extend(named.map(|(name, value)| tag(name, [value])));
        }
        tags
    }

    /// Reads a result, as the customer with `keys`.
    ///
    /// # Errors
    /// Another kind, no job, and content that cannot be decrypted.
    pub fn read(event: &Event, keys: &Keys) -> Result<Self, ReadError> {
        JobKind::of_result(event)?;
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
            cashu: token(&tags, keys, &event.pubkey),
            encryption,
            usage: usage(&tags),
        })
    }
}

/// The usage in a result's tags, if it is complete.
fn usage(tags: &[Vec<String>]) -> Option<Usage> {
    let value = |name| first(tags, name)?.first();
    let [model, prompt, completion] = USAGE.map(value);
    Some(Usage {
        model: model?.clone(),
        prompt_tokens: prompt?.parse().ok()?,
        completion_tokens: completion?.parse().ok()?,
    })
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
