//! Checkpoints of `torch.save`: a zip archive of storages and a pickle that describes the tensors; or the older format, `legacy.rs`.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use super::legacy::{is_legacy, Legacy};
use super::tensor_info::span;
use super::{Object, Stack, TensorInfo};
use crate::bounded_read::{reverse_elements, shown};
use crate::op::BackpropOp;
use crate::zip_archive::{Archive, Budget, Entry};
use crate::{Context, Device, Error, Layout, Result, Tensor};

/// The entry with the pickle, in a folder named after the file at the time of saving.
const PICKLE: &str = "data.pkl";

/// Maximum length of the folder's name, in bytes.
const MAX_FOLDER: usize = 1024;

/// The folder with the storages, in the same folder as the pickle.
const STORAGES: &str = "data";

/// The entry with the byte order, in the same folder as the pickle. Older files do not have it and are little-endian.
const BYTE_ORDER: &str = "byteorder";

/// The source of the storages.
enum Contents {
    Zip(Archive),
    Legacy(Legacy),
}

impl Contents {
    /// Adds the file, if there is one.
    fn in_file(&self, err: Error) -> Error {
        match self {
            Self::Zip(archive) => archive.in_file(err),
            Self::Legacy(legacy) => legacy.in_file(err),
        }
    }

    fn budget(&self) -> Budget {
        match self {
            Self::Zip(archive) => archive.budget(),
            Self::Legacy(legacy) => Budget::new(legacy.len),
        }
    }

    /// Reads `len` bytes of the storage `path`, from byte `start` on.
    fn read_range(&self, path: &str, start: u64, len: usize) -> Result<Vec<u8>> {
        match self {
            Self::Zip(archive) => archive.read(path, |entry| entry.read_range(start, len)),
            Self::Legacy(legacy) => legacy.read_range(path, start, len),
        }
    }
}

/// The checkpoint's tensors as its pickle describes them.
struct Checkpoint {
    contents: Contents,
    infos: Vec<TensorInfo>,
    /// Whether numbers in storages are big-endian.
    big_endian: bool,
}

impl Checkpoint {
    fn open(path: &Path, key: Option<&str>, verbose: bool) -> Result<Self> {
        let old = File::open(path).map_err(Error::from).and_then(is_legacy);
        if old.map_err(|err| err.with_path(path))? {
            Self::of_legacy(Legacy::open(path)?, key, verbose)
        } else {
            Self::of_archive(Archive::open(path)?, key, verbose)
        }
    }

    fn from_bytes(bytes: Vec<u8>, key: Option<&str>) -> Result<Self> {
        if is_legacy(bytes.as_slice())? {
            Self::of_legacy(Legacy::from_bytes(bytes)?, key, false)
        } else {
            Self::of_archive(Archive::from_bytes(bytes)?, key, false)
        }
    }

    fn of_archive(archive: Archive, key: Option<&str>, verbose: bool) -> Result<Self> {
        match Self::parse(&archive, key, verbose) {
            Ok((infos, big_endian)) => Ok(Self {
                contents: Contents::Zip(archive),
                infos,
                big_endian,
            }),
            Err(err) => Err(archive.in_file(err)),
        }
    }

    fn of_legacy(
        (legacy, object): (Legacy, Object),
        key: Option<&str>,
        verbose: bool,
    ) -> Result<Self> {
        match tensors_in(object, "", key, verbose) {
            Ok(infos) => Ok(Self {
                infos,
                big_endian: legacy.big_endian,
                contents: Contents::Legacy(legacy),
            }),
            Err(err) => Err(legacy.in_file(err)),
        }
    }

