//! Compressed copies next to the site's files: servers send `page.js.br` or `page.js.gz` to browsers that ask for `page.js` and decode it.

use crate::at;
use brotli::enc::BrotliEncoderParams;
use flate2::write::GzEncoder;
use flate2::Compression;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Types of files that become smaller. Pictures and weights do not.
const TYPES: [&str; 9] = [
    "css", "html", "js", "json", "md", "svg", "ts", "txt", "wasm",
];

/// Below this many bytes a file is one packet either way.
const SMALLEST: u64 = 1000;

/// Formats, by the endings of copies. Brotli's are a third smaller, and take far longer to write.
pub const BROTLI: &str = "br";
pub const GZIP: &str = "gz";
pub const FORMATS: [&str; 2] = [BROTLI, GZIP];

/// Writes the copies of all files in a folder, where they are smaller and not yet there, on all cores.
///
/// # Errors
/// A file cannot be read or written.
pub fn folder(folder: &Path, formats: &[&'static str]) -> Result<(), String> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    // Modules take the longest: the last file to start should not be one.
    files.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let next = AtomicUsize::new(0);
    let tasks: Vec<_> = formats
        .iter()
        .flat_map(|format| files.iter().map(move |(path, _)| (path, format)))
        .collect();
    let work = || -> Result<(), String> {
        while let Some((path, format)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            write_copy(path, format)?;
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let panicked = |_| Err("a thread that compresses panicked".to_string());
            thread.join().unwrap_or_else(panicked)?;
        }
        Ok(())
    })
}

/// The length of a file's copy.
///
/// # Errors
/// [`folder`] wrote none.
pub fn size(file: &Path, format: &str) -> Result<u64, String> {
    let copy = copy_of(file, format);
    Ok(fs::metadata(&copy).map_err(at(&copy))?.len())
}

/// The formats in which [`folder`] wrote copies of a file.
pub fn formats_of(file: &Path) -> Vec<&'static str> {
    let has_copy = |format: &&str| copy_of(file, format).exists();
    FORMATS.into_iter().filter(has_copy).collect()
}

/// Removes the copies of a file that has changed.
///
/// # Errors
/// One is there and cannot be removed.
pub fn remove_copies(file: &Path) -> Result<(), String> {
    for copy in FORMATS.map(|format| copy_of(file, format)) {
        if copy.exists() {
            fs::remove_file(&copy).map_err(at(&copy))?;
        }
    }
    Ok(())
}

fn copy_of(file: &Path, format: &str) -> PathBuf {
    let mut copy = file.as_os_str().to_owned();
    copy.push(".");
    copy.push(format);
    PathBuf::from(copy)
}

/// The files that may become smaller, with their sizes.
fn collect(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<(), String> {
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.is_dir() {
            collect(&path, files)?;
            continue;
        }
        let is_of_type = path
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| TYPES.contains(&extension));
        let size = fs::metadata(&path).map_err(at(&path))?.len();
        if is_of_type && size >= SMALLEST {
            files.push((path, size));
        }
    }
    Ok(())
}

fn write_copy(file: &Path, format: &str) -> Result<(), String> {
    let copy = copy_of(file, format);
    if copy.exists() {
        return Ok(());
    }
    let bytes = fs::read(file).map_err(at(file))?;
    let compressed = if format == BROTLI { brotli } else { gzip }(&bytes).map_err(at(file))?;
    if compressed.len() < bytes.len() {
        fs::write(&copy, compressed).map_err(at(&copy))?;
    }
    Ok(())
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn brotli(mut bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let params = BrotliEncoderParams {
        quality: 11,
        // The largest window that every browser takes: 16 MB, more than any module.
        lgwin: 24,
        size_hint: bytes.len(),
        ..BrotliEncoderParams::default()
    };
    let mut compressed = Vec::new();
    brotli::BrotliCompress(&mut bytes, &mut compressed, &params)?;
    Ok(compressed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn unpacked(file: &Path, format: &str) -> Vec<u8> {
        let compressed = fs::read(copy_of(file, format)).unwrap();
        let mut bytes = Vec::new();
        match format {
            BROTLI => brotli::BrotliDecompress(&mut &compressed[..], &mut bytes).unwrap(),
            _ => {
                let mut decoder = flate2::read::GzDecoder::new(&compressed[..]);
                decoder.read_to_end(&mut bytes).map(drop).unwrap();
            }
        }
        bytes
    }

    #[test]
    fn files_that_become_smaller_have_copies() {
        let root = std::env::temp_dir().join(format!("candle-compress-{}", std::process::id()));
        fs::create_dir_all(root.join("page")).unwrap();
        let text = "a line of a page\n".repeat(200);
        let mut seed = 1u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        })
        .take(3000)
        .collect();
        let write = |name: &str, bytes: &[u8]| {
            let file = root.join(name);
            fs::write(&file, bytes).unwrap();
            file
        };
        let page = write("page/page.js", text.as_bytes());
        let without = [
            write("short.js", b"export const SHORT = 1;\n"),
            write("noise.wasm", &noise),
            write("weights.safetensors", text.as_bytes()),
        ];
        folder(&root, &[GZIP]).unwrap();
        assert_eq!(formats_of(&page), [GZIP]);
        folder(&root, &FORMATS).unwrap();
        for format in FORMATS {
            assert_eq!(unpacked(&page, format), text.as_bytes());
            assert!(size(&page, format).unwrap() < 200);
        }
        for file in &without {
            assert!(formats_of(file).is_empty(), "{}", file.display());
            assert!(size(file, GZIP).unwrap_err().contains(".gz"));
        }

        // Those that are there are not written again, nor copied themselves.
        fs::write(copy_of(&page, GZIP), "mine").unwrap();
        folder(&root, &FORMATS).unwrap();
        assert_eq!(size(&page, GZIP), Ok(4));
        assert_eq!(fs::read_dir(root.join("page")).unwrap().count(), 3);
        remove_copies(&page).unwrap();
        assert!(formats_of(&page).is_empty());
        folder(&root, &FORMATS).unwrap();
        assert_eq!(unpacked(&page, GZIP), text.as_bytes());
        fs::remove_dir_all(root).unwrap();
    }
}
