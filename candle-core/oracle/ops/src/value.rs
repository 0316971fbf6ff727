//! Elements and results in types that are independent of both sides.

use float8::F8E4M3;
use half::{bf16, f16};

/// The dtypes that both sides compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    U8,
    U32,
    I16,
    I32,
    I64,
    BF16,
    F16,
    F32,
    F64,
    F8E4M3,
}

impl Ty {
    pub const ALL: [Ty; 10] = [
        Ty::U8,
        Ty::U32,
        Ty::I16,
        Ty::I32,
        Ty::I64,
        Ty::BF16,
        Ty::F16,
        Ty::F32,
        Ty::F64,
        Ty::F8E4M3,
    ];
    pub const INTS: [Ty; 5] = [Ty::U8, Ty::U32, Ty::I16, Ty::I32, Ty::I64];
    pub const FLOATS: [Ty; 4] = [Ty::BF16, Ty::F16, Ty::F32, Ty::F64];

    pub fn is_float(self) -> bool {
        !Self::INTS.contains(&self)
    }

    /// The distance between 1 and the next larger number; 0 for integers.
    pub fn epsilon(self) -> f64 {
        match self {
            Ty::F8E4M3 => 0.125,
            Ty::BF16 => 1. / 128.,
            Ty::F16 => 1. / 1024.,
            Ty::F32 => f64::from(f32::EPSILON),
            Ty::F64 => f64::EPSILON,
            _ => 0.,
        }
    }
}

/// Elements of one dtype, in row-major order.
#[derive(Clone, Debug)]
pub enum Elements {
    U8(Vec<u8>),
    U32(Vec<u32>),
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    F8E4M3(Vec<F8E4M3>),
}

impl Elements {
    /// Converts numbers to elements of a dtype. Integers are truncated; `u8` and `u32` take the absolute value.
    pub fn new(ty: Ty, values: &[f64]) -> Self {
        fn map<T>(values: &[f64], f: impl Fn(f64) -> T) -> Vec<T> {
            values.iter().map(|v| f(*v)).collect()
        }
        match ty {
            Ty::U8 => Self::U8(map(values, |v| v.abs() as u8)),
            Ty::U32 => Self::U32(map(values, |v| v.abs() as u32)),
            Ty::I16 => Self::I16(map(values, |v| v as i16)),
            Ty::I32 => Self::I32(map(values, |v| v as i32)),
            Ty::I64 => Self::I64(map(values, |v| v as i64)),
            Ty::BF16 => Self::BF16(map(values, bf16::from_f64)),
            Ty::F16 => Self::F16(map(values, f16::from_f64)),
            Ty::F32 => Self::F32(map(values, |v| v as f32)),
            Ty::F64 => Self::F64(values.to_vec()),
            Ty::F8E4M3 => Self::F8E4M3(map(values, F8E4M3::from_f64)),
        }
    }

    pub fn ty(&self) -> Ty {
        match self {
            Self::U8(_) => Ty::U8,
            Self::U32(_) => Ty::U32,
            Self::I16(_) => Ty::I16,
            Self::I32(_) => Ty::I32,
            Self::I64(_) => Ty::I64,
            Self::BF16(_) => Ty::BF16,
            Self::F16(_) => Ty::F16,
            Self::F32(_) => Ty::F32,
            Self::F64(_) => Ty::F64,
            Self::F8E4M3(_) => Ty::F8E4M3,
        }
    }

    /// Whether all are finite and below 1,000 in magnitude.
    pub fn is_tame(&self) -> bool {
        match self.numbers() {
            Numbers::Int(v) => v.iter().all(|v| v.unsigned_abs() < 1000),
            Numbers::Float(v) => v.iter().all(|v| v.abs() < 1000.),
        }
    }

    /// Whether one of them is this number.
    pub fn has(&self, number: f64) -> bool {
        match self.numbers() {
            Numbers::Int(v) => v.iter().any(|v| *v as f64 == number),
            Numbers::Float(v) => v.contains(&number),
        }
    }

