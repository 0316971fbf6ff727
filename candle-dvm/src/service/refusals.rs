//! Refusals: counted, and sent to customers within the limits.

use super::actor::Service;
use super::guests::usable;
use super::inbox::customer;
use super::now;
use crate::jobs::{Customer, JobId, Refusal, Tell};
use crate::nip90::{self, Feedback, Scheme, Status};
use crate::relay::Keep;
use crate::Result;
use nostr::prelude::{Event, EventId, PublicKey};
use std::collections::BTreeSet;

/// The most bytes of a relay's address that waits with a refusal.
const LONGEST_ADDRESS: usize = 256;

/// Everything that a refusal's event needs, in little memory: many wait.
pub(super) struct Untold {
    job: EventId,
    customer: PublicKey,
    text: String,
    encryption: Option<Scheme>,
    /// Relays that the request names.
    relays: BTreeSet<String>,
}

impl Service {
    /// Counts a refusal, and sends it to the customer once, when the limits allow it: on our relays, and on those that the request names in
    /// the open.
    pub(super) fn refuse(
        &mut self,
        url: &str,
        event: &Event,
        hidden: Option<Scheme>,
        refusal: &Refusal,
    ) -> Result<()> {
        let customer = customer(event);
        tracing::info!(job = %event.id, %customer, relay = url, reason = refusal.reason(), "refused");
        let tell = self.admission.refuse(customer, refusal, now());
        if tell == Tell::Never {
            return Ok(());
        }
        let tags = nip90::tags(event);
        let named = nip90::all(&tags, "relays").flatten();
        let named = named.filter(|url| url.len() <= LONGEST_ADDRESS);
        let named: Vec<String> = named.cloned().collect();
        let untold = Untold {
            job: event.id,
            customer: event.pubkey,
            text: match hidden {
                None => refusal.to_string(),
                Some(_) => refusal.without_values(),
            },
            encryption: hidden,
            relays: usable(&named, &self.settings),
        };
        if tell == Tell::Now {
            return self.tell(untold);
        }
        let work = nip90::work(event);
        self.telling.push(customer, work, untold, now());
        self.tell_strangers()
    }

    /// Sends the refusals of strangers that are due.
    pub(super) fn tell_strangers(&mut self) -> Result<()> {
        while let Some(untold) = self.telling.next(now()) {
            self.tell(untold)?;
        }
        let dropped = self.telling.take_dropped();
        self.admission.count_more("not_told", dropped);
        Ok(())
    }

    fn tell(&mut self, untold: Untold) -> Result<()> {
        let customer = Customer(untold.customer.to_bytes());
        self.admission.note_told(customer, now());
        // A restart neither repeats this refusal nor admits the request.
        let id = JobId(untold.job.to_bytes());
        self.journal.note_refused(id, now())?;
        let feedback = Feedback {
            extra: Some(untold.text),
            encryption: untold.encryption,
            ..Feedback::new(untold.job, Status::Error)
        };
        match feedback.write(&self.keys, now(), &untold.customer) {
            Ok(feedback) => {
                self.relays.publish_own(&feedback, Keep::Now);
                let named = &untold.relays;
                if !named.is_empty() && self.admission.reaches_out(customer, now()) {
                    self.publish_guests(named, &feedback, Keep::Until);
                }
            }
            Err(err) => tracing::warn!(error = %err, "cannot send a refusal"),
        }
        Ok(())
    }
}
