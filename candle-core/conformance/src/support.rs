//! The ops that a WebGPU device lacks, as data, and the table of `docs/webgpu-ops.md` generated from it. A CUDA device lacks none.

use std::fmt::Write;

use candle_core::{DType, Device};

use super::cases::CASES;

/// The support of an op for a dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// Supported, like on the CPU.
    Yes,
    /// Not defined: an error on every device.
    NoOp,
    /// Supported on the CPU and on CUDA, an error on WebGPU; with the reason.
    Missing(&'static str),
}

const INTEGERS: &[DType] = &[DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

/// Ops that WebGPU lacks for some dtypes, and the reason.
pub const MISSING: &[(&[&str], &[DType], &str)] = &[(
    &["upsample_bilinear2d"],
    INTEGERS,
    "integers are mixed in f64 on the CPU, which few adapters have; convert to f32",
)];

/// The support of the op with this name for a dtype on WebGPU.
pub fn support(op: &str, dtype: DType) -> Support {
    let found = MISSING
        .iter()
        .find(|(ops, dtypes, _)| ops.contains(&op) && dtypes.contains(&dtype));
    if let Some((_, _, why)) = found {
        return Support::Missing(why);
    }
    let case = CASES.iter().find(|case| case.name == op);
    match case {
        Some(case) if dtype.is_int() && !case.integers => Support::NoOp,
        _ => Support::Yes,
    }
}

/// The support of the op with this name for a dtype on a device: CUDA supports those that WebGPU lacks.
pub fn support_on(device: &Device, op: &str, dtype: DType) -> Support {
    match support(op, dtype) {
        Support::Missing(_) if device.is_cuda() => Support::Yes,
        support => support,
    }
}

/// Every dtype, in the order of the table's columns.
pub const DTYPES: [DType; 10] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
    DType::F64,
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
];

/// The table in Markdown: ops that have the same support share a row.
pub fn table() -> String {
    let mut rows: Vec<(&str, [Support; 10], Vec<&str>)> = vec![];
    for case in CASES {
        let cells = DTYPES.map(|dtype| support(case.name, dtype));
        match rows
            .iter_mut()
            .find(|(family, c, _)| (*family, *c) == (case.family, cells))
        {
            Some((_, _, names)) => names.push(case.name),
            None => rows.push((case.family, cells, vec![case.name])),
        }
    }
    let mut text = String::from("| | ops |");
    for dtype in DTYPES {
        let note = if dtype == DType::F64 { " ¹" } else { "" };
        let _ = write!(text, " {}{note} |", dtype.as_str());
    }
    let _ = write!(text, "\n| --- | --- |{}\n", " :-: |".repeat(DTYPES.len()));
    for (family, cells, names) in rows {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = write!(text, "| {family} | {} |", names.join(", "));
        for cell in cells {
            let mark = match cell {
                Support::Yes => "✓",
                Support::NoOp => "",
                Support::Missing(_) => "✗",
            };
            let _ = write!(text, " {mark} |");
        }
        text.push('\n');
    }
    text.push_str("\n✓ as on the CPU; empty: Candle has no such op; ✗ an error that names op, dtype and adapter:\n\n");
    for (ops, _, why) in MISSING {
        let ops: Vec<String> = ops.iter().map(|op| format!("`{op}`")).collect();
        let _ = writeln!(text, "- {}: {why}.", ops.join(", "));
    }
    text.push_str("\n¹ where the adapter has SHADER_F64 and SHADER_INT64; elsewhere, and in browsers, an error.\n");
    text
}
