//! Machine code of kernels, cached on disk between runs of a program.
//!
//! A folder for each architecture and version of the compiler, in `CANDLE_CUDA_CACHE` or in the user's cache folder; a file for each
//! kernel's source, named by the source's hash. A file begins with the complete source, so a hash collision or a damaged file is detected.
//! Files are written completely and then renamed, so programs may share the folder. `CANDLE_CUDA_CACHE=0` disables the cache.

use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;

use super::nvrtc;
use crate::cache_folder::cache_folder;

const VARIABLE: &str = "CANDLE_CUDA_CACHE";
const MAGIC: &[u8; 8] = b"candleCU";
/// Maximum size of the folders in bytes; larger ones are emptied when a device is opened.
const MAX_BYTES: u64 = 512 << 20;

pub(super) struct CubinCache {
    folder: PathBuf,
}

impl CubinCache {
    /// The cache for an architecture; `None` if it is disabled or there is no folder for it.
    pub(super) fn open(arch: &str) -> Option<Self> {
        let (major, minor) = nvrtc::version();
        let folder = cache_folder(VARIABLE, "cuda")?.join(format!("{arch}-nvrtc{major}.{minor}"));
        let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let sizes = files.map(|file| file.metadata().map_or(0, |data| data.len()));
        if sizes.sum::<u64>() > MAX_BYTES {
            let _ = std::fs::remove_dir_all(&folder);
        }
        Some(Self { folder })
    }

    fn path(&self, text: &str) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        hasher.write(text.as_bytes());
        self.folder.join(format!("{:016x}.cubin", hasher.finish()))
    }

    pub(super) fn read(&self, text: &str) -> Option<Vec<u8>> {
        let file = std::fs::read(self.path(text)).ok()?;
        content(&file, text).map(<[u8]>::to_vec)
    }

    /// Stores machine code. If writing fails, the next program compiles the kernel again.
    pub(super) fn write(&self, text: &str, cubin: &[u8]) {
        if let Err(err) = self.try_write(text, cubin) {
            tracing::warn!(folder = %self.folder.display(), %err, "cannot write the cache of CUDA kernels");
        }
    }

    fn try_write(&self, text: &str, cubin: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let lengths = [text.len() as u64, cubin.len() as u64].map(u64::to_le_bytes);
        let file = [
            &MAGIC[..],
            &lengths[0],
            &lengths[1],
            text.as_bytes(),
            cubin,
            &checksum(cubin).to_le_bytes(),
        ]
        .concat();
        let path = self.path(text);
        let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&unfinished, file)?;
        std::fs::rename(&unfinished, path)
    }
}

/// The machine code in a file that was written for this source, if the file is complete.
fn content<'a>(file: &'a [u8], text: &str) -> Option<&'a [u8]> {
    let (magic, rest) = file.split_at_checked(MAGIC.len())?;
    let (text_len, rest) = rest.split_first_chunk::<8>()?;
    let (cubin_len, rest) = rest.split_first_chunk::<8>()?;
    let (of, rest) = rest.split_at_checked(u64::from_le_bytes(*text_len) as usize)?;
    let (cubin, sum) = rest.split_at_checked(u64::from_le_bytes(*cubin_len) as usize)?;
    let whole = magic == MAGIC && of == text.as_bytes() && sum == checksum(cubin).to_le_bytes();
    whole.then_some(cubin)
}

fn checksum(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{content, CubinCache};

    #[test]
    fn code_comes_back_for_its_own_text_and_undamaged() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CubinCache {
            folder: dir.path().to_path_buf(),
        };
        assert_eq!(cache.read("a kernel"), None);
        cache.write("a kernel", b"its code");
        assert_eq!(cache.read("a kernel").as_deref(), Some(&b"its code"[..]));
        let file = std::fs::read(cache.path("a kernel")).unwrap();
        assert_eq!(content(&file, "another "), None);
        for place in 0..file.len() {
            let mut damaged = file.clone();
            damaged[place] ^= 0x10;
            assert_eq!(content(&damaged, "a kernel"), None, "byte {place}");
            assert_eq!(content(&file[..place], "a kernel"), None);
        }
    }
}
