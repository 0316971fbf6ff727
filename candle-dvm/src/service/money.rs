//! What jobs cost: invoices and tokens, what is paid, and what goes back.

use super::actor::{Bill, Place, Service};
use super::inbox::event_id;
use crate::jobs::{Entry, Invoice, JobId, Stage};
use crate::nip90::{Feedback, JobRequest, Status};
use crate::{Error, Result};

/// The error for customers who cancelled their job and get their money back.
pub(super) const CANCELLED: &str = "cancelled; the token with this answer is what you paid";

impl Service {
    /// Whether a job can be paid by the method of its request.
    pub(super) fn pays(&self, request: &JobRequest, price: u64) -> std::result::Result<(), String> {
        match (&request.cashu, self.payment.cash()) {
            (Some(token), Some(cash)) => cash.check(token),
            (Some(_), None) => Err("this service takes no Cashu tokens".to_string()),
            (None, Some(cash)) if !self.payment.makes_invoices() => Err(format!(
                "a job costs {price} msat: send a Cashu token of {} with the encrypted request",
                cash.mints().join(" or ")
            )),
            (None, _) => Ok(()),
        }
    }

    pub(super) fn billed(&mut self, id: JobId, invoice: Invoice) -> Result<()> {
        let kept = self
            .journal
            .change(id, &mut |entry| entry.bill(invoice.clone()))?;
        if kept.is_some() {
            if let Some(live) = self.live.get_mut(&id) {
                live.bill = Bill::Open;
            }
            self.ask_payment(id, invoice);
        }
        Ok(())
    }

    pub(super) fn ask_payment(&mut self, id: JobId, invoice: Invoice) {
        let feedback = Feedback {
            amount_msat: Some(invoice.amount_msat),
            invoice: Some(invoice.bolt11),
            ..Feedback::new(event_id(id), Status::PaymentRequired)
        };
        self.feedback(id, feedback);
    }

    pub(super) fn processing(&mut self, id: JobId) {
        self.feedback(id, Feedback::new(event_id(id), Status::Processing));
    }

    pub(super) fn paid(&mut self, id: JobId) -> Result<()> {
        if self.journal.change(id, &mut Entry::paid)?.is_some() {
            tracing::info!(job = %id, "paid");
            self.keep(id);
            self.processing(id);
        }
        Ok(())
    }

    /// Protects a job from losing its slot to another.
    pub(super) fn keep(&mut self, id: JobId) {
        self.waiting.leave(id);
        if let Some(live) = self.live.get_mut(&id) {
            live.bill = Bill::Paid;
            live.place = Place::Queue;
        }
    }

    /// The price of a job with an answer becomes ours, or went back with the answer.
    pub(super) fn settle_money(&self, id: JobId, is_earned: bool) -> Result<()> {
        let cash = self.payment.cash();
        let settled = cash.map_or(Ok(()), |cash| cash.settle(id, is_earned));
        settled.map_err(|err| Error::service(format!("the money of job {id}: {err}")))
    }

    /// Does that for jobs that were answered right before the service ended.
    pub(super) fn settle_answered(&self) -> Result<()> {
        let Some(cash) = self.payment.cash() else {
            return Ok(());
        };
        for id in cash.unsettled().map_err(Error::service)? {
            match self.journal.get(id)? {
                Some(Entry {
                    answer: Some(answer),
                    ..
                }) => self.settle_money(id, answer.is_result)?,
                Some(entry) if entry.stage == Stage::Done => self.settle_money(id, true)?,
                Some(_) => {}
                None => {
                    tracing::warn!(job = %id, "money is held for a job that is not in the journal")
                }
            }
        }
        Ok(())
    }
}
