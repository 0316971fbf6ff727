//! Reading untrusted files: the length that a file claims never decides how much memory is allocated.
//!
//! A buffer grows as bytes arrive. It is allocated in advance only up to the known length of the file.

use std::io::Read;

/// The error is a text, which becomes part of an error of the file format.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Reads exactly `len` bytes. `known` of them are certain to exist, because the file is that long.
///
/// # Errors
/// When there are fewer bytes; the error says how many.
pub(crate) fn read_bytes<R: Read>(reader: &mut R, len: usize, known: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(len.min(known)).is_err() {
        return Err(format!("cannot allocate {} bytes", len.min(known)));
    }
    let read = reader.take(len as u64).read_to_end(&mut bytes);
    read.map_err(|err| err.to_string())?;
    if bytes.len() < len {
        return Err(format!(
            "expected {len} bytes, but the data ends after {}",
            bytes.len()
        ));
    }
    Ok(bytes)
}

/// Reads an array of bytes, such as a number's.
///
/// # Errors
/// When there are fewer bytes.
pub(crate) fn read_array<R: Read, const N: usize>(reader: &mut R) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match reader.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(err) if err.kind() == std::io::ErrorKind::UnexpectedEof => {
            Err(format!("expected {N} bytes, but the data ends earlier"))
        }
        Err(err) => Err(err.to_string()),
    }
}

/// Converts elements of `size` bytes from big-endian to little-endian, in place.
pub(crate) fn reverse_elements(bytes: &mut [u8], size: usize) {
    if size > 1 {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}

/// Maximum number of characters of a file's text that an error quotes.
const SHOWN: usize = 80;

/// The text for an error: truncated, with unprintable characters escaped.
pub(crate) fn shown(text: &str) -> String {
    let mut start: String = text.chars().take(SHOWN).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_length_takes_no_memory() {
        let err = read_bytes(&mut [1u8, 2, 3].as_slice(), usize::MAX / 2, 3).unwrap_err();
        assert!(err.contains("ends after 3"), "{err}");
        let read = read_bytes(&mut [1u8, 2, 3].as_slice(), 2, usize::MAX).unwrap();
        assert_eq!(read, [1, 2]);
        let none = read_bytes(&mut [].as_slice(), usize::MAX, usize::MAX).unwrap_err();
        assert!(none.contains("cannot allocate"), "{none}");
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(shown("a\nb"), "a\\nb");
        assert!(shown(&"ä".repeat(10_000)).chars().count() <= SHOWN + 1);
    }
}
