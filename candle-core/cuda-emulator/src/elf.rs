//! The required parts of ELF files: the length of a file, and its thread-local variables, which are a kernel's `__shared__` variables.

fn number<const N: usize>(image: &[u8], at: usize) -> Option<usize> {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(image.get(at..at.checked_add(N)?)?);
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}

/// Bytes of a 64-bit ELF file that ends with its section headers, as linkers write it.
///
/// # Safety
/// `image` points to a string that ends with 0, or to a complete ELF file.
pub unsafe fn length(image: *const u8) -> Option<usize> {
    for (i, byte) in b"\x7fELF\x02\x01".iter().enumerate() {
        if unsafe { *image.add(i) } != *byte {
            return None;
        }
    }
    let header = unsafe { std::slice::from_raw_parts(image, 64) };
    Some(number::<8>(header, 40)? + number::<2>(header, 58)? * number::<2>(header, 60)?)
}

/// Name and size in bytes of each thread-local variable.
pub fn thread_variables(image: &[u8]) -> Vec<(String, usize)> {
    const SYMBOLS: usize = 2;
    const THREAD_LOCAL: usize = 6;
    let read = || {
        let (sections, size, count) = (
            number::<8>(image, 40)?,
            number::<2>(image, 58)?,
            number::<2>(image, 60)?,
        );
        let section = |i: usize, field: usize| sections + i * size + field;
        let table = (0..count).find(|i| number::<4>(image, section(*i, 4)) == Some(SYMBOLS))?;
        let names = number::<8>(image, section(number::<4>(image, section(table, 40))?, 24))?;
        let (start, bytes) = (
            number::<8>(image, section(table, 24))?,
            number::<8>(image, section(table, 32))?,
        );
        let symbols = image
            .get(start..start.checked_add(bytes)?)?
            .chunks_exact(24);
        Some(
            symbols
                .filter(|symbol| symbol[4] as usize & 15 == THREAD_LOCAL)
                .filter_map(|symbol| {
                    let name = image.get(names + number::<4>(symbol, 0)?..)?;
                    let name =
                        String::from_utf8_lossy(name.split(|byte| *byte == 0).next()?).into_owned();
                    Some((name, number::<8>(symbol, 16)?))
                })
                .collect(),
        )
    };
    read().unwrap_or_default()
}