    /// Whether two of them are the same number.
    pub fn repeat(&self) -> bool {
        let mut sorted: Vec<f64> = match self.numbers() {
            Numbers::Int(v) => v.iter().map(|v| *v as f64).collect(),
            Numbers::Float(v) => v,
        };
        sorted.sort_by(f64::total_cmp);
        sorted.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// The elements as bytes of a file, little-endian.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::U8(v) => v.clone(),
            Self::U32(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::I16(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::I32(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::I64(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::BF16(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F16(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F32(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F64(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F8E4M3(v) => v.iter().map(|v| v.to_bits()).collect(),
        }
    }

    /// All elements exactly, as `f64` or as `i64`.
    fn numbers(&self) -> Numbers {
        match self {
            Self::U8(v) => Numbers::Int(v.iter().map(|v| i64::from(*v)).collect()),
            Self::U32(v) => Numbers::Int(v.iter().map(|v| i64::from(*v)).collect()),
            Self::I16(v) => Numbers::Int(v.iter().map(|v| i64::from(*v)).collect()),
            Self::I32(v) => Numbers::Int(v.iter().map(|v| i64::from(*v)).collect()),
            Self::I64(v) => Numbers::Int(v.clone()),
            Self::BF16(v) => Numbers::Float(v.iter().map(|v| v.to_f64()).collect()),
            Self::F16(v) => Numbers::Float(v.iter().map(|v| v.to_f64()).collect()),
            Self::F32(v) => Numbers::Float(v.iter().map(|v| f64::from(*v)).collect()),
            Self::F64(v) => Numbers::Float(v.clone()),
            Self::F8E4M3(v) => Numbers::Float(v.iter().map(|v| v.to_f64()).collect()),
        }
    }

    /// The first index where the two differ by more than the tolerance. NaN equals NaN, 0 equals -0.
    fn difference(&self, other: &Self, tolerance: Tolerance) -> Option<usize> {
        match (self.numbers(), other.numbers()) {
            (Numbers::Int(a), Numbers::Int(b)) => (0..a.len()).find(|i| a[*i] != b[*i]),
            (Numbers::Float(a), Numbers::Float(b)) => {
                let epsilon = self.ty().epsilon();
                (0..a.len()).find(|i| !tolerance.holds(a[*i], b[*i], epsilon))
            }
            _ => Some(0),
        }
    }
}

enum Numbers {
    Int(Vec<i64>),
    Float(Vec<f64>),
}

/// Maximum difference of two floats, in units of their dtype's epsilon. Integers are always compared exactly.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// In units of epsilon times the larger of the two magnitudes.
    pub relative: f64,
    /// In units of epsilon: for sums whose terms cancel.
    pub absolute: f64,
}

impl Tolerance {
    /// The same number.
    pub const EXACT: Self = Self::new(0., 0.);

    pub const fn new(relative: f64, absolute: f64) -> Self {
        Self { relative, absolute }
    }

    fn holds(self, a: f64, b: f64, epsilon: f64) -> bool {
        let bound = epsilon * (self.relative * a.abs().max(b.abs()) + self.absolute);
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound
    }
}

/// One result of a case.
#[derive(Clone, Debug)]
pub enum Value {
    Tensor { dims: Vec<usize>, data: Elements },
    Text(String),
    Bytes(Vec<u8>),
}

impl Value {
    /// A description of the difference.
    pub fn difference(&self, other: &Self, tolerance: Tolerance) -> Option<String> {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => (a != b).then(|| "the texts differ".to_string()),
            (Self::Bytes(a), Self::Bytes(b)) if a == b => None,
            (Self::Bytes(a), Self::Bytes(b)) => {
                let at = a.iter().zip(b).position(|(a, b)| a != b);
                Some(format!(
                    "{} and {} bytes, differ at {at:?}",
                    a.len(),
                    b.len()
                ))
            }
            (Self::Tensor { dims: da, data: a }, Self::Tensor { dims: db, data: b }) => {
                if da != db {
                    return Some(format!("shapes {da:?} and {db:?}"));
                }
                if a.ty() != b.ty() {
                    return Some(format!("dtypes {:?} and {:?}", a.ty(), b.ty()));
                }
                let at = a.difference(b, tolerance)?;
                Some(format!("element {at} (row-major) differs, {tolerance:?}"))
            }
            _ => Some("different kinds of result".to_string()),
        }
    }
}
