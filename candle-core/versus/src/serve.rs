//! The program of one side: prepares and runs benchmark cases, with one line per request and per answer.
//!
//! It begins with the names of its cases, one per line, and an empty line.
//!
//! | request | answer |
//! | --- | --- |
//! | `make CASE` | `ok`, or why not |
//! | `run N` | the nanoseconds of `N` runs, or why not |

use std::io::{stdin, stdout, BufRead, Write};
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::time::Instant;

use crate::cases::{cases, Work};

/// Serves requests until the input ends.
///
/// # Errors
/// Errors of standard input and output.
pub fn serve() -> std::io::Result<()> {
    // A case that this side cannot run panics, and the answer contains the reason.
    set_hook(Box::new(|_| ()));
    let cases = cases();
    let mut out = stdout().lock();
    for (name, _) in &cases {
        writeln!(out, "{name}")?;
    }
    writeln!(out)?;
    out.flush()?;
    let mut work: Option<Work> = None;
    for line in stdin().lock().lines() {
        let line = line?;
        let (request, what) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match request {
            "make" => {
                // Only one case's inputs are in memory at a time.
                drop(work.take());
                match cases.iter().find(|(name, _)| name == what) {
                    Some((_, make)) => unless_panicked(|| {
                        let made = make();
                        made();
                        work = Some(made);
                        "ok".to_string()
                    }),
                    None => format!("there is no case {what:?}"),
                }
            }
            "run" => match (&work, what.parse::<u64>()) {
                (Some(work), Ok(runs)) => unless_panicked(|| {
                    let start = Instant::now();
                    (0..runs).for_each(|_| work());
                    start.elapsed().as_nanos().to_string()
                }),
                _ => format!("{line:?} without a case or a number"),
            },
            _ => format!("no such request: {line:?}"),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// Returns the answer of `f`, or the first line of its panic message.
fn unless_panicked(f: impl FnOnce() -> String) -> String {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or(cause.downcast_ref::<&str>().copied());
        let line = text.and_then(|text| text.lines().next());
        line.unwrap_or("it panicked").to_string()
    })
}
