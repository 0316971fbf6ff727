//! `torch.save` before PyTorch 1.6: no zip archive, pickles one after the other and then the storages. `candle_core::pickle` reads what each
//! pickle says.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use candle_core::pickle::{Object, Stack, TensorInfo};
use candle_core::{bail, Device, Layout, Result, Tensor};

/// How such a file starts: protocol 2, and an integer of ten bytes.
pub const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// More bytes of a storage are read than a damaged file may ask for at once.
const CHUNK: u64 = 1 << 20;

fn pickle(reader: &mut impl BufRead) -> Result<Object> {
    let mut stack = Stack::empty();
    stack.read_loop(reader)?;
    stack.finalize()
}

/// All tensors of the file's dictionary, on the CPU.
pub fn read(path: &Path) -> Result<HashMap<String, Tensor>> {
    let mut reader = BufReader::new(File::open(path)?);
    // The magic number, the version, and sizes of C's integers on the machine that wrote the file.
    for _ in 0..3 {
        pickle(&mut reader)?;
    }
    let Ok(items) = pickle(&mut reader)?.dict() else {
        bail!("it is not a dictionary of tensors, as a model's state_dict() is")
    };
    // Tensors by the storage that they are in.
    let mut infos: HashMap<String, Vec<TensorInfo>> = HashMap::new();
    for (name, value) in items {
        if let Some(info) = of_five(value).into_tensor_info(name, Path::new(""))? {
            infos.entry(info.path.clone()).or_default().push(info);
        }
    }
    let Object::List(keys) = pickle(&mut reader)? else {
        bail!("there is no list of storages behind the tensors")
    };
    let mut tensors = HashMap::new();
    for key in keys {
        let Some(infos) = key.unicode().ok().and_then(|key| infos.remove(&key)) else {
            bail!("a storage belongs to no tensor, or its numbers are of an unknown kind")
        };
        let size = infos[0].dtype.size_in_bytes();
        let mut count = [0; 8];
        reader.read_exact(&mut count)?;
        let (count, expected) = (u64::from_le_bytes(count), infos[0].storage_size as u64);
        if count != expected {
            bail!(
                "{}: {count} numbers, {expected} are announced",
                infos[0].name
            )
        }
        let bytes = storage(&mut reader, count.saturating_mul(size as u64))?;
        for info in infos {
            tensors.insert(info.name.clone(), tensor(&info, &bytes)?);
        }
    }
    Ok(tensors)
}

/// A storage had a sixth value, for views of another one: none, in files that are still about.
fn of_five(value: Object) -> Object {
    match value {
        Object::Reduce { callable, args } => Object::Reduce {
            callable,
            args: Box::new(of_five(*args)),
        },
        Object::PersistentLoad(id) => Object::PersistentLoad(Box::new(of_five(*id))),
        Object::Tuple(mut items) => {
            let is_storage =
                matches!(items.first(), Some(Object::Unicode(kind)) if kind == "storage");
            if is_storage && items.len() == 6 && items[5] == Object::None {
                items.pop();
            }
            Object::Tuple(items.into_iter().map(of_five).collect())
        }
        other => other,
    }
}

fn storage(reader: &mut impl Read, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len.min(CHUNK) as usize);
    reader.take(len).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != len {
        bail!("it ends after {} of a storage's {len} bytes", bytes.len())
    }
    Ok(bytes)
}

/// The elements in the order of the tensor; files made from TensorFlow's have others.
fn tensor(info: &TensorInfo, storage: &[u8]) -> Result<Tensor> {
    let (layout, size) = (&info.layout, info.dtype.size_in_bytes());
    let (shape, stride) = (layout.shape().clone(), layout.stride().to_vec());
    let layout = Layout::new(shape, stride, layout.start_offset() / size);
    let mut bytes = Vec::with_capacity(layout.shape().elem_count() * size);
    for index in layout.strided_index() {
        let Some(element) = storage.get(index * size..(index + 1) * size) else {
            bail!("{} reaches past its storage", info.name)
        };
        bytes.extend_from_slice(element);
    }
    Tensor::from_raw_buffer(&bytes, info.dtype, layout.dims(), &Device::Cpu)
}
