//! What a guest asked of the interface.

use std::time::Duration;

/// A function of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    GetDeviceInfo,
    BufferCreate,
    BufferWrite,
    BufferRead,
    BufferCopy,
    BufferDestroy,
    Sync,
    BootstrapSample,
    FindSplit,
    Average,
    Matmul,
    Elementwise,
    Reduce,
    BatchPredict,
}

/// In the order of [`Function`].
const NAMES: [&str; 14] = [
    "get-device-info",
    "buffer-create",
    "buffer-write",
    "buffer-read",
    "buffer-copy",
    "buffer-destroy",
    "sync",
    "kernel-bootstrap-sample",
    "kernel-find-split",
    "kernel-average",
    "kernel-matmul",
    "kernel-elementwise",
    "kernel-reduce",
    "kernel-batch-predict",
];

/// The calls of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Number of calls.
    pub count: u64,
    /// Number of calls that returned a `gpu-error`.
    pub errors: u64,
    /// Bytes written, read, copied or created by those that did not.
    pub bytes: u64,
    /// Time from the guest's call to the answer.
    pub time: Duration,
}

/// The calls of a guest, by function. A call that the guest did not see the end of is not counted.
#[derive(Clone, Debug, Default)]
pub struct Stats([Calls; NAMES.len()]);

impl Stats {
    /// Each function's name and calls, in the order of the interface.
    pub fn functions(&self) -> impl Iterator<Item = (&'static str, Calls)> + '_ {
        NAMES.into_iter().zip(self.0)
    }

    /// The calls of the function with this name; none if there is none.
    pub fn function(&self, name: &str) -> Calls {
        self.functions()
            .find_map(|(known, calls)| (known == name).then_some(calls))
            .unwrap_or_default()
    }

    /// All functions together.
    pub fn total(&self) -> Calls {
        let add = |sum: Calls, calls: &Calls| Calls {
            count: sum.count + calls.count,
            errors: sum.errors + calls.errors,
            bytes: sum.bytes.saturating_add(calls.bytes),
            time: sum.time + calls.time,
        };
        self.0.iter().fold(Calls::default(), add)
    }

    /// Number of waits for the device: the guest's calls of `buffer-read` and `sync`.
    pub fn waits(&self) -> u64 {
        self.of(Function::BufferRead).count + self.of(Function::Sync).count
    }

    /// Time in those waits.
    pub fn waited(&self) -> Duration {
        self.of(Function::BufferRead).time + self.of(Function::Sync).time
    }

    fn of(&self, function: Function) -> Calls {
        self.0[function as usize]
    }

    pub(crate) fn record(&mut self, function: Function, time: Duration, bytes: Option<u64>) {
        let calls = &mut self.0[function as usize];
        calls.count += 1;
        calls.time += time;
        match bytes {
            Some(bytes) => calls.bytes = calls.bytes.saturating_add(bytes),
            None => calls.errors += 1,
        }
    }

    /// A table: a line for each function that was called, and the sum.
    pub fn text(&self) -> String {
        let row = |name: &str, calls: Calls| {
            let time = humantime::format_duration(micros(calls.time)).to_string();
            let bytes = bytesize::ByteSize(calls.bytes).display().iec().to_string();
            format!(
                "{name:<24} {:>10} {:>8} {bytes:>12}  {time}\n",
                calls.count, calls.errors
            )
        };
        let mut text = format!(
            "{:<24} {:>10} {:>8} {:>12}  {}\n",
            "function", "calls", "errors", "bytes", "time"
        );
        for (name, calls) in self.functions().filter(|(_, calls)| calls.count > 0) {
            text += &row(name, calls);
        }
        text += &row("all", self.total());
        let waited = humantime::format_duration(micros(self.waited()));
        text += &format!("waits for the device: {}, {waited}\n", self.waits());
        text
    }
}

/// Nanoseconds would only be noise.
fn micros(time: Duration) -> Duration {
    Duration::from_micros(time.as_micros().try_into().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_table() {
        let mut stats = Stats::default();
        stats.record(Function::BatchPredict, Duration::from_nanos(1_500), Some(0));
        stats.record(Function::BufferRead, Duration::from_millis(2), Some(2048));
        stats.record(Function::BufferRead, Duration::from_millis(1), None);
        stats.record(Function::Sync, Duration::from_millis(3), Some(0));
        assert_eq!(stats.function("kernel-batch-predict").count, 1);
        assert_eq!(stats.function("buffer-read").errors, 1);
        assert_eq!(stats.waits(), 3);
        assert_eq!(stats.waited(), Duration::from_millis(6));
        assert_eq!(stats.total().count, 4);
        assert_eq!(stats.total().bytes, 2048);
        let text = stats.text();
        assert!(text.contains("kernel-batch-predict"), "{text}");
        assert!(text.contains("2.0 KiB"), "{text}");
        assert!(!text.contains("kernel-matmul"), "{text}");
    }
}
