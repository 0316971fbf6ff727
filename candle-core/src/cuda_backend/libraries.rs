//! Location of NVIDIA's libraries. None is linked: each is searched when the first device is opened, so that one program starts with a GPU
//! and without, and a missing library is an error with the searched locations and installation instructions.
//!
//! cudarc opens libraries by their plain names, and ends the process if it finds none. So each is opened here first, by its full path if
//! the system's loader does not find it: a loader that has already loaded a library finds it by name.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::CudaError;

/// One of NVIDIA's libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    /// The driver, part of the graphics driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Matrix products of the older interface, for programs that request its handle.
    Cublas,
    /// Collectives among several GPUs.
    Nccl,
}

impl Library {
    pub(crate) const ALL: [Self; 5] = [
        Self::Driver,
        Self::Nvrtc,
        Self::CublasLt,
        Self::Cublas,
        Self::Nccl,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Driver => "the CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Cublas => "cuBLAS",
            Self::Nccl => "NCCL",
        }
    }

    /// File names, the best first. CUDA 12's libraries are a fallback for those of 13, and support more cards.
    fn files(self) -> &'static [&'static str] {
        match (self, cfg!(windows)) {
            (Self::Driver, false) => &["libcuda.so.1", "libcuda.so"],
            (Self::Driver, true) => &["nvcuda.dll"],
            (Self::Nvrtc, false) => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            (Self::Nvrtc, true) => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
            (Self::CublasLt, false) => &["libcublasLt.so.13", "libcublasLt.so.12"],
            (Self::CublasLt, true) => &["cublasLt64_13.dll", "cublasLt64_12.dll"],
            (Self::Cublas, false) => &["libcublas.so.13", "libcublas.so.12"],
            (Self::Cublas, true) => &["cublas64_13.dll", "cublas64_12.dll"],
            (Self::Nccl, _) => &["libnccl.so.2", "libnccl.so"],
        }
    }

    /// Libraries that have to be opened before: this one opens them by name, from its own folder.
    fn companions(self) -> &'static [&'static str] {
        match self {
            Self::Nvrtc => &["libnvrtc-builtins.so", "nvrtc-builtins64_"],
            Self::Cublas => &["libcublasLt.so"],
            _ => &[],
        }
    }

    fn how_to_get(self) -> &'static str {
        match self {
            Self::Driver => {
                "it is part of NVIDIA's graphics driver: install the driver and check that `nvidia-smi` works"
            }
            Self::Nvrtc => {
                "install it with `pip install nvidia-cuda-nvrtc`, or with the CUDA toolkit, or set CANDLE_CUDA_PATH to its folder"
            }
            Self::CublasLt | Self::Cublas => {
                "install it with `pip install nvidia-cublas`, or with the CUDA toolkit, or set CANDLE_CUDA_PATH to its folder"
            }
            Self::Nccl => {
                "install it with `pip install nvidia-nccl-cu13`, or from your distribution, or set CANDLE_CUDA_PATH to its folder"
            }
        }
    }

    /// Opens the library, once per process.
    ///
    /// # Errors
    /// [`CudaError::MissingLibrary`], with all searched locations.
    #[allow(
        clippy::result_large_err,
        reason = "upstream's error has layouts in it"
    )]
    pub(crate) fn open(self) -> Result<&'static Found, CudaError> {
        static OPENED: [OnceLock<Result<Found, String>>; 5] = [const { OnceLock::new() }; 5];
        let found = OPENED[self as usize].get_or_init(|| self.search());
        found.as_ref().map_err(|tried| CudaError::MissingLibrary {
            name: self.name(),
            tried: tried.clone(),
            hint: self.how_to_get(),
        })
    }

    fn search(self) -> Result<Found, String> {
        let mut tried = vec![];
        let by_name = |tried: &mut Vec<String>| {
            self.files().iter().find_map(|file| {
                tried.push((*file).to_string());
                Found::open(Path::new(file))
            })
        };
        // A folder that the user names precedes the system's.
        let named = std::env::var_os("CANDLE_CUDA_PATH").filter(|value| !value.is_empty());
        let named: Vec<PathBuf> = named.iter().flat_map(std::env::split_paths).collect();
        let found = self
            .in_folders(&named, &mut tried)
            .or_else(|| by_name(&mut tried))
            .or_else(|| self.in_folders(&folders(), &mut tried));
        found.ok_or_else(|| tried.join(", "))
    }

    fn in_folders(self, folders: &[PathBuf], tried: &mut Vec<String>) -> Option<Found> {
        for folder in folders {
            let here = self.files().iter().map(|file| folder.join(file));
            let Some(path) = here.into_iter().find(|path| path.exists()) else {
                tried.push(folder.display().to_string());
                continue;
            };
            self.open_companions(folder);
            match Found::open(&path) {
                Some(found) => return Some(found),
                None => tried.push(format!("{} (cannot be opened)", path.display())),
            }
        }
        None
    }

    fn open_companions(self, folder: &Path) {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for file in files {
            let name = file.file_name().to_string_lossy().into_owned();
            let wanted = self
                .companions()
                .iter()
                .any(|start| name.starts_with(start));
            if wanted && !name.contains(".alt.") {
                Found::open(&file.path());
            }
        }
    }
}

