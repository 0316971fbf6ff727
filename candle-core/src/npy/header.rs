//! The header of an npy file: a Python dictionary in text, padded with spaces.

use std::io::{Read, Write};

use crate::bounded_read::{read_array, read_bytes, shown};
use crate::{DType, Error, Result, Shape};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Data begins at a multiple of this, in bytes.
const ALIGNMENT: usize = 64;

/// Maximum length of a header, in bytes. The header of a numeric array has about 100 bytes; only lists of fields get long.
const MAX_LEN: usize = 1 << 20;

/// Dtype, byte order and shape in a header.
#[derive(Debug, PartialEq)]
pub(super) struct Header {
    pub(super) dtype: DType,
    /// Whether numbers are big-endian.
    pub(super) big_endian: bool,
    /// Whether the array is in column-major order.
    pub(super) fortran_order: bool,
    pub(super) shape: Shape,
}

/// An error of this format.
pub(super) fn npy_error(message: impl Into<String>) -> Error {
    Error::Npy(message.into()).bt()
}

impl Header {
    /// Reads magic, version and header; the data follows.
    pub(super) fn read<R: Read>(reader: &mut R) -> Result<Self> {
        let part =
            |part: &'static str| move |message: String| npy_error(format!("{part}: {message}"));
        let magic: [u8; 6] = read_array(reader).map_err(part("magic"))?;
        if &magic != MAGIC {
            return Err(npy_error(format!(
                "magic: expected \\x93NUMPY, found {}; not an npy file",
                magic.escape_ascii()
            )));
        }
        let [major, minor] = read_array(reader).map_err(part("version"))?;
        let len = match major {
            1 => read_array(reader).map(u16::from_le_bytes).map(usize::from),
            2 | 3 => read_array(reader)
                .map(u32::from_le_bytes)
                .map(|len| len as usize),
            _ => {
                return Err(npy_error(format!(
                    "version: {major}.{minor} is not supported; expected 1, 2 or 3"
                )))
            }
        };
        let len = len.map_err(part("header length"))?;
        if len > MAX_LEN {
            return Err(npy_error(format!(
                "header length: {len} bytes; the maximum is {MAX_LEN}"
            )));
        }
        let text = read_bytes(reader, len, 0).map_err(part("header"))?;
        // Versions 1 and 2 are Latin-1, but the keys and values parsed here are ASCII in all versions.
        Self::parse(&String::from_utf8_lossy(&text)).map_err(|message| {
            npy_error(format!("header: {message} in `{}`", shown(text_of(&text))))
        })
    }

    /// Reads the dictionary.
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut rest = Literal(text.trim_end_matches('\0'));
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        rest.expect("{")?;
        while !rest.eat("}") {
            let key = rest.string()?;
            rest.expect(":")?;
            match key {
                "descr" => descr = Some(rest.descr()?),
                "fortran_order" => fortran_order = Some(rest.bool()?),
                "shape" => shape = Some(rest.sizes()?),
                _ => return Err(format!("unknown key `{}`", shown(key))),
            }
            if !rest.eat(",") {
                rest.expect("}")?;
                break;
            }
        }
        if !rest.0.trim().is_empty() {
            return Err(format!("unexpected `{}`", shown(rest.0.trim())));
        }
        let missing = |key: &str| format!("key `{key}` is missing");
        let (dtype, big_endian) = descr.ok_or_else(|| missing("descr"))?;
        Ok(Self {
            dtype,
            big_endian,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: Shape::from(shape.ok_or_else(|| missing("shape"))?),
        })
    }

    /// Writes magic, version 1.0 (2.0 if the header is too long for it) and header.
    pub(super) fn write<W: Write>(dtype: DType, shape: &Shape, writer: &mut W) -> Result<()> {
        let sizes: String = shape
            .dims()
            .iter()
            .map(|size| format!("{size}, "))
            .collect();
        // Python's tuples: `(3,)`, but `(2, 3)`.
        let sizes = match shape.rank() {
            1 => sizes.trim_end(),
            _ => sizes.trim_end_matches(", "),
        };
        let descr = descr_of(dtype)?;
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
        let is_long = text.len() + ALIGNMENT > usize::from(u16::MAX);
        let before = MAGIC.len() + 2 + if is_long { 4 } else { 2 };
        // A line feed ends the header.
        let end = (before + text.len() + 1).next_multiple_of(ALIGNMENT);
        let len = end - before;
        writer.write_all(MAGIC)?;
        if is_long {
            writer.write_all(&[2, 0])?;
            writer.write_all(&u32::try_from(len)?.to_le_bytes())?;
        } else {
            writer.write_all(&[1, 0])?;
            writer.write_all(&u16::try_from(len)?.to_le_bytes())?;
        }
        // No width in the format string: widths are limited to 65,535.
        let padding = " ".repeat(len - 1 - text.len());
        writeln!(writer, "{text}{padding}")?;
        Ok(())
    }
}

