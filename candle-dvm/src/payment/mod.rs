//! How a job is paid for.

#[cfg(not(target_arch = "wasm32"))]
pub mod nwc;

use crate::jobs::Invoice;
use crate::platform::Boxed;

/// A way to be paid.
pub trait Payment: Send + Sync {
    /// What a job costs, in thousandths of a satoshi; 0 means that it is not asked to be paid.
    fn price_msat(&self) -> u64;

    /// Makes an invoice. `memo` is for the payer to read.
    fn invoice<'a>(&'a self, amount_msat: u64, memo: &'a str)
        -> Boxed<'a, Result<Invoice, String>>;

    /// Whether an invoice is paid.
    fn is_paid<'a>(&'a self, invoice: &'a Invoice) -> Boxed<'a, Result<bool, String>>;
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
