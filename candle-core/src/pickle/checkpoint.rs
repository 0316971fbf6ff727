//! Checkpoints of `torch.save`: a zip archive with a pickle that describes tensors, and their storages.

use std::collections::HashMap;
use std::path::Path;

use super::tensor_info::span;
use super::{Object, Stack, TensorInfo};
use crate::bounded_read::{reverse_elements, shown};
use crate::op::BackpropOp;
use crate::zip_archive::{Archive, Entry};
use crate::{Context, Device, Layout, Result, Tensor};

/// The entry with the pickle, in a folder whose name is the file's when it was saved.
const PICKLE: &str = "data.pkl";

/// Longest name of a folder, which is that of the file when it was saved.
const MAX_FOLDER: usize = 1024;

/// The folder with the storages, beside the pickle.
const STORAGES: &str = "data";

/// The entry that says which byte of a number comes first, beside the pickle. Older files have none and are little-endian.
const BYTE_ORDER: &str = "byteorder";

/// The checkpoint's tensors as its pickle describes them.
struct Checkpoint {
    archive: Archive,
    infos: Vec<TensorInfo>,
    /// Whether numbers in storages have their high byte first.
    big_endian: bool,
}

impl Checkpoint {
    fn new(archive: Archive, key: Option<&str>, verbose: bool) -> Result<Self> {
        match Self::parse(&archive, key, verbose) {
            Ok((infos, big_endian)) => Ok(Self {
                archive,
                infos,
                big_endian,
            }),
            Err(err) => Err(archive.in_file(err)),
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
        let read = self.archive.read(&info.path, |entry| {
            let (dtype, layout) = (info.dtype, &info.layout);
            let size = dtype.size_in_bytes();
            // Checked with the description; and a storage that is shared may be far larger than what is needed of it.
            let elements = span(layout).context("the tensor is too large")?;
            let len = elements
                .checked_mul(size)
                .context("the tensor is too large")?;
            let mut bytes = entry.read_range(layout.start_offset() as u64, len)?;
            if self.big_endian {
                reverse_elements(&mut bytes, size);
            }
            if layout.is_contiguous() {
                return Tensor::from_raw_buffer(&bytes, dtype, layout.dims(), &Device::Cpu);
            }
            let storage = Tensor::from_raw_buffer(&bytes, dtype, &[elements], &Device::Cpu)?;
            let layout = Layout::new(layout.shape().clone(), layout.stride().to_vec(), 0);
            Ok(storage.view(layout, BackpropOp::none()))
        });
        read.with_context(|| format!("tensor {}", shown(&info.name)))
            .map_err(|err| self.archive.in_file(err))
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
    let mut object = stack.finalize()?;
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
    let dir = format!("{folder}{STORAGES}");
    let infos = dictionary(object).context("pickle")?.into_iter();
    infos
        .filter_map(|(name, value)| value.into_tensor_info(name, Path::new(&dir)).transpose())
        .collect()
}

/// The items of a dictionary, also of one whose class kept a state beside them.
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

/// What a checkpoint says about its tensors, in its order. With `verbose` the pickle's values are printed; with a `key` the
/// tensors of the dictionary under it are meant, such as `model` in `{"model": …, "optimizer": …}`.
///
/// # Errors
/// When the file is no checkpoint, is damaged, or does not have the key; the error names the file, the entry of the archive
/// and the place in the pickle.
pub fn read_pth_tensor_info<P: AsRef<Path>>(
    file: P,
    verbose: bool,
    key: Option<&str>,
) -> Result<Vec<TensorInfo>> {
    Ok(Checkpoint::new(Archive::open(file.as_ref())?, key, verbose)?.infos)
}

/// The tensors of a checkpoint, read when they are asked for.
pub struct PthTensors {
    checkpoint: Checkpoint,
    /// By name.
    infos: HashMap<String, TensorInfo>,
}

impl PthTensors {
    /// Opens a checkpoint and reads the descriptions of its tensors, or of those in the dictionary under `key`.
    ///
    /// # Errors
    /// As [`read_pth_tensor_info`].
    pub fn new<P: AsRef<Path>>(path: P, key: Option<&str>) -> Result<Self> {
        Self::over(Archive::open(path.as_ref())?, key)
    }

    /// Reads a checkpoint's content, where there are no files, as in a browser.
    ///
    /// # Errors
    /// As [`read_pth_tensor_info`].
    pub fn from_bytes(bytes: Vec<u8>, key: Option<&str>) -> Result<Self> {
        Self::over(Archive::from_bytes(bytes)?, key)
    }

    fn over(archive: Archive, key: Option<&str>) -> Result<Self> {
        let checkpoint = Checkpoint::new(archive, key, false)?;
        let infos = checkpoint.infos.iter();
        Ok(Self {
            infos: infos
                .map(|info| (info.name.clone(), info.clone()))
                .collect(),
            checkpoint,
        })
    }

    /// The descriptions of the tensors by name.
    pub fn tensor_infos(&self) -> &HashMap<String, TensorInfo> {
        &self.infos
    }

    /// The tensor of this name on the CPU, or `None` if there is none. One that does not lie in row-major order keeps
    /// its strides.
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
    let checkpoint = Checkpoint::new(Archive::open(path.as_ref())?, key, false)?;
    let mut budget = checkpoint.archive.budget();
    let read = |info: &TensorInfo| {
        let tensor = checkpoint.read(info)?;
        let elements = span(&info.layout).unwrap_or(usize::MAX);
        let charged = budget.charge(elements, info.dtype);
        charged.map_err(|err| checkpoint.archive.in_file(err))?;
        Ok((info.name.clone(), tensor))
    };
    checkpoint.infos.iter().map(read).collect()
}