fn text_of(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.trim_end(),
        Err(err) => std::str::from_utf8(&bytes[..err.valid_up_to()]).unwrap_or_default(),
    }
}

/// NumPy's name of a dtype.
fn descr_of(dtype: DType) -> Result<&'static str> {
    Ok(match dtype {
        DType::U8 => "|u1",
        DType::U32 => "<u4",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        other => {
            return Err(npy_error(format!(
                "NumPy has no dtype {}; convert the tensor first, say with to_dtype(DType::F32), or save it as safetensors",
                other.as_str()
            )))
        }
    })
}

/// The unparsed rest of the text of Python literals.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn eat(&mut self, token: &str) -> bool {
        match self.0.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> std::result::Result<(), String> {
        if self.eat(token) {
            return Ok(());
        }
        Err(format!(
            "expected `{token}` before `{}`",
            shown(self.0.trim_start())
        ))
    }

    /// The text up to `end`; skips `end` as well.
    fn until(&mut self, end: char) -> std::result::Result<&'a str, String> {
        let (text, rest) = self
            .0
            .split_once(end)
            .ok_or_else(|| format!("expected `{end}` after `{}`", shown(self.0)))?;
        self.0 = rest;
        Ok(text)
    }

    fn string(&mut self) -> std::result::Result<&'a str, String> {
        if self.eat("\"") {
            return self.until('"');
        }
        self.expect("'")?;
        self.until('\'')
    }

    fn bool(&mut self) -> std::result::Result<bool, String> {
        if self.eat("True") {
            return Ok(true);
        }
        self.expect("False").map_err(|_| {
            format!(
                "expected True or False before `{}`",
                shown(self.0.trim_start())
            )
        })?;
        Ok(false)
    }

    /// `()`, `(3,)`, `(2, 3)`.
    fn sizes(&mut self) -> std::result::Result<Vec<usize>, String> {
        self.expect("(")?;
        let inner = self.until(')')?;
        let inner = inner.trim();
        if inner.is_empty() {
            return Ok(Vec::new());
        }
        let sizes = inner.strip_suffix(',').unwrap_or(inner).split(',');
        let size = |size: &str| {
            let size = size.trim();
            // Python 2 wrote `3L`.
            size.strip_suffix('L')
                .unwrap_or(size)
                .parse()
                .map_err(|err| format!("shape: size `{}`: {err}", shown(size)))
        };
        sizes.map(size).collect()
    }

    /// A dtype and whether it is big-endian: `'<f4'`, `'>i8'`, `'|b1'`.
    fn descr(&mut self) -> std::result::Result<(DType, bool), String> {
        if self.eat("[") {
            return Err("descr: arrays of records are not supported; save each field".to_string());
        }
        let descr = self.string()?;
        let (big_endian, code) = match descr.split_at_checked(1) {
            Some((">" | "!", code)) => (true, code),
            Some(("<" | "|" | "=", code)) => (false, code),
            _ => (false, descr),
        };
        // Both forms that NumPy accepts: kind and size, or the one-letter code.
        let dtype = match code {
            "b1" | "?" | "u1" | "B" => DType::U8,
            "u4" | "I" => DType::U32,
            "i2" | "h" => DType::I16,
            "i4" | "i" => DType::I32,
            "i8" | "q" => DType::I64,
            "f2" | "e" => DType::F16,
            "f4" | "f" => DType::F32,
            "f8" | "d" => DType::F64,
            _ => {
                return Err(format!(
                    "descr: dtype `{}` is not supported; save it as one of b1, u1, u4, i2, i4, i8, f2, f4, f8",
                    shown(descr)
                ))
            }
        };
        Ok((dtype, big_endian))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_as_numpy_writes_them() {
        let parse = |text: &str| Header::parse(text).unwrap();
        let header = parse("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n");
        let expected = Header {
            dtype: DType::F32,
            big_endian: false,
            fortran_order: false,
            shape: Shape::from((2, 3)),
        };
        assert_eq!(header, expected);
        let header = parse("{\"shape\":(7L,),\"fortran_order\":True,\"descr\":\">i8\"}");
        assert_eq!(header.shape.dims(), [7]);
        assert!(header.big_endian && header.fortran_order);
        let scalar = parse("{'descr': '|b1', 'fortran_order': False, 'shape': ()}");
        assert_eq!((scalar.dtype, scalar.shape.rank()), (DType::U8, 0));
    }

    #[test]
    fn written_headers_are_aligned_and_read_back() -> Result<()> {
        for dims in [vec![], vec![3], vec![2, 0, 5], vec![1; 30_000]] {
            let shape = Shape::from(dims);
            let mut bytes = vec![];
            Header::write(DType::I16, &shape, &mut bytes)?;
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(bytes.last(), Some(&b'\n'));
            assert_eq!(Header::read(&mut bytes.as_slice())?.shape, shape);
        }
        Ok(())
    }
}
