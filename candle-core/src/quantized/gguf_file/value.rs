//! Metadata values.

use crate::{Error, Result};

/// The kind of a [`Value`], with its number in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// 8 bits, unsigned; number 0.
    U8,
    /// 8 bits, signed; number 1.
    I8,
    /// 16 bits, unsigned; number 2.
    U16,
    /// 16 bits, signed; number 3.
    I16,
    /// 32 bits, unsigned; number 4.
    U32,
    /// 32 bits, signed; number 5.
    I32,
    /// 64 bits, unsigned; number 10.
    U64,
    /// 64 bits, signed; number 11.
    I64,
    /// A float of 32 bits; number 6.
    F32,
    /// A float of 64 bits; number 12.
    F64,
    /// A byte that is 0 or 1; number 7.
    Bool,
    /// UTF-8, preceded by its length; number 8.
    String,
    /// Values of one kind, preceded by their kind and count; number 9.
    Array,
}

impl ValueType {
    const NUMBERS: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub(super) fn from_u32(number: u32) -> Result<Self> {
        let found = Self::NUMBERS.get(number as usize);
        found.copied().ok_or_else(|| {
            Error::Msg(format!("unknown value type {number}; expected 0 to 12")).bt()
        })
    }

    pub(super) fn to_u32(self) -> u32 {
        let position = Self::NUMBERS.iter().position(|ty| *ty == self);
        position.map_or(u32::MAX, |position| position as u32)
    }
}

/// A value of the metadata.
#[derive(Debug, Clone)]
pub enum Value {
    /// 8 bits, unsigned.
    U8(u8),
    /// 8 bits, signed.
    I8(i8),
    /// 16 bits, unsigned.
    U16(u16),
    /// 16 bits, signed.
    I16(i16),
    /// 32 bits, unsigned.
    U32(u32),
    /// 32 bits, signed.
    I32(i32),
    /// 64 bits, unsigned.
    U64(u64),
    /// 64 bits, signed.
    I64(i64),
    /// A float of 32 bits.
    F32(f32),
    /// A float of 64 bits.
    F64(f64),
    /// True or false.
    Bool(bool),
    /// Text.
    String(String),
    /// Values of one kind.
    Array(Vec<Value>),
}

/// Getters of one variant.
macro_rules! exact {
    ($($(#[$doc:meta])* $name:ident $variant:ident |$v:ident| -> $ty:ty { $out:expr };)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// If the value is of another kind.
            pub fn $name(&self) -> Result<$ty> {
                match self {
                    Self::$variant($v) => Ok($out),
                    other => Err(other.is_not(ValueType::$variant)),
                }
            }
        )+
    };
}

/// Getters of any integer that fits.
macro_rules! integers {
    ($($name:ident $variant:ident $ty:ty;)+) => {
        $(
            #[doc = concat!("The value as a ", stringify!($ty), ", from any kind of integer (or a bool) whose value fits.")]
            ///
            /// # Errors
            /// If the value is not an integer or does not fit.
            pub fn $name(&self) -> Result<$ty> {
                self.integer()
                    .and_then(|value| <$ty>::try_from(value).ok())
                    .ok_or_else(|| self.is_not(ValueType::$variant))
            }
        )+
    };
}

impl Value {
    /// The kind of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F32(_) => ValueType::F32,
            Self::F64(_) => ValueType::F64,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
        }
    }

    fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            Self::Bool(v) => Some(v.into()),
            _ => None,
        }
    }

    fn is_not(&self, wanted: ValueType) -> Error {
        let found = match self {
            Self::Array(values) => format!("an array of {}", values.len()),
            Self::String(text) => format!("a string of {} bytes", text.len()),
            other => format!("{other:?}"),
        };
        Error::Msg(format!("expected {wanted:?}, found {found}")).bt()
    }

    integers! {
        to_u8 U8 u8;
        to_i8 I8 i8;
        to_u16 U16 u16;
        to_i16 I16 i16;
        to_u32 U32 u32;
        to_i32 I32 i32;
        to_u64 U64 u64;
        to_i64 I64 i64;
    }

    exact! {
        /// The value as an f32.
        to_f32 F32 |v| -> f32 { *v };
        /// The value as a bool.
        to_bool Bool |v| -> bool { *v };
        /// The text.
        to_string String |v| -> &String { v };
        /// The values of an array.
        to_vec Array |v| -> &Vec<Value> { v };
    }

    /// The value as an f64, from a float of either size.
    ///
    /// # Errors
    /// When the value is of another kind.
    pub fn to_f64(&self) -> Result<f64> {
        match self {
            Self::F64(v) => Ok(*v),
            Self::F32(v) => Ok((*v).into()),
            other => Err(other.is_not(ValueType::F64)),
        }
    }
}
