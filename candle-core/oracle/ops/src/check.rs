//! Comparison of two outcomes.

use crate::case::{Case, Outcome};
use crate::generate::Gen;
use crate::value::{Tolerance, Value};
use crate::{ours, upstream};
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`; an error and a panic become outcomes. The panic's message is stored and not printed.
pub fn guarded<E: std::fmt::Display>(f: impl FnOnce() -> Result<Vec<Value>, E>) -> Outcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    QUIET.set(false);
    match result {
        Ok(Ok(values)) => Outcome::Done(values),
        // The message without its backtrace, if there is one.
        Ok(Err(err)) => Outcome::Refused(err.to_string().lines().next().unwrap_or_default().into()),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
            Outcome::Panicked(text.unwrap_or_default())
        }
    }
}

/// The requirements of an op family on its cases.
#[derive(Clone, Copy)]
pub struct Rule {
    pub tolerance: fn(&Case) -> Tolerance,
    /// The reason why ours may differ from upstream's outcome in this case; `None` if it may not. Each reason is an intended difference,
    /// listed in `docs/differences.md`.
    pub differs: fn(&Case) -> Option<&'static str>,
}

impl Rule {
    pub const EXACT: Self = Self {
        tolerance: |_| Tolerance::EXACT,
        differs: |_| None,
    };
}

/// Whether numbers were compared, or only that both sides return an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreed {
    Values,
    Refusal,
    /// Upstream panics, or the difference is intended.
    Nothing,
}

/// Fails, with all details, if ours does not behave like upstream.
///
/// * Both succeed: the values agree within the tolerance. If upstream's depend on the memory layout of the inputs, ours are those that it
///   returns for row-major copies.
/// * Upstream returns an error: so does ours. If it only rejects the layout, ours may return an error or upstream's result for row-major
///   copies.
/// * Upstream panics, or rejects a matrix product for its strides or dtype: ours does not panic.
/// * If the family's rule lists a difference: ours does not panic. Upstream is not called; it may never return.
pub fn agree(case: &Case, rule: Rule) -> Result<Agreed, String> {
    let ours = ours::interpret::run(case, false);
    judge(case, rule, &ours, |rows| {
        upstream::interpret::run(case, rows)
    })
}

/// Like [`agree`], for the gradients of the case. Ours may have gradients that upstream lacks.
pub fn gradients_agree(case: &Case, rule: Rule) -> Result<Agreed, String> {
    let ours = ours::interpret::gradients(case, false);
    judge(case, rule, &ours, |rows| {
        match (&ours, upstream::interpret::gradients(case, rows)) {
            (Outcome::Done(_), Outcome::Refused(why)) => Outcome::Panicked(why),
            (_, theirs) => theirs,
        }
    })
}

/// `ask_upstream` receives whether to copy the inputs to row-major layout first.
fn judge(
    case: &Case,
    rule: Rule,
    ours: &Outcome,
    ask_upstream: impl Fn(bool) -> Outcome,
) -> Result<Agreed, String> {
    if (rule.differs)(case).is_some() && !matches!(ours, Outcome::Panicked(_)) {
        return Ok(Agreed::Nothing);
    }
    let tolerance = (rule.tolerance)(case);
    let ask_upstream = |rows| match (ours, ask_upstream(rows)) {
        (Outcome::Done(_), Outcome::Refused(why)) if is_lifted(&why) => Outcome::Panicked(why),
        (_, theirs) => theirs,
    };
    let theirs = ask_upstream(false);
    let result = compare(ours, &theirs, tolerance);
    match (result, ours) {
        (Ok(agreed), _) => Ok(agreed),
        (Err(_), Outcome::Done(_)) => {
            let on_copies = ask_upstream(true);
            compare(ours, &on_copies, tolerance).map_err(|what| {
                format!("{what}\n{case:?}\nours: {ours:?}\nupstream: {theirs:?}\non row-major copies: {on_copies:?}")
            })
        }
        (Err(what), _) => Err(format!(
            "{what}\n{case:?}\nours: {ours:?}\nupstream: {theirs:?}"
        )),
    }
}

/// Whether upstream rejected a matrix product, which convolutions and cumulative sums use: it supports few strides and no BF16 in some of
/// them; ours supports all.
fn is_lifted(refusal: &str) -> bool {
    refusal.contains("MatMulUnexpectedStriding") || refusal.ends_with("for op matmul")
}

/// Compares two outcomes within the tolerance.
pub fn compare(ours: &Outcome, theirs: &Outcome, tolerance: Tolerance) -> Result<Agreed, String> {
    match (ours, theirs) {
        (Outcome::Panicked(_), _) => Err("ours panicked".into()),
        (_, Outcome::Panicked(_)) => Ok(Agreed::Nothing),
        (Outcome::Refused(_), Outcome::Refused(_)) => Ok(Agreed::Refusal),
        (Outcome::Done(_), Outcome::Refused(_)) => Err("upstream refuses this".into()),
        (Outcome::Refused(_), Outcome::Done(_)) => Err("ours refuses this".into()),
        (Outcome::Done(ours), Outcome::Done(theirs)) => {
            if ours.len() != theirs.len() {
                return Err(format!("{} and {} results", ours.len(), theirs.len()));
            }
            for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                if let Some(what) = ours.difference(theirs, tolerance) {
                    return Err(format!("result {i}: {what}"));
                }
            }
            Ok(Agreed::Values)
        }
    }
}

/// The case of a family for a seed and a size.
pub fn case(family: fn(&mut Gen) -> Case, seed: u64, size: usize) -> Case {
    family(&mut Gen::new(seed, size))
}
