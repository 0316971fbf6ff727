//! Quantised blocks: products with dense rows, and encoding and decoding of floats.

use super::Table;
use crate::candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use crate::candle_core::{DType, Device, Module, Result, Tensor};

/// The weight formats.
const FORMATS: [(&str, GgmlDType); 10] = [
    ("Q4_0", GgmlDType::Q4_0),
    ("Q4_1", GgmlDType::Q4_1),
    ("Q5_0", GgmlDType::Q5_0),
    ("Q5_1", GgmlDType::Q5_1),
    ("Q8_0", GgmlDType::Q8_0),
    ("Q2K", GgmlDType::Q2K),
    ("Q3K", GgmlDType::Q3K),
    ("Q4K", GgmlDType::Q4K),
    ("Q5K", GgmlDType::Q5K),
    ("Q6K", GgmlDType::Q6K),
];

/// Returns `(n, k)` weights that repeat a few rows: encoding all of them would take longer than the products.
fn weights(rows: &Tensor, n: usize, format: GgmlDType) -> Result<QMatMul> {
    let (few, k) = rows.dims2()?;
    let bytes = QTensor::quantize(rows, format)?.data()?.repeat(n / few);
    let storage = QStorage::from_data(bytes.into(), &Device::Cpu, format)?;
    QMatMul::from_qtensor(QTensor::new(storage, (n, k))?)
}

pub(super) fn products(table: &mut Table) {
    for (name, format) in FORMATS {
        for (what, m, k, n) in [
            ("mat-vec", 1, 2048, 2048),
            ("mat-vec", 1, 4096, 11008),
            ("prompt", 8, 2048, 2048),
            ("prompt", 64, 2048, 2048),
        ] {
            table.prepared(
                format!("quantized/{name} {what} {m}x{k}x{n}"),
                DType::F32,
                [&[m, k], &[64, k]],
                move |[x, rows]| Ok((x, weights(&rows, n, format)?)),
                |(x, w)| w.forward(x),
            );
        }
    }
}

pub(super) fn formats(table: &mut Table) {
    for (name, format) in FORMATS {
        table.prepared(
            format!("quantized/encode {name} 64x2048"),
            DType::F32,
            [&[64, 2048]],
            Ok,
            move |[x]| QTensor::quantize(x, format),
        );
        table.prepared(
            format!("quantized/decode {name} 256x2048"),
            DType::F32,
            [&[256, 2048]],
            move |[x]| QTensor::quantize(&x, format),
            |x| x.dequantize(&Device::Cpu),
        );
    }
}
