//! Payment for jobs.

#[cfg(all(feature = "cashu", not(target_arch = "wasm32")))]
pub mod cashu;
#[cfg(not(target_arch = "wasm32"))]
pub mod nwc;

use crate::jobs::{Invoice, JobId};
use crate::platform::Boxed;

/// A payment method.
pub trait Payment: Send + Sync {
    /// The price of a job, in thousandths of a satoshi; 0 for free jobs.
    fn price_msat(&self) -> u64;

    /// Makes an invoice. `memo` is for the payer to read.
    fn invoice<'a>(&'a self, amount_msat: u64, memo: &'a str)
        -> Boxed<'a, Result<Invoice, String>>;

    /// Whether an invoice is paid.
    fn is_paid<'a>(&'a self, invoice: &'a Invoice) -> Boxed<'a, Result<bool, String>>;

    /// Whether it makes invoices at all.
    fn makes_invoices(&self) -> bool {
        true
    }

    /// The part that takes tokens of requests, if there is one.
    fn cash(&self) -> Option<&dyn Cash> {
        None
    }
}

/// The tokens of a job that was paid with one.
pub struct Money {
    /// The change.
    pub change: Option<String>,
    /// Everything.
    pub all: Option<String>,
}

/// Payment by tokens that come with requests. Errors go to the customer unless stated otherwise, and quote no token.
pub trait Cash: Send + Sync {
    /// The mints whose tokens are accepted.
    fn mints(&self) -> Vec<String>;

    /// Whether a token claims to be worth the price.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, token: &str) -> Result<(), String>;

    /// Whether a job's token was redeemed, or may have been.
    fn has(&self, job: JobId) -> bool;

    /// Takes a job's token, once: a call that a crash interrupted is continued. It returns when it is certain what has
    /// become of the token.
    fn redeem<'a>(&'a self, job: JobId, token: &'a str) -> Boxed<'a, Result<(), String>>;

    /// The money that is held for a job without an answer.
    ///
    /// # Errors
    /// It cannot be read; this is for the operator.
    fn held(&self, job: JobId) -> Result<Option<Money>, String>;

    /// Keeps the price, as the change went back with the result; or nothing, as everything went back with an error.
    ///
    /// # Errors
    /// It cannot be written; this is for the operator.
    fn settle(&self, job: JobId, is_earned: bool) -> Result<(), String>;

    /// Jobs whose money is held.
    ///
    /// # Errors
    /// It cannot be read; this is for the operator.
    fn unsettled(&self) -> Result<Vec<JobId>, String>;
}

/// Everything for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Free;

impl Payment for Free {
    fn price_msat(&self) -> u64 {
        0
    }

    fn invoice<'a>(&'a self, _: u64, _: &'a str) -> Boxed<'a, Result<Invoice, String>> {
        Box::pin(std::future::ready(Err("jobs are free".to_string())))
    }

    fn is_paid<'a>(&'a self, _: &'a Invoice) -> Boxed<'a, Result<bool, String>> {
        Box::pin(std::future::ready(Ok(true)))
    }
}

/// Invoices of a wallet, where there is one, and tokens.
pub struct WithCash<C> {
    /// Makes invoices.
    pub wallet: Option<Box<dyn Payment>>,
    /// Takes tokens.
    pub cash: C,
    /// The price of a job, in thousandths of a satoshi.
    pub price_msat: u64,
}

impl<C: Cash> Payment for WithCash<C> {
    fn price_msat(&self) -> u64 {
        self.price_msat
    }

    fn invoice<'a>(&'a self, amount: u64, memo: &'a str) -> Boxed<'a, Result<Invoice, String>> {
        match &self.wallet {
            Some(wallet) => wallet.invoice(amount, memo),
            None => Box::pin(std::future::ready(Err("there is no wallet".to_string()))),
        }
    }

    fn is_paid<'a>(&'a self, invoice: &'a Invoice) -> Boxed<'a, Result<bool, String>> {
        match &self.wallet {
            Some(wallet) => wallet.is_paid(invoice),
            None => Box::pin(std::future::ready(Err("there is no wallet".to_string()))),
        }
    }

    fn makes_invoices(&self) -> bool {
        self.wallet.is_some()
    }

    fn cash(&self) -> Option<&dyn Cash> {
        Some(&self.cash)
    }
}