    /// The descriptions of the tensors, and whether the storages are big-endian.
    fn parse(
        archive: &Archive,
        key: Option<&str>,
        verbose: bool,
    ) -> Result<(Vec<TensorInfo>, bool)> {
        let is_pickle = |name: &&String| {
            let before = name.strip_suffix(PICKLE);
            before.is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
        };
        let pickles: Vec<&String> = archive.names().iter().filter(is_pickle).collect();
        if pickles.is_empty() {
            crate::bail!(
                "no {PICKLE} among its {} entries; not a torch.save checkpoint",
                archive.names().len()
            )
        }
        let (mut infos, mut big_endian) = (vec![], false);
        for name in pickles {
            let folder = name.strip_suffix(PICKLE).unwrap_or_default();
            // It is repeated for each tensor.
            if folder.len() > MAX_FOLDER {
                crate::bail!(
                    "zip entry {}: the folder name has {} bytes; the maximum is {MAX_FOLDER}",
                    shown(name),
                    folder.len()
                )
            }
            if verbose {
                println!("{name}");
            }
            infos.extend(archive.read(name, |entry| {
                tensors_of(&entry.read_description()?, folder, key, verbose)
            })?);
            let order = format!("{folder}{BYTE_ORDER}");
            if archive.names().contains(&order) {
                big_endian |= archive.read(&order, is_big_endian)?;
            }
        }
        Ok((infos, big_endian))
    }

    fn read(&self, info: &TensorInfo) -> Result<Tensor> {
        let read = || {
            let (dtype, layout) = (info.dtype, &info.layout);
            let size = dtype.size_in_bytes();
            // The description was checked; and a shared storage may be far larger than the part that this tensor needs.
            let elements = span(layout).context("the tensor is too large")?;
            let len = elements
                .checked_mul(size)
                .context("the tensor is too large")?;
            let start = layout.start_offset() as u64;
            let mut bytes = self.contents.read_range(&info.path, start, len)?;
            if self.big_endian {
                reverse_elements(&mut bytes, size);
            }
            if layout.is_contiguous() {
                return Tensor::from_raw_buffer(&bytes, dtype, layout.dims(), &Device::Cpu);
            }
            let storage = Tensor::from_raw_buffer(&bytes, dtype, &[elements], &Device::Cpu)?;
            let layout = Layout::new(layout.shape().clone(), layout.stride().to_vec(), 0);
            Ok(storage.view(layout, BackpropOp::none()))
        };
        read()
            .with_context(|| format!("tensor {}", shown(&info.name)))
            .map_err(|err| self.contents.in_file(err))
    }
}

/// Reads the entry with the byte order.
fn is_big_endian(entry: &mut Entry<'_>) -> Result<bool> {
    match entry.read_description()?.trim_ascii() {
        b"little" => Ok(false),
        b"big" => Ok(true),
        other => crate::bail!(
            "expected little or big, found {}",
            shown(&String::from_utf8_lossy(other))
        ),
    }
}

/// The tensors that a pickle describes, in its order.
fn tensors_of(
    pickle: &[u8],
    folder: &str,
    key: Option<&str>,
    verbose: bool,
) -> Result<Vec<TensorInfo>> {
    let mut stack = Stack::empty();
    stack.read_loop(&mut &*pickle)?;
    let dir = format!("{folder}{STORAGES}");
    tensors_in(stack.finalize()?, &dir, key, verbose)
}

/// The tensors in the value of a pickle, with storages below `dir`.
fn tensors_in(
    mut object: Object,
    dir: &str,
    key: Option<&str>,
    verbose: bool,
) -> Result<Vec<TensorInfo>> {
    if verbose {
        println!("{object:#?}");
    }
    if let Some(key) = key {
        let items = dictionary(object).context("pickle")?;
        let found = items
            .into_iter()
            .rfind(|(name, _)| matches!(name, Object::Unicode(name) if name == key));
        object = match found {
            Some((_, object)) => object,
            None => crate::bail!("pickle: no key {key}"),
        };
    }
    let infos = dictionary(object).context("pickle")?.into_iter();
    infos
        .filter_map(|(name, value)| value.into_tensor_info(name, Path::new(dir)).transpose())
        .collect()
}

/// The items of a dictionary, including one whose class has added a state.
fn dictionary(object: Object) -> Result<Vec<(Object, Object)>> {
    match object {
        Object::Dict(items) => Ok(items),
        Object::Build { callable, args } => match *callable {
            Object::Dict(items) => Ok(items),
            callable => not_a_dictionary(&Object::Build {
                callable: Box::new(callable),
                args,
            }),
        },
        other => not_a_dictionary(&other),
    }
}

