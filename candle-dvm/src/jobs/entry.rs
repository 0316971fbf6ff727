//! What is remembered of a job, and the stages that it goes through.
//!
//! ```text
//! received ──> awaiting payment ──> started ──> answered ──> done
//!     └────────────────────────────────┘ ^        each relay acknowledges the answer
//!                                        └── after a restart it starts again: nothing was answered yet
//! ```
//!
//! An answer is signed once and kept before anybody sees it; what is sent again after a restart is that same answer. So a job has
//! one answer, however often the service is killed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The stage of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Admitted.
    Received,
    /// It waits until its invoice is paid.
    AwaitingPayment,
    /// It runs, or ran when the service ended.
    Started,
    /// It has an answer that not every relay has acknowledged.
    Answered,
    /// Nothing is left to do.
    Done,
}

/// An invoice for a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoice {
    /// The invoice itself.
    pub bolt11: String,
    /// The identifier of the invoice for the wallet.
    pub payment_hash: String,
    /// Thousandths of a satoshi.
    pub amount_msat: u64,
    /// Until when it can be paid.
    pub expires: u64,
    /// Whether it was.
    pub paid: bool,
}

/// A job's one answer, as it is sent: a result or an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Its id.
    pub id: String,
    /// The signed event.
    pub body: String,
    /// Whether it is a result, and no error.
    pub is_result: bool,
    /// When it was signed.
    pub signed: u64,
    /// The relays that it still has to reach.
    pub pending: BTreeSet<String>,
    /// Those that have it.
    pub acknowledged: BTreeSet<String>,
}

/// One job in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The request, as it came.
    pub request: String,
    /// The relay on which it was found first.
    pub found_on: String,
    /// The time of its admission.
    pub received: u64,
    /// Its stage.
    pub stage: Stage,
    /// Its invoice, if it costs something.
    pub invoice: Option<Invoice>,
    /// Its answer, once there is one.
    pub answer: Option<Answer>,
}

impl Entry {
    /// A job that was just let in.
    pub fn new(request: String, found_on: String, received: u64) -> Self {
        Self {
            request,
            found_on,
            received,
            stage: Stage::Received,
            invoice: None,
            answer: None,
        }
    }

    /// Ties an invoice to the job. `false` if it has one, or is too far for it.
    pub fn bill(&mut self, invoice: Invoice) -> bool {
        let fits = self.stage == Stage::Received && self.invoice.is_none();
        if fits {
            self.invoice = Some(invoice);
            self.stage = Stage::AwaitingPayment;
        }
        fits
    }

    /// Notes that the invoice was paid.
    pub fn paid(&mut self) -> bool {
        match &mut self.invoice {
            Some(invoice) if self.stage == Stage::AwaitingPayment => {
                invoice.paid = true;
                true
            }
            _ => false,
        }
    }

    /// Notes that the job runs. `false` if it is past that, or waits for a payment.
    pub fn start(&mut self) -> bool {
        let paid = self.invoice.as_ref().is_none_or(|invoice| invoice.paid);
        let fits = match self.stage {
            Stage::Received | Stage::AwaitingPayment | Stage::Started => paid,
            Stage::Answered | Stage::Done => false,
        };
        if fits {
            self.stage = Stage::Started;
        }
        fits
    }

    /// Sets the job's answer. `false` if it already has one or was cancelled: then nothing changes.
    pub fn answer(&mut self, answer: Answer) -> bool {
        let fits = self.answer.is_none() && self.stage != Stage::Done;
        if fits {
            self.stage = if answer.pending.is_empty() {
                Stage::Done
            } else {
                Stage::Answered
            };
            self.answer = Some(answer);
        }
        fits
    }

    /// Notes that a relay has the answer, or with `has` of `false` that it never will.
    pub fn settle(&mut self, relay: &str, has: bool) -> bool {
        let Some(answer) = &mut self.answer else {
            return false;
        };
        let was_pending = answer.pending.remove(relay);
        if was_pending && has {
            answer.acknowledged.insert(relay.to_string());
        }
        if answer.pending.is_empty() {
            self.stage = Stage::Done;
        }
        was_pending
    }

    /// Ends a job that has no answer yet.
    pub fn cancel(&mut self) -> bool {
        let fits = self.answer.is_none() && self.stage != Stage::Done;
        if fits {
            self.stage = Stage::Done;
        }
        fits
    }

    /// Keeps only the fields by which a finished job is recognised.
    pub fn shorten(&mut self) {
        self.request.clear();
        if let Some(answer) = &mut self.answer {
            answer.body.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry::new("{}".to_string(), "ws://a".to_string(), 1)
    }

    fn answer(relays: &[&str]) -> Answer {
        Answer {
            id: "1".to_string(),
            body: "text".to_string(),
            is_result: true,
            signed: 2,
            pending: relays.iter().map(|relay| relay.to_string()).collect(),
            acknowledged: BTreeSet::new(),
        }
    }

    #[test]
    fn the_first_answer_stands() {
        let mut entry = entry();
        assert!(entry.start());
        assert!(entry.start(), "again, after a restart");
        assert!(entry.answer(answer(&["a", "b"])));
        let mut second = answer(&["a"]);
        second.id = "2".to_string();
        assert!(!entry.answer(second));
        assert!(!entry.start() && !entry.cancel());
        assert_eq!(entry.answer.as_ref().unwrap().id, "1");
        assert!(entry.settle("a", true));
        assert!(!entry.settle("a", true), "once");
        assert!(!entry.settle("c", true), "a relay that was not meant");
        assert_eq!(entry.stage, Stage::Answered);
        assert!(entry.settle("b", false));
        assert_eq!(entry.stage, Stage::Done);
        let acknowledged = &entry.answer.unwrap().acknowledged;
        assert_eq!(acknowledged.iter().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn a_cancelled_job_takes_no_answer() {
        let mut entry = entry();
        entry.start();
        assert!(entry.cancel());
        assert!(!entry.answer(answer(&["a"])));
        assert_eq!(entry.stage, Stage::Done);
    }

    #[test]
    fn an_invoice_has_to_be_paid_first() {
        let invoice = Invoice {
            bolt11: "lnbc1".to_string(),
            payment_hash: "00".to_string(),
            amount_msat: 1000,
            expires: 9,
            paid: false,
        };
        let mut entry = entry();
        assert!(!entry.paid(), "there is none");
        assert!(entry.bill(invoice.clone()));
        assert!(!entry.bill(invoice), "one only");
        assert!(!entry.start());
        assert!(entry.paid());
        assert!(entry.start());
    }
}