/// One of NVIDIA's libraries, and its location.
#[derive(Debug, Clone)]
pub struct LibraryReport {
    /// Its name.
    pub name: &'static str,
    /// The path by which it was opened, or its plain name if the system's loader found it.
    pub path: Option<PathBuf>,
    /// The reason why it is missing: the searched locations, and installation instructions.
    pub absent: Option<String>,
}

/// Searches all of NVIDIA's libraries that this backend can use. Libraries that are found are opened, and stay open. A device only needs
/// the driver and NVRTC.
pub fn libraries_report() -> Vec<LibraryReport> {
    let report = |library: Library| {
        let found = library.open();
        LibraryReport {
            name: library.name(),
            path: found.as_ref().ok().map(|found| found.path.clone()),
            absent: found.err().map(|error| error.to_string()),
        }
    };
    Library::ALL.into_iter().map(report).collect()
}

/// An opened library. It stays open until the process ends.
#[derive(Debug)]
pub(crate) struct Found {
    /// The path or the name by which it was opened.
    pub(crate) path: PathBuf,
    pub(crate) library: libloading::Library,
}

impl Found {
    fn open(path: &Path) -> Option<Self> {
        // SAFETY: NVIDIA's libraries may be loaded at any time, from any thread.
        let library = unsafe { libloading::Library::new(path) }.ok()?;
        let path = path.to_path_buf();
        Some(Self { path, library })
    }
}

/// Folders in which toolkits and Python packages install the libraries.
fn folders() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let mut folders = vec![];
    for root in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        let root = PathBuf::from(root);
        folders.extend(["lib64", "lib", "bin"].map(|folder| root.join(folder)));
    }
    for root in starting_with(Path::new("/usr/local"), "cuda") {
        folders.push(root.join("lib64"));
        folders.push(root.join("targets/x86_64-linux/lib"));
    }
    folders.push("/usr/local/nvidia/lib64".into());
    folders.push("/usr/lib/wsl/lib".into());
    if let Some(beside) = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.to_path_buf()))
    {
        folders.push(beside.join("../lib"));
        folders.push(beside);
    }
    for root in ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(variable)
    {
        for python in starting_with(&Path::new(&root).join("lib"), "python3") {
            let packages = python.join("site-packages").join("nvidia");
            folders.extend(
                starting_with(&packages, "")
                    .into_iter()
                    .map(|p| p.join("lib")),
            );
        }
    }
    folders
}

/// The folders in `parent` whose names begin with `start`, in descending order of names: newer versions first.
fn starting_with(parent: &Path, start: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    let mut found: Vec<PathBuf> = named
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

#[cfg(test)]
mod tests {
    use super::{starting_with, Library};

    #[test]
    fn newer_folders_come_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cuda-12.4", "cuda-13.0", "other"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("cuda.txt"), "").unwrap();
        let found = starting_with(dir.path(), "cuda");
        let names: Vec<_> = found
            .iter()
            .map(|p| p.file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["cuda-13.0", "cuda-12.4"]);
    }

    #[test]
    fn a_library_that_is_not_there_lists_what_was_tried() {
        let dir = tempfile::tempdir().unwrap();
        let mut tried = vec![];
        let found = Library::Nvrtc.in_folders(&[dir.path().to_path_buf()], &mut tried);
        assert!(found.is_none());
        assert_eq!(tried, [dir.path().display().to_string()]);
        std::fs::write(dir.path().join("libnvrtc.so.13"), "no library").unwrap();
        std::fs::write(dir.path().join("nvrtc64_130_0.dll"), "no library").unwrap();
        tried.clear();
        assert!(Library::Nvrtc
            .in_folders(&[dir.path().to_path_buf()], &mut tried)
            .is_none());
        assert!(tried[0].ends_with("(cannot be opened)"), "{tried:?}");
    }

    #[test]
    fn the_report_has_every_library_with_a_path_or_a_reason() {
        let report = super::libraries_report();
        assert_eq!(report.len(), Library::ALL.len());
        for library in report {
            assert_eq!(library.path.is_none(), library.absent.is_some());
            if let Some(reason) = library.absent {
                assert!(
                    reason.contains(library.name) && reason.contains("install"),
                    "{reason}"
                );
            }
        }
    }
}