fn not_a_dictionary<T>(object: &Object) -> Result<T> {
    crate::bail!(
        "expected a dictionary of tensors, found {}; save a model's state_dict(), not the model",
        object.summary()
    )
}

/// Reads the descriptions of a checkpoint's tensors, in its order. With `verbose` the pickle's values are printed. With a `key`, returns
/// the tensors of the dictionary at that key, such as `model` in `{"model": …, "optimizer": …}`.
///
/// # Errors
/// If the file is not a checkpoint, is damaged, or does not have the key; the error names the file, the entry of the archive and the
/// position in the pickle.
pub fn read_pth_tensor_info<P: AsRef<Path>>(
    file: P,
    verbose: bool,
    key: Option<&str>,
) -> Result<Vec<TensorInfo>> {
    Ok(Checkpoint::open(file.as_ref(), key, verbose)?.infos)
}

/// The tensors of a checkpoint, read on request.
pub struct PthTensors {
    checkpoint: Checkpoint,
    /// The descriptions by name.
    infos: HashMap<String, TensorInfo>,
}

impl PthTensors {
    /// Opens a checkpoint and reads the descriptions of its tensors, or of those in the dictionary under `key`.
    ///
    /// # Errors
    /// As [`read_pth_tensor_info`].
    pub fn new<P: AsRef<Path>>(path: P, key: Option<&str>) -> Result<Self> {
        Ok(Self::over(Checkpoint::open(path.as_ref(), key, false)?))
    }

    /// Reads a checkpoint's content from memory, for environments without files such as browsers.
    ///
    /// # Errors
    /// As [`read_pth_tensor_info`].
    pub fn from_bytes(bytes: Vec<u8>, key: Option<&str>) -> Result<Self> {
        Ok(Self::over(Checkpoint::from_bytes(bytes, key)?))
    }

    fn over(checkpoint: Checkpoint) -> Self {
        let infos = checkpoint.infos.iter();
        Self {
            infos: infos
                .map(|info| (info.name.clone(), info.clone()))
                .collect(),
            checkpoint,
        }
    }

    /// The descriptions of the tensors by name.
    pub fn tensor_infos(&self) -> &HashMap<String, TensorInfo> {
        &self.infos
    }

    /// The tensor of this name on the CPU, or `None` if there is none. A tensor that is not contiguous keeps its strides.
    ///
    /// # Errors
    /// When its storage is missing or too short; the error names the file, the entry of the archive and the tensor.
    pub fn get(&self, name: &str) -> Result<Option<Tensor>> {
        let info = self.infos.get(name);
        info.map(|info| self.checkpoint.read(info)).transpose()
    }
}

/// Reads all tensors of a checkpoint, in its order, onto the CPU.
///
/// # Errors
/// As [`read_all_with_key`].
pub fn read_all<P: AsRef<Path>>(path: P) -> Result<Vec<(String, Tensor)>> {
    read_all_with_key(path, None)
}

/// Reads all tensors of a checkpoint, or of the dictionary under `key`, in its order, onto the CPU.
///
/// # Errors
/// As [`read_pth_tensor_info`] and [`PthTensors::get`].
pub fn read_all_with_key<P: AsRef<Path>>(
    path: P,
    key: Option<&str>,
) -> Result<Vec<(String, Tensor)>> {
    let checkpoint = Checkpoint::open(path.as_ref(), key, false)?;
    let mut budget = checkpoint.contents.budget();
    let read = |info: &TensorInfo| {
        let tensor = checkpoint.read(info)?;
        let elements = span(&info.layout).unwrap_or(usize::MAX);
        let charged = budget.charge(elements, info.dtype);
        charged.map_err(|err| checkpoint.contents.in_file(err))?;
        Ok((info.name.clone(), tensor))
    };
    checkpoint.infos.iter().map(read).collect()
}
